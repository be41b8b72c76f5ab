#include "kv/tier/faulty_files.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

namespace quire {
namespace {

constexpr std::size_t kSector = 512;  // a disk writes at least this much whole

Error faulty_error(const std::string& path, int error) {
  return {error == ENOENT ? Code::not_found : Code::unavailable, path + ": " + errno_text(error)};
}

}  // namespace

// What every call asks first. A write call whose turn it is to be killed answers 0 with `dying_`
// set: it does a part of its work, and then nothing works any more.
int FaultyFiles::trouble(bool write) {
  if (plan.sleep_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(plan.sleep_ns));
  if (dead_) return EIO;
  const std::uint64_t call = calls_++;
  if (write && write_calls_++ == plan.kill_at) dead_ = dying_ = true;
  if (call == plan.error_at) return plan.error;
  return write ? std::atomic_ref(plan.every_write).load(std::memory_order_relaxed)
               : plan.every_read;
}

void FaultyFiles::put(Node& node, std::uint64_t at, std::string_view bytes) {
  if (node.bytes.size() < at + bytes.size()) node.bytes.resize(at + bytes.size());
  std::memcpy(node.bytes.data() + at, bytes.data(), bytes.size());
  node.pending.push_back({at, std::string(bytes)});
}

// Sectors arrive or not, each for itself; sometimes only the first ones.
void FaultyFiles::put_torn(Node& node, std::uint64_t at, std::string_view bytes, Random& random) {
  const bool prefix = random.chance(0.5);
  const std::size_t sectors = (bytes.size() + kSector - 1) / kSector;
  const std::size_t end = prefix ? random.below(sectors + 1) : sectors;
  for (std::size_t s = 0; s < end; ++s)
    if (prefix || random.chance(0.5))
      put(node, at + s * kSector, bytes.substr(s * kSector, kSector));
}

void FaultyFiles::reboot(Crash crash, std::uint64_t seed) {
  Random random(seed ^ 0x5eed);
  if (crash == Crash::power_loss) {
    for (auto& [path, node] : files_) {
      Node after{.bytes = node.synced, .synced = {}, .folder = node.folder};
      for (const Pending& p : node.pending) {
        const std::uint64_t fate = random.below(4);
        if (fate < 2) put(after, p.at, p.bytes);
        if (fate == 2) put_torn(after, p.at, p.bytes, random);
      }
      node.bytes = after.bytes;
    }
    for (auto& [path, node] : removed_)
      if (random.chance(0.3)) files_.try_emplace(path, node);
  }
  for (auto& [path, node] : files_) {
    node.synced = node.bytes;
    node.pending.clear();
  }
  removed_.clear();
  open_.clear();
  locked_.clear();
  plan = {};
  calls_ = write_calls_ = bytes_max_ = 0;
  dead_ = dying_ = false;
}

std::uint64_t FaultyFiles::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [path, node] : files_) sum += node.bytes.size();
  return sum;
}

std::vector<std::string> FaultyFiles::paths() const {
  std::vector<std::string> all;
  for (const auto& [path, node] : files_)
    if (!node.folder) all.push_back(path);
  return all;
}

Result<FileId> FaultyFiles::open(const std::string& path, OpenFor what) {
  const bool there = files_.contains(path);
  if (const int e = trouble(what == OpenFor::writing && !there); e != 0)
    return faulty_error(path, e);
  if (!there && what == OpenFor::reading) return faulty_error(path, ENOENT);
  if (!there && !dying_) files_[path];
  if (std::exchange(dying_, false)) return faulty_error(path, EIO);
  open_[next_id_] = path;
  return static_cast<FileId>(next_id_++);
}

void FaultyFiles::close(FileId file) {
  const auto it = open_.find(static_cast<std::uint32_t>(file));
  if (it == open_.end()) return;  // of before a reboot
  if (it->second == locked_) locked_.clear();
  open_.erase(it);
}

// A batch in any order: what a kill leaves of it is any part.
void FaultyFiles::run(std::span<IoRequest> requests,
                      const std::function<void(std::size_t)>& ended) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  for (const std::size_t i : order) {
    run_one(requests[i]);
    ended(i);
  }
}

void FaultyFiles::run_one(IoRequest& r) {
  r.done = 0;
  r.error = trouble(r.write);
  if (r.error != 0) return;
  const auto opened = open_.find(static_cast<std::uint32_t>(r.file));
  const auto file = opened == open_.end() ? files_.end() : files_.find(opened->second);
  if (file == files_.end()) {  // removed while open; a real system would still serve it
    r.error = EIO;
    return;
  }
  Node& node = file->second;
  const std::string_view bytes(reinterpret_cast<const char*>(r.bytes.data()), r.bytes.size());
  if (r.write && std::exchange(dying_, false)) {
    put_torn(node, r.at, bytes, random_);
    r.error = EIO;
    return;
  }
  if (random_.chance(plan.interrupt_chance)) {
    r.error = EINTR;
    return;
  }
  std::size_t count = bytes.size();
  if (random_.chance(plan.short_chance)) count = random_.below(count) + 1;
  if (r.write) {
    const std::uint64_t grows =
        r.at + count > node.bytes.size() ? r.at + count - node.bytes.size() : 0;
    if (plan.space_bytes != FaultPlan::kNever && this->bytes() + grows > plan.space_bytes) {
      r.error = ENOSPC;
      return;
    }
    put(node, r.at, bytes.substr(0, count));
    bytes_max_ = std::max(bytes_max_, this->bytes());
  } else {
    count = r.at >= node.bytes.size() ? 0 : std::min<std::size_t>(count, node.bytes.size() - r.at);
    std::memcpy(r.bytes.data(), node.bytes.data() + r.at, count);
  }
  r.done = count;
}

Status FaultyFiles::sync(FileId file) {
  if (const int e = trouble(true); e != 0) return faulty_error("sync", e);
  if (std::exchange(dying_, false)) return faulty_error("sync", EIO);
  Node& node = files_[open_[static_cast<std::uint32_t>(file)]];
  node.synced = node.bytes;
  node.pending.clear();
  return {};
}

Result<std::string> FaultyFiles::read_whole(const std::string& path) {
  if (const int e = trouble(false); e != 0) return faulty_error(path, e);
  const auto it = files_.find(path);
  if (it == files_.end() || it->second.folder) return faulty_error(path, ENOENT);
  return it->second.bytes;
}

Status FaultyFiles::write_whole(const std::string& path, std::string_view bytes, bool durable) {
  Node fresh;
  if (const int e = trouble(true); e != 0) return faulty_error(path, e);
  if (plan.space_bytes != FaultPlan::kNever && this->bytes() + bytes.size() > plan.space_bytes)
    return faulty_error(path, ENOSPC);
  if (std::exchange(dying_, false)) {
    put_torn(fresh, 0, bytes, random_);
    files_[path + ".tmp"] = std::move(fresh);
    return faulty_error(path, EIO);
  }
  put(fresh, 0, bytes);
  bytes_max_ = std::max(bytes_max_, this->bytes() + bytes.size());
  if (durable) {
    fresh.synced = fresh.bytes;
    fresh.pending.clear();
  }
  if (const int e = trouble(true); e != 0) return faulty_error(path, e);
  const bool dying = std::exchange(dying_, false);
  files_[dying ? path + ".tmp" : path] = std::move(fresh);
  if (dying) return faulty_error(path, EIO);
  return {};
}

Status FaultyFiles::remove(const std::string& path) {
  if (const int e = trouble(true); e != 0) return faulty_error(path, e);
  if (std::exchange(dying_, false)) return faulty_error(path, EIO);
  const auto it = files_.find(path);
  if (it == files_.end()) return faulty_error(path, ENOENT);
  removed_[path] = std::move(it->second);
  files_.erase(it);
  return {};
}

Status FaultyFiles::make_folder(const std::string& path) {
  if (files_.contains(path)) return {};
  if (const int e = trouble(true); e != 0) return faulty_error(path, e);
  if (std::exchange(dying_, false)) return faulty_error(path, EIO);
  files_[path].folder = true;
  return {};
}

Result<std::vector<FileEntry>> FaultyFiles::list(const std::string& folder) {
  if (const int e = trouble(false); e != 0) return faulty_error(folder, e);
  std::vector<FileEntry> entries;
  const std::string prefix = folder + '/';
  for (const auto& [path, node] : files_)
    if (path.starts_with(prefix) && path.find('/', prefix.size()) == std::string::npos)
      entries.push_back({path.substr(prefix.size()), node.bytes.size(), node.folder});
  return entries;
}

Result<FileId> FaultyFiles::lock(const std::string& path) {
  if (!locked_.empty()) return Error{Code::exhausted, path + ": another process holds it"};
  TRY(const FileId id, open(path, OpenFor::writing));
  locked_ = path;
  return id;
}

}  // namespace quire
