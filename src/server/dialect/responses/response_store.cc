#include "server/dialect/responses/response_store.h"

#include <algorithm>
#include <chrono>

#include "server/access_log.h"

namespace quire::responses {
namespace {

constexpr std::uint64_t kEntryOverhead = 512;  // of maps, lists and strings
constexpr std::size_t kJobsMax = 1 << 16;
constexpr std::chrono::seconds kFlushLimit{5}, kSweep{30};

std::uint64_t entry_bytes(const std::string& id, const StoredResponse& r) {
  return kEntryOverhead + id.size() + r.json.size();
}

}  // namespace

ResponseStore::ResponseStore(ResponseStoreOptions options) : options_(std::move(options)) {}

Result<std::shared_ptr<ResponseStore>> ResponseStore::open(ResponseStoreOptions options) {
  if (!options.now_s) options.now_s = [] { return unix_now_ns() / 1'000'000'000; };
  if (!options.log) options.log = [](const std::string&) {};
  if (!options.folder.empty() && !options.files) options.files = system_files(SystemFiles::threads);
  std::shared_ptr<ResponseStore> store(new ResponseStore(std::move(options)));
  if (store->options_.folder.empty()) return store;
  TRY_STATUS(store->load());
  store->writer_ = std::thread([self = store.get()] { self->work(); });
  return store;
}

ResponseStore::~ResponseStore() {
  flush();
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

// What is damaged, expired or unknown is removed: it can never be found.
Status ResponseStore::load() {
  Files& files = *options_.files;
  TRY_STATUS(files.make_folder(options_.folder));
  TRY(const std::vector<FileEntry> entries, files.list(options_.folder));
  std::vector<ResponseFile> found;
  for (const FileEntry& e : entries) {
    const std::string path = options_.folder + '/' + e.name;
    const bool ours = e.name.ends_with(".response") || e.name.ends_with(".response.tmp");
    if (e.folder || !ours) continue;
    Result<ResponseFile> file = Error{Code::corrupt, "was not written to its end"};
    if (e.name.ends_with(".response") && e.bytes <= options_.bytes_max) {
      const auto bytes = files.read_whole(path);
      file = bytes.ok() ? decode_response(bytes.value()) : Result<ResponseFile>(bytes.error());
      if (file.ok() && response_file_name(file.value().tenant, file.value().id) != e.name)
        file = Error{Code::corrupt, "has another response's name"};
    }
    if (file.ok() && file.value().response.expires_s > options_.now_s()) {
      found.push_back(std::move(file.value()));
      continue;
    }
    if (!file.ok()) options_.log(path + ": " + file.error().message + "; it is removed");
    if (const Status removed = files.remove(path); !removed.ok())
      options_.log(removed.error().message);
  }
  std::ranges::sort(found, {}, [](const ResponseFile& f) { return f.response.expires_s; });
  std::lock_guard lock(mutex_);
  for (ResponseFile& f : found) {
    // Another --responses-ttl than before counts for these, too.
    f.response.expires_s =
        std::min<std::int64_t>(f.response.expires_s, options_.now_s() + options_.ttl_s);
    insert({std::move(f.tenant), std::move(f.id)},
           std::make_shared<const StoredResponse>(std::move(f.response)));
    make_room();
  }
  return {};
}

bool ResponseStore::put(const std::string& tenant, const std::string& id, StoredResponse response) {
  response.expires_s = options_.now_s() + options_.ttl_s;
  const auto shared = std::make_shared<const StoredResponse>(std::move(response));
  std::lock_guard lock(mutex_);
  drop_expired();
  if (find_entry(tenant, id) != nullptr) drop(tenant, id);
  if (options_.count_max == 0 || entry_bytes(id, *shared) > options_.bytes_max / 8) return false;
  insert({tenant, id}, shared);
  enqueue({.name = {tenant, id}, .write = shared});
  make_room();
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& tenant,
                                                          const std::string& id) {
  std::lock_guard lock(mutex_);
  drop_expired();
  const Entry* const entry = find_entry(tenant, id);
  if (entry == nullptr) return nullptr;
  std::list<Entry>& all = tenants_.at(tenant).entries;
  all.splice(all.begin(), all, tenants_.at(tenant).by_id.at(id));
  return entry->response;
}

bool ResponseStore::remove(const std::string& tenant, const std::string& id,
                           std::function<void()> then) {
  std::unique_lock lock(mutex_);
  drop_expired();
  if (find_entry(tenant, id) == nullptr) return false;
  const bool waits = writer_.joinable();
  drop(tenant, id, waits ? std::move(then) : nullptr);
  lock.unlock();
  if (!waits && then) then();
  return true;
}

void ResponseStore::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kFlushLimit, [&] { return jobs_.empty() && !working_; });
}

std::uint64_t ResponseStore::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

std::uint64_t ResponseStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

const ResponseStore::Entry* ResponseStore::find_entry(const std::string& tenant,
                                                      const std::string& id) {
  const auto owner = tenants_.find(tenant);
  if (owner == tenants_.end()) return nullptr;
  const auto found = owner->second.by_id.find(id);
  return found == owner->second.by_id.end() ? nullptr : &*found->second;
}

void ResponseStore::insert(Name name, std::shared_ptr<const StoredResponse> response) {
  Tenant& tenant = tenants_[name.tenant];
  const std::uint64_t bytes = entry_bytes(name.id, *response);
  const std::int64_t expires = response->expires_s;
  tenant.entries.push_front({name.id, std::move(response), bytes});
  tenant.by_id[name.id] = tenant.entries.begin();
  tenant.entries.front().expiry = expiries_.emplace(expires, std::move(name));
  tenant.bytes += bytes;
  bytes_ += bytes;
  ++count_;
}

void ResponseStore::drop(const std::string& tenant_name, const std::string& id,
                         std::function<void()> then) {
  enqueue({.name = {tenant_name, id}, .write = nullptr, .then = std::move(then)});
  const auto tenant = tenants_.find(tenant_name);
  const auto found = tenant->second.by_id.find(id);
  const auto entry = found->second;
  tenant->second.bytes -= entry->bytes;
  bytes_ -= entry->bytes;
  --count_;
  const auto expiry = entry->expiry;
  tenant->second.by_id.erase(found);
  tenant->second.entries.erase(entry);
  if (tenant->second.entries.empty()) tenants_.erase(tenant);
  expiries_.erase(expiry);  // may own the names that were passed
}

void ResponseStore::drop_expired() {
  while (!expiries_.empty() && expiries_.begin()->first <= options_.now_s()) {
    const Name name = expiries_.begin()->second;
    drop(name.tenant, name.id);
  }
}

// A tenant's share is of what it has most of: responses or bytes.
void ResponseStore::make_room() {
  const auto share = [&](const Tenant& t) {
    return std::max(static_cast<double>(t.entries.size()) / options_.count_max,
                    static_cast<double>(t.bytes) / static_cast<double>(options_.bytes_max));
  };
  while (count_ > options_.count_max || bytes_ > options_.bytes_max) {
    auto most = tenants_.begin();
    for (auto t = tenants_.begin(); t != tenants_.end(); ++t)
      if (share(t->second) > share(most->second)) most = t;
    const Name last{most->first, most->second.entries.back().id};
    drop(last.tenant, last.id);
  }
}

// A folder that is too slow gets fewer copies, and what waits for it stays bounded. What a client
// deleted (`then`) is always removed, so that it does not come back.
void ResponseStore::enqueue(Job job) {
  if (options_.folder.empty()) return;
  if (jobs_.size() >= kJobsMax && !job.then) return;
  if (job.write != nullptr) {
    const std::uint64_t bytes = entry_bytes(job.name.id, *job.write);
    if (jobs_bytes_ + bytes > options_.bytes_max) return;
    jobs_bytes_ += bytes;
  }
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void ResponseStore::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait_for(lock, kSweep, [&] { return !jobs_.empty() || over_; });
    drop_expired();
    if (jobs_.empty() && over_) return;
    if (jobs_.empty()) continue;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (job.write != nullptr) jobs_bytes_ -= entry_bytes(job.name.id, *job.write);
    working_ = true;
    lock.unlock();
    do_job(job);
    if (job.then) job.then();
    lock.lock();
    working_ = false;
    changed_.notify_all();
  }
}

void ResponseStore::do_job(const Job& job) {
  const std::string path = path_of(job.name);
  Status done;
  if (job.write != nullptr)
    done = options_.files->write_whole(
        path, encode_response({job.name.tenant, job.name.id, *job.write}), false);
  else if (done = options_.files->remove(path); !done.ok() && done.error().code == Code::not_found)
    done = {};  // its write failed
  if (!done.ok() && !failing_) options_.log(done.error().message);
  failing_ = !done.ok();
}

std::string ResponseStore::path_of(const Name& name) const {
  return options_.folder + '/' + response_file_name(name.tenant, name.id);
}

}  // namespace quire::responses
