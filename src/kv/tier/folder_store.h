// kv/tier/folder_store.h - a folder that several machines mount, as a ValueStore: one file a value.
//
// A value is written beside its place and renamed, so others see all of it or nothing. With a bound,
// the files that were not used for longest leave; each machine looks after the bound by itself, so
// the folder may exceed it by what the others wrote since they last looked.
//
//   TRY(auto store, open_folder_store("/mnt/kv", {.capacity_bytes = 100ull << 30}));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kv/tier/value_store.h"

namespace quire {

struct FolderStoreOptions {
  std::uint64_t capacity_bytes = 0;  // 0: no bound
};

struct FolderPlace {
  std::string path;
  std::uint64_t capacity_bytes = 0;      // 0: no bound
  Nanoseconds patience = 1'000'000'000;  // for a call of the system that has not come back
};

// file:///FOLDER[?max=SIZE&patience=MILLISECONDS]
Result<FolderPlace> parse_folder_url(std::string_view url);

Result<std::unique_ptr<ValueStore>> open_folder_store(const std::string& path,
                                                      const FolderStoreOptions& options);

}  // namespace quire
