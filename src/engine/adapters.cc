#include "engine/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "model/adapter/adapter_file.h"
#include "text/utf8.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kAdapterNameMax = 256;

Status check_adapter_name(const std::string& name) {
  const bool printable = std::ranges::none_of(
      name, [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f; });
  if (!name.empty() && name.size() <= kAdapterNameMax && printable && utf8_valid(name)) return {};
  return Error{Code::invalid, fmt::format("an adapter's name has 1 to {} bytes of UTF-8, without "
                                          "spaces and control characters",
                                          kAdapterNameMax)};
}

Error no_adapter(std::string_view name) {
  return {Code::not_found, fmt::format("there is no adapter '{}'", name)};
}

// Whether a path, with all its links followed, lies in a folder.
bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto [at, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end() && rest != path.end();
}

}  // namespace

Adapters::Adapters(const ModelConfig& config, bool base_is_gguf, AdapterOptions options)
    : config_(config), base_is_gguf_(base_is_gguf), options_(std::move(options)) {}

Adapters::Entry* Adapters::get(std::string_view name) {
  const auto at = std::ranges::find(entries_, name,
                                    [](const Entry& e) -> std::string_view { return e.info.name; });
  return at == entries_.end() ? nullptr : &*at;
}

Result<std::shared_ptr<const Adapter>> Adapters::read(const std::string& path) const {
  return Adapter::load(path, config_, base_is_gguf_, options_.bytes_max);
}

std::uint64_t Adapters::counted_bytes() const {
  std::uint64_t bytes = 0;
  for (const Entry& e : entries_) bytes += e.adapter ? e.adapter->bytes() : 0;
  for (const auto& gone : leaving_)
    if (const auto adapter = gone.lock()) bytes += adapter->bytes();
  return bytes;
}

// What requests still use is counted until they end.
void Adapters::let_go(Entry& entry) {
  std::erase_if(leaving_, [](const auto& gone) { return gone.expired(); });
  if (entry.adapter && entry.adapter.use_count() > 1) leaving_.push_back(entry.adapter);
  entry.adapter.reset();
}

Status Adapters::make_room(std::uint64_t bytes, const Entry* stays) {
  while (counted_bytes() + bytes > options_.bytes_max) {
    Entry* oldest = nullptr;
    for (Entry& e : entries_) {
      const bool idle = e.adapter && e.adapter.use_count() == 1 && &e != stays;
      if (idle && (oldest == nullptr || e.last_used < oldest->last_used)) oldest = &e;
    }
    if (oldest == nullptr)
      return Error{Code::exhausted,
                   fmt::format("an adapter takes {} bytes, and of {} the adapters in use take {}; "
                               "try again later, or raise --lora-memory",
                               bytes, options_.bytes_max, counted_bytes())};
    oldest->adapter.reset();
  }
  return {};
}

Status Adapters::load(const std::string& name, const std::string& path, bool replace) {
  TRY_STATUS(check_adapter_name(name));
  const std::lock_guard turn(loading_);
  const auto check = [&]() -> Status {
    if (const Entry* const known = get(name); known && !replace)
      return Error{
          Code::invalid,
          fmt::format("there is an adapter '{}' already; unload it, or say load_inplace", name)};
    if (get(name) == nullptr && entries_.size() >= options_.adapters_max)
      return Error{Code::exhausted,
                   fmt::format("{} adapters are served; unload some", entries_.size())};
    return {};
  };
  {
    const std::lock_guard lock(mutex_);
    TRY_STATUS(check());
  }
  TRY(std::shared_ptr<const Adapter> adapter, read(path));
  TRY(const Set set, AdapterSet::make({{adapter}}));
  const std::lock_guard lock(mutex_);
  TRY_STATUS(check());
  Entry* entry = get(name);
  if (entry) let_go(*entry);
  TRY_STATUS(make_room(adapter->bytes(), entry));
  if (entry == nullptr) {
    entry = &entries_.emplace_back();
    entry->info.id = next_id_++;
    entry->info.name = name;
  }
  entry->info.path = path;
  entry->info.digest = set->digest();
  entry->info.bytes = adapter->bytes();
  entry->info.rank = adapter->rank_max();
  entry->info.late = set->begins_late();
  entry->info.created = std::time(nullptr);
  entry->last_used = ++uses_;
  entry->adapter = std::move(adapter);
  return {};
}

Status Adapters::load_inside(const std::string& name, const std::string& path, bool replace) {
  if (options_.folder.empty())
    return Error{Code::unavailable,
                 "adapters are loaded by clients only with --lora-dir FOLDER, from that folder"};
  const Error outside{Code::invalid, fmt::format("'{}' is not in the folder of --lora-dir", path)};
  if (path.find('\0') != path.npos) return outside;
  std::error_code error;
  const fs::path folder = fs::canonical(options_.folder, error);
  if (error)
    return Error{Code::unavailable,
                 fmt::format("--lora-dir {}: {}", options_.folder, error.message())};
  const fs::path whole = fs::path(path).is_absolute() ? fs::path(path) : folder / path;
  // Where it leads outside, nothing is told about what is there.
  const fs::path found = fs::canonical(whole, error);
  if (error || !lies_in(found, folder)) {
    if (!error || !lies_in(whole.lexically_normal(), folder)) return outside;
    return Error{Code::not_found,
                 fmt::format("there is no '{}' in the folder of --lora-dir", path)};
  }
  for (const std::string& file : adapter_files(found.string())) {
    const fs::path real = fs::canonical(file, error);
    if (!error && !lies_in(real, folder)) return outside;
  }
  return load(name, found.string(), replace);
}

Status Adapters::unload(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = get(name);
  if (entry == nullptr) return no_adapter(name);
  let_go(*entry);
  entries_.erase(entries_.begin() + (entry - entries_.data()));
  return {};
}

bool Adapters::has(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return get(name) != nullptr;
}

// Reads the adapter again where it has left memory. `lock` is let go meanwhile.
Result<std::shared_ptr<const Adapter>> Adapters::use(std::unique_lock<std::mutex>& lock,
                                                     std::uint32_t id) {
  const auto find_entry = [&] {
    return std::ranges::find(entries_, id, [](const Entry& e) { return e.info.id; });
  };
  const Error gone{Code::not_found, fmt::format("there is no adapter with id {}", id)};
  auto at = find_entry();
  if (at == entries_.end()) return gone;
  at->last_used = ++uses_;
  if (at->adapter) return at->adapter;
  const std::string path = at->info.path, name = at->info.name, digest = at->info.digest;
  lock.unlock();
  const std::lock_guard turn(loading_);
  lock.lock();
  at = find_entry();  // another thread may have been faster
  if (at == entries_.end()) return gone;
  if (at->adapter) return at->adapter;
  lock.unlock();
  auto adapter = read(path);
  lock.lock();
  if (!adapter.ok()) return adapter.error();
  at = find_entry();
  if (at == entries_.end() || at->info.digest != digest) return gone;
  TRY(const Set set, AdapterSet::make({{adapter.value()}}));
  if (set->digest() != digest)
    return Error{Code::unavailable,
                 fmt::format("the file of adapter '{}' is another one now; load it again", name)};
  TRY_STATUS(make_room(adapter.value()->bytes(), &*at));
  at->adapter = adapter.value();
  return at->adapter;
}

Result<Adapters::Set> Adapters::find(std::string_view name) {
  std::unique_lock lock(mutex_);
  const Entry* const entry = get(name);
  if (entry == nullptr) return no_adapter(name);
  TRY(std::shared_ptr<const Adapter> adapter, use(lock, entry->info.id));
  return AdapterSet::make({{std::move(adapter)}});
}

Result<Adapters::Set> Adapters::find(std::span<const ScaledAdapter> of, std::string& names) {
  std::unique_lock lock(mutex_);
  std::vector<AdapterSet::Part> parts;
  for (const ScaledAdapter& wanted : of) {
    if (wanted.scale == 0) continue;
    TRY(std::shared_ptr<const Adapter> adapter, use(lock, wanted.id));
    for (const Entry& e : entries_)
      if (e.info.id == wanted.id) names += (names.empty() ? "" : "+") + e.info.name;
    parts.push_back({std::move(adapter), wanted.scale});
  }
  if (parts.empty()) return Set();
  return AdapterSet::make(std::move(parts));
}

Result<Adapters::Set> Adapters::standing(std::string& names) {
  std::vector<ScaledAdapter> wanted;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& e : entries_)
      if (e.info.scale != 0) wanted.push_back({e.info.id, e.info.scale});
  }
  return find(wanted, names);
}

Status Adapters::set_standing(std::span<const ScaledAdapter> scales) {
  const std::lock_guard lock(mutex_);
  for (const ScaledAdapter& s : scales)
    if (std::ranges::find(entries_, s.id, [](const Entry& e) { return e.info.id; }) ==
        entries_.end())
      return Error{Code::not_found, fmt::format("there is no adapter with id {}", s.id)};
  for (Entry& e : entries_) e.info.scale = 0;  // those that are not named
  for (const ScaledAdapter& s : scales)
    std::ranges::find(entries_, s.id, [](const Entry& e) { return e.info.id; })->info.scale =
        s.scale;
  return {};
}

std::vector<AdapterInfo> Adapters::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterInfo> all;
  for (const Entry& e : entries_) {
    all.push_back(e.info);
    all.back().in_memory = e.adapter != nullptr;
  }
  return all;
}

std::optional<AdapterInfo> Adapters::info(std::string_view name) const {
  for (AdapterInfo& i : list())
    if (i.name == name) return std::move(i);
  return std::nullopt;
}

std::uint64_t Adapters::bytes() const {
  const std::lock_guard lock(mutex_);
  return counted_bytes();
}

}  // namespace quire
