// hub/hub_client.h - asks a hub: what a repository holds, and for parts of its files.
//
// It waits and tries again where that helps: a lost connection, a busy server, 429 with Retry-After.
// The token goes to the hub alone, never to where the hub redirects.
//
//   TRY(HubClient hub, HubClient::open(access, log));
//   TRY(HubListing listing, hub.list(name));
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/hub_cache.h"
#include "hub/hub_name.h"
#include "net/web_client.h"

namespace quire {

struct HubFile {
  std::string path;
  std::uint64_t size = 0;
  std::string digest;  // in hex: SHA-256 of large files, Git's SHA-1 of a blob for others
  bool known = false;  // the listing said size and digest
  bool is_sha256() const { return digest.size() == 64; }
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

// What the hub's API says of a revision. Everything in it is checked: digests are hex, paths are safe.
Result<HubListing> parse_hub_listing(std::string_view text, const HubName& name);

class HubClient {
 public:
  using Log = std::function<void(const std::string&)>;
  static Result<HubClient> open(const HubAccess& access, Log log);

  Result<HubListing> list(const HubName& name);
  // Asks for size and digest of a file whose listing does not have them.
  Status complete(const HubName& name, const std::string& commit, HubFile& file);

  // Bytes [from, to) of a file go to `take`, in order. A hub that answers with the whole file instead
  // is an error with Code::unsupported, before anything is taken. `to` 0: the whole, without a range.
  Status read(const HubName& name, const std::string& commit, const HubFile& file,
              std::uint64_t from, std::uint64_t to,
              const std::function<Status(std::string_view)>& take);

 private:
  HubClient(HubAccess access, WebUrl endpoint, Log log)
      : access_(std::move(access)), endpoint_(std::move(endpoint)), log_(std::move(log)) {}
  // Until there is an answer that trying again would not change.
  Result<WebAnswer> ask(const WebUrl& url, const WebAsk& ask, const HubName& name);
  WebUrl file_url(const HubName& name, const std::string& commit, const std::string& path) const;
  std::vector<HttpHeader> secrets() const;

  HubAccess access_;
  WebUrl endpoint_;
  Log log_;
  WebClient web_;
};

}  // namespace quire
