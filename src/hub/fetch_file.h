// hub/fetch_file.h - one file of a hub, in pieces over several connections, checked, and gone on with
// where it was left.
//
// What has arrived lies in TARGET.quire-part; how far each piece got is in TARGET.quire-done. The file
// gets its name when its digest is right. A wrong digest removes it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "hub/hub_client.h"

namespace quire {

struct FetchOptions {
  HubAccess access;
  std::uint32_t connections = 4;
  std::uint64_t piece_bytes = std::uint64_t{16} << 20;
  HubClient::Log log = {};  // lines about waiting and trying again, from any thread
  // Bytes of this file that are there. From one thread at a time.
  std::function<void(std::uint64_t)> progress = {};
};

// Does nothing if the file is there. One process at a time fetches a file; others wait for it.
Status fetch_file(const HubName& name, const std::string& commit, const HubFile& file,
                  const std::string& target, const FetchOptions& options);

}  // namespace quire
