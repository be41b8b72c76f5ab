#include "engine/cache_trace.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "base/json.h"
#include "engine/explain.h"

namespace quire {
namespace {

struct Seen {  // a request when it was attached or ended
  std::uint64_t number = 0;
  std::string tenant, salt;
  std::vector<std::uint64_t> keys;
  std::uint32_t prompt_tokens = 0, choices = 1;
  bool reuse = true;
  KvWrite write = KvWrite::all;
  std::uint8_t priority = 50;
  Nanoseconds ttl = 0, submitted = 0;
  std::string format;
  Done done;
};

struct News {
  std::vector<JournalRecord> records = {};
  std::vector<Seen> seen = {};  // in order of the records that need one
  std::uint64_t next = 0, lost = 0;
};

bool is_attach(const JournalRecord& r) {
  return r.request != 0 && (r.reason == Reason::hit || r.reason == Reason::hit_partial ||
                            reason_kind(r.reason) == ReasonKind::miss);
}
bool is_end(const JournalRecord& r) {
  return r.reason == Reason::finished || r.reason == Reason::cancelled ||
         r.reason == Reason::failed;
}

News gather_news(EngineView& e, std::uint64_t from) {
  const Journal& journal = e.runtime.cache().journal();
  const Journal::Range range = journal.since(from);
  News news{.next = journal.next(), .lost = range.from() - from};
  for (const JournalRecord& r : range) news.records.push_back(r);
  for (const JournalRecord& r : news.records) {
    if (!is_attach(r) && !is_end(r)) continue;
    Seen& seen = news.seen.emplace_back();
    seen.number = r.request;
    const RequestRecord* known = e.log.find(r.request);
    if (known == nullptr) continue;
    seen.tenant = known->tenant;
    seen.submitted = known->submitted;
    seen.done = known->done;
    seen.choices = static_cast<std::uint32_t>(std::max<std::size_t>(known->finishes.size(), 1));
    if (!is_attach(r)) continue;
    seen.salt = known->salt;
    seen.keys = known->keys;
    seen.prompt_tokens = known->prompt_tokens;
    seen.reuse = known->reuse;
    seen.write = known->write;
    seen.priority = known->priority;
    seen.ttl = known->ttl;
    seen.format = known->format;
  }
  return news;
}

std::string key_name(std::uint64_t key) { return fmt::format("{:016x}", key); }

}  // namespace

struct CacheTrace::State {
  State(Service& s, CacheTraceOptions o) : service(s), options(std::move(o)) {}

  Service& service;
  CacheTraceOptions options;
  std::FILE* file = nullptr;
  KeySecret secret = KeySecret::random();  // names of tenants and salts are hashed with it
  std::uint64_t written = 0;
  bool full = false;
  std::uint64_t next = 0;  // of the journal
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::thread thread;

  void write(const Json& line) {
    if (full) return;
    const std::string text = line.dump(-1, ' ', true) + "\n";
    constexpr std::uint64_t kLast = 512;  // for the costs, and the line that says so
    if (written + text.size() + kLast > options.bytes_max) {
      full = true;
      write_costs();
      std::fputs("{\"e\":\"full\"}\n", file);
      std::fflush(file);
      return;
    }
    written += text.size();
    std::fwrite(text.data(), 1, text.size(), file);
  }

  // What steps took so far. The file keeps room for it.
  void write_costs() {
    const StepCosts costs = service.snapshot().step_costs.costs();
    if (!costs.known()) return;
    Json line = step_costs_json(costs);
    line["e"] = "costs";
    const std::string text = line.dump() + "\n";
    std::fwrite(text.data(), 1, text.size(), file);
  }

  std::string hashed(const std::string& name) const {
    RootIdentity named;
    named.tenant = name;
    return key_name(root_key(secret, named).prefix());
  }

  void write_head() {
    const Runtime& r = service.runtime();
    const Geometry& g = r.geometry();
    std::uint64_t block_bytes = 0;
    Json layers = Json::array();
    for (const LayerGroup& group : g.groups) {
      block_bytes += g.block_bytes(group);
      if (group.kind == GroupKind::recent || group.kind == GroupKind::state) continue;
      layers.push_back({{"layers", group.layers.size()},
                        {"kv_heads", group.kv_heads},
                        {"key_dim", group.key_dim},
                        {"value_dim", group.value_dim},
                        {"window", group.window},
                        {"latent", group.kind == GroupKind::latent}});
    }
    const ServiceOptions& s = service.options();
    write({{"quire_trace", 1},
           {"block_size", g.tokens_per_block},
           {"block_bytes", block_bytes},
           {"cache_bytes", r.kv_cache_bytes()},
           {"capacity_blocks", block_bytes == 0 ? 0 : r.kv_cache_bytes() / block_bytes},
           {"format", r.kv_format()},
           {"evictor", options.evictor},
           {"layers", std::move(layers)},
           {"step_tokens", s.step_tokens},
           {"prompt_tokens", s.prompt_rows(r.executor().traits().device)},
           {"sequences_max", s.sequences_max},
           {"context", r.context()}});
  }

  void write_record(const JournalRecord& r, const Seen* seen) {
    if (is_attach(r)) {
      Json keys = Json::array();
      for (const std::uint64_t key : seen->keys) keys.push_back(key_name(key));
      Json line{{"e", "attach"},
                {"t", r.time},
                {"r", r.request},
                {"arrived", seen->submitted},
                {"prompt", seen->prompt_tokens},
                {"hit", r.tokens},
                {"reason", reason_name(r.reason)},
                {"keys", std::move(keys)}};
      if (!seen->tenant.empty()) line["tenant"] = hashed(seen->tenant);
      if (!seen->salt.empty()) line["salt"] = hashed(seen->salt);
      if (!seen->reuse) line["reuse"] = false;
      if (seen->write != KvWrite::all)
        line["write"] = seen->write == KvWrite::none ? "none" : "prompt";
      if (seen->priority != KvPolicy{}.priority) line["priority"] = seen->priority;
      if (seen->ttl > 0) line["ttl_s"] = static_cast<double>(seen->ttl) * 1e-9;
      if (!seen->format.empty()) line["format"] = seen->format;
      return write(line);
    }
    if (is_end(r))
      return write({{"e", "end"},
                    {"t", r.time},
                    {"r", r.request},
                    {"reason", reason_name(r.reason)},
                    {"generated", r.tokens},
                    {"choices", seen->choices},
                    {"loaded", seen->done.loaded_tokens},
                    {"queue_s", seen->done.queue_seconds},
                    {"first_token_s", seen->done.first_token_seconds},
                    {"decode_s", seen->done.decode_seconds}});
    if (r.reason == Reason::stored || r.reason == Reason::stored_duplicate)
      return write({{"e", "store"},
                    {"t", r.time},
                    {"r", r.request},
                    {"b", r.block},
                    {"k", key_name(r.key)}});
    if (reason_kind(r.reason) == ReasonKind::eviction)
      return write({{"e", "evict"},
                    {"t", r.time},
                    {"b", r.block},
                    {"k", key_name(r.key)},
                    {"reason", reason_name(r.reason)}});
    if (reason_kind(r.reason) == ReasonKind::request && r.request != 0)
      write({{"e", "note"}, {"t", r.time}, {"r", r.request}, {"reason", reason_name(r.reason)}});
  }

  // Nothing: the service has stopped.
  std::optional<News> ask() {
    struct Answer {
      std::mutex mutex;
      std::condition_variable done;
      std::optional<News> news;
    };
    auto answer = std::make_shared<Answer>();
    if (!service.post([answer, from = next](EngineView& e) {
          News news = gather_news(e, from);
          std::lock_guard lock(answer->mutex);
          answer->news = std::move(news);
          answer->done.notify_one();
        }))
      return std::nullopt;
    std::unique_lock lock(answer->mutex);
    answer->done.wait_for(lock, std::chrono::seconds(30), [&] { return answer->news.has_value(); });
    return std::move(answer->news);
  }

  std::size_t drain() {
    const std::optional<News> news = ask();
    if (!news) return 0;
    next = news->next;
    if (news->lost > 0) write({{"e", "gap"}, {"records", news->lost}});
    std::size_t at = 0;
    for (const JournalRecord& r : news->records)
      write_record(r, is_attach(r) || is_end(r) ? &news->seen[at++] : nullptr);
    std::fflush(file);
    return news->records.size();
  }

  // Asks often while there is much to write, so that the journal does not run over.
  void run() {
    auto pause = std::chrono::milliseconds(20);
    std::unique_lock lock(mutex);
    while (!stopping && !full) {
      wake.wait_for(lock, pause, [&] { return stopping; });
      lock.unlock();
      const std::size_t records = drain();
      lock.lock();
      pause = records > 1000 ? std::chrono::milliseconds(5)
              : records > 0  ? std::chrono::milliseconds(20)
                             : std::min(pause * 2, std::chrono::milliseconds(200));
    }
  }
};

CacheTrace::CacheTrace(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->thread = std::thread([s = state_.get()] { s->run(); });
}

CacheTrace::~CacheTrace() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
  if (!state_->full) state_->write_costs();
  std::fclose(state_->file);
}

Result<std::unique_ptr<CacheTrace>> CacheTrace::start(Service& service, CacheTraceOptions options) {
  std::FILE* const file = std::fopen(options.path.c_str(), "w");
  if (file != nullptr) ::fchmod(::fileno(file), 0600);  // who asked what is nobody else's business
  if (file == nullptr)
    return Error{Code::unavailable, options.path + ": cannot be written; choose another --trace"};
  auto state = std::make_unique<State>(service, std::move(options));
  state->file = file;
  state->write_head();
  return std::unique_ptr<CacheTrace>(new CacheTrace(std::move(state)));
}

}  // namespace quire
