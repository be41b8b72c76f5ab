// engine/adapters.h - the adapters that are served, by name.
//
// An adapter is read when it is loaded, and named in keys by the digest of what was read. All of them
// together have a bounded memory: those that no request uses leave it, the least recently used first,
// and are read again when they are asked for. A file that is another one by then is not served under
// the old name until somebody loads it again.
//
//   TRY_STATUS(adapters.load("sql", "adapters/sql"));
//   TRY(request.kv.adapters, adapters.find("sql"));
//   adapters.unload("sql");        // requests that have it go on; its memory is free when they end
//
// For all threads. Loading reads files, so it takes a while.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/adapter/adapter.h"

namespace quire {

struct AdapterOptions {
  std::vector<std::pair<std::string, std::string>> files = {};  // name and path, at start
  std::uint64_t bytes_max = std::uint64_t{1} << 30;             // of all in memory
  std::uint32_t adapters_max = 1024;
  std::string folder = {};  // clients may load what lies in it; none: nothing
};

struct ScaledAdapter {
  std::uint32_t id = 0;  // AdapterInfo::id
  float scale = 1;

  bool operator==(const ScaledAdapter&) const = default;
};

struct AdapterInfo {
  std::uint32_t id = 0;  // never given twice
  std::string name, path, digest;
  std::uint64_t bytes = 0;
  std::uint32_t rank = 0;                // the largest
  bool in_memory = false, late = false;  // late: it begins at its invocation tokens
  float scale = 0;                       // for requests that name no adapter
  std::int64_t created = 0;              // seconds since 1970
};

class Adapters {
 public:
  using Set = std::shared_ptr<const AdapterSet>;

  // Of a model that was read from a GGUF file or not.
  Adapters(const ModelConfig& config, bool base_is_gguf, AdapterOptions options);

  // Code::invalid: the name, or that there is one of this name and `replace` was not said.
  Status load(const std::string& name, const std::string& path, bool replace = false);
  // The same for a path that a client named: inside the folder, links included.
  Status load_inside(const std::string& name, const std::string& path, bool replace = false);
  Status unload(const std::string& name);

  bool has(std::string_view name) const;
  // The adapter alone, as its file scales it.
  Result<Set> find(std::string_view name);
  // In this order, and their names; null: there are none, or all scales are 0.
  Result<Set> find(std::span<const ScaledAdapter> of, std::string& names);
  // For requests that name no adapter; null: none of them.
  Result<Set> standing(std::string& names);
  Status set_standing(std::span<const ScaledAdapter> scales);

  std::vector<AdapterInfo> list() const;
  std::optional<AdapterInfo> info(std::string_view name) const;
  std::uint64_t bytes() const;  // in memory now, those that are leaving included
  const AdapterOptions& options() const { return options_; }

 private:
  struct Entry {
    AdapterInfo info;
    std::shared_ptr<const Adapter> adapter;  // null: not in memory
    std::uint64_t last_used = 0;
  };

  Entry* get(std::string_view name);
  const Entry* get(std::string_view name) const { return const_cast<Adapters*>(this)->get(name); }
  Result<std::shared_ptr<const Adapter>> read(const std::string& path) const;
  Status make_room(std::uint64_t bytes, const Entry* stays);
  Result<std::shared_ptr<const Adapter>> use(std::unique_lock<std::mutex>& lock, std::uint32_t id);
  void let_go(Entry& entry);
  std::uint64_t counted_bytes() const;

  const ModelConfig config_;
  const bool base_is_gguf_;
  const AdapterOptions options_;
  mutable std::mutex mutex_;
  std::mutex loading_;  // files are read by one thread at a time; taken before mutex_
  std::vector<Entry> entries_;
  std::vector<std::weak_ptr<const Adapter>> leaving_;  // unloaded or replaced, and in use
  std::uint32_t next_id_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace quire
