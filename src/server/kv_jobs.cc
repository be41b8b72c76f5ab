#include "server/kv_jobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <unordered_map>

#include "engine/engine.h"
#include "engine/loading.h"
#include "server/kv_parse.h"
#include "server/kv_select.h"
#include "server/routes.h"

namespace quire {
namespace {

constexpr std::size_t kNodesAtOnce = 64, kTextsMax = 256;
constexpr auto kQueuePause = std::chrono::milliseconds(5);

ApiError job_error(const Error& error) {
  if (error.code == Code::exhausted)
    return {.status = 429,
            .message = error.message,
            .type = "rate_limit_error",
            .code = "limit_exceeded",
            .retry_after_s = 1};
  if (error.code == Code::not_found) return not_found(error.message, "job_not_found");
  return from_error(error);
}

// Runs f on the engine thread and waits.
template <class F>
Result<std::invoke_result_t<F, EngineView&>> on_engine(Server& server, F f) {
  try {
    return server.service().call(std::move(f)).get();
  } catch (const std::future_error&) {
    return Error{Code::cancelled, "the server is shutting down"};
  }
}

// Blocks go to the tier, a few at a time, as fast as its queue has room. When all are written they
// leave memory, unless copies were asked for.
Status move_down(Server& server, KvJob& job, const Selector& selector, bool copy) {
  const auto look = [&](EngineView& e) { return selected_nodes(e, selector); };
  TRY(const Result<std::vector<BlockKey>> found, on_engine(server, look));
  if (!found.ok()) return found.error();
  const std::vector<BlockKey>& nodes = found.value();
  job.set_total(nodes.size());
  for (std::size_t at = 0; at < nodes.size();) {
    if (job.cancelled()) return {};
    const auto offer_some = [&](EngineView& e) {
      KvCache& cache = e.runtime.cache();
      std::size_t n = 0;
      for (; n < kNodesAtOnce && at + n < nodes.size(); ++n) {
        if (!cache.offer(nodes[at + n], Offer::asked)) break;
        cache.note({.key = nodes[at + n].prefix(),
                    .extra = kMovedDown,
                    .tokens = e.runtime.geometry().tokens_per_block,
                    .reason = Reason::moved});
      }
      e.runtime.tiers()->send();
      e.engine.drain_below();
      return n;
    };
    TRY(const std::size_t taken, on_engine(server, offer_some));
    at += taken;
    job.advance(taken);
    if (taken < kNodesAtOnce) std::this_thread::sleep_for(kQueuePause);
  }
  if (copy) return {};
  for (bool written = false; !written;) {
    if (job.cancelled()) return {};
    const auto look_again = [](EngineView& e) {
      e.engine.drain_below();
      return !e.runtime.tiers()->writes();
    };
    TRY(written, on_engine(server, look_again));
    if (!written) std::this_thread::sleep_for(kQueuePause);
  }
  for (std::size_t end = nodes.size(); end > 0;) {  // leaves first
    const std::size_t first = end - std::min(end, kNodesAtOnce);
    const auto drop = [&](EngineView& e) {
      for (std::size_t i = end; i-- > first;) (void)e.runtime.cache().evict(nodes[i]);
      return true;
    };
    TRY_STATUS(on_engine(server, drop));
    end = first;
  }
  return {};
}

class WaitSink final : public RequestSink {
 public:
  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done& d) override { ended.set_value(d); }
  void failed(const Failure& f) override { ended.set_value(Error{Code::exhausted, f.message}); }
  std::promise<Result<Done>> ended;
};

// The texts that end at the last of the nodes, by the roots they are under.
struct CachedPath {
  std::string tenant;
  std::vector<TokenId> tokens;
};
std::vector<CachedPath> paths_of(EngineView& e, const std::vector<BlockKey>& nodes) {
  struct At {
    BlockKey parent;
    std::string_view tenant;
    std::span<const TokenId> tokens;
    bool selected = false, leaf = true;
  };
  std::unordered_map<BlockKey, At, BlockKeyHash> all;
  const auto own = [&](const NodeInfo& n) {  // in the server's own format
    const auto root = e.runtime.find_root(n.tenant);
    return root && *root == n.root;
  };
  e.runtime.cache().tree([&](const NodeInfo& n) {
    if (own(n)) all[n.key] = {n.parent, n.tenant, n.tokens};
  });
  for (const BlockKey& key : nodes) {
    const auto it = all.find(key);
    if (it == all.end()) continue;
    it->second.selected = true;
    if (const auto up = all.find(it->second.parent); up != all.end()) up->second.leaf = false;
  }
  std::vector<CachedPath> paths;
  for (const BlockKey& key : nodes) {
    const auto it = all.find(key);
    if (it == all.end() || !it->second.leaf || paths.size() == kTextsMax) continue;
    std::vector<std::span<const TokenId>> up;
    for (auto at = it; at != all.end(); at = all.find(at->second.parent))
      up.push_back(at->second.tokens);
    CachedPath& path = paths.emplace_back(CachedPath{std::string(it->second.tenant), {}});
    for (auto part = up.rbegin(); part != up.rend(); ++part)
      path.tokens.insert(path.tokens.end(), part->begin(), part->end());
    path.tokens.push_back(0);  // the last token is always computed
  }
  return paths;
}

// Texts are read again in the other format, with the exact blocks that are cached encoded instead of
// computed (kv.convert).
Status compress(Server& server, KvJob& job, const Selector& selector, const KvPolicy& policy) {
  const auto look = [&](EngineView& e) -> Result<std::vector<CachedPath>> {
    TRY(const std::vector<BlockKey> nodes, selected_nodes(e, selector));
    return paths_of(e, nodes);
  };
  TRY(Result<std::vector<CachedPath>> found, on_engine(server, look));
  if (!found.ok()) return found.error();
  const std::uint32_t per_block = server.runtime().geometry().tokens_per_block;
  std::uint64_t blocks = 0;
  for (const CachedPath& path : found.value()) blocks += path.tokens.size() / per_block;
  job.set_total(blocks);
  for (CachedPath& path : found.value()) {
    if (job.cancelled()) return {};
    Request request;
    request.kv = policy;
    request.kv.tenant = path.tenant;
    request.kv.convert = true;
    request.tokens_max = 0;
    request.id = "compress";
    const std::uint64_t of = path.tokens.size() / per_block;
    request.prompt = std::move(path.tokens);
    auto sink = std::make_shared<WaitSink>();
    auto ended = sink->ended.get_future();
    const Submitted submitted = server.service().submit(std::move(request), sink);
    if (!submitted.ok()) return Error{Code::unavailable, submitted.failure.message};
    while (ended.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready)
      if (job.cancelled()) server.service().cancel(submitted.ticket);
    const Result<Done> done = ended.get();
    if (!done.ok() && job.cancelled()) return {};
    if (!done.ok()) return done.error();
    job.advance(of);
  }
  return {};
}

void answer_job(Server& server, const std::shared_ptr<Call>& call, const char* kind,
                std::function<Status(KvJob&)> work) {
  const Result<std::string> id = server.jobs().add(kind, std::move(work));
  if (!id.ok()) return post_refusal(call, job_error(id.error()));
  const Result<Json> shown = server.jobs().show(id.value());
  call->exchange->post(
      [call, body = shown.ok() ? shown.value() : Json::object()] { call->respond(body, 202); });
}

// What a dry run says: how many blocks the job would be about.
void count_nodes(Server& server, const std::shared_ptr<Call>& call, const char* kind,
                 const Selector& selector) {
  server.with_walk(
      call, [selector](EngineView& e) { return selected_nodes(e, selector); },
      [call, kind](const Result<std::vector<BlockKey>>& nodes) {
        if (!nodes.ok()) return post_refusal(call, from_error(nodes.error(), "select"));
        post_answer(call,
                    {{"kind", kind}, {"total_blocks", nodes.value().size()}, {"dry_run", true}});
      });
}

}  // namespace

KvJobs::KvJobs() : thread_([this] { loop(); }) {}
KvJobs::~KvJobs() { stop(); }

void KvJobs::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& job : jobs_) job->cancelled_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void KvJobs::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto next =
        std::ranges::find(jobs_, KvJob::State::queued, [](const auto& job) { return job->state; });
    if (stopping_) return;
    if (next == jobs_.end()) {
      changed_.wait(lock);
      continue;
    }
    const std::shared_ptr<KvJob> job = *next;
    job->state = KvJob::State::running;
    lock.unlock();
    const Status ended = job->cancelled() ? Status() : job->work(*job);
    job->work = nullptr;
    lock.lock();
    job->state = !ended.ok()        ? KvJob::State::failed
                 : job->cancelled() ? KvJob::State::cancelled
                                    : KvJob::State::done;
    if (!ended.ok()) job->error = ended.error().message;
  }
}

Result<std::string> KvJobs::add(std::string kind, std::function<Status(KvJob&)> work) {
  const std::lock_guard lock(mutex_);
  const auto waiting =
      std::ranges::count(jobs_, KvJob::State::queued, [](const auto& job) { return job->state; });
  if (static_cast<std::size_t>(waiting) >= kWaitingMax)
    return Error{Code::exhausted, fmt::format("{} jobs wait already; try again later", waiting)};
  while (jobs_.size() >= kKept) {
    const auto over = std::ranges::find_if(
        jobs_, [](const auto& job) { return job->state > KvJob::State::running; });
    if (over == jobs_.end()) break;
    jobs_.erase(over);
  }
  auto job = std::make_shared<KvJob>();
  job->id = fmt::format("job_{}", next_++);
  job->kind = std::move(kind);
  job->work = std::move(work);
  jobs_.push_back(job);
  changed_.notify_all();
  return job->id;
}

Json KvJobs::json(const KvJob& job) {
  constexpr std::string_view kStates[] = {"running", "running", "done", "failed", "cancelled"};
  return {{"id", job.id},
          {"kind", job.kind},
          {"state", kStates[static_cast<std::size_t>(job.state)]},
          {"done_blocks", job.done_.load()},
          {"total_blocks", job.total_.load()},
          {"error", job.error.empty() ? Json() : Json(job.error)}};
}

std::shared_ptr<KvJob> KvJobs::find(const std::string& id) const {
  const auto it = std::ranges::find(jobs_, id, [](const auto& job) { return job->id; });
  return it == jobs_.end() ? nullptr : *it;
}

Result<Json> KvJobs::show(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  if (const auto job = find(id)) return json(*job);
  return Error{Code::not_found, "there is no job '" + id + "'"};
}

Json KvJobs::list() const {
  Json all = Json::array();
  const std::lock_guard lock(mutex_);
  for (const auto& job : jobs_) all.push_back(json(*job));
  return all;
}

Result<Json> KvJobs::cancel(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto job = find(id);
  if (!job) return Error{Code::not_found, "there is no job '" + id + "'"};
  job->cancelled_ = true;
  if (job->state == KvJob::State::queued) job->state = KvJob::State::cancelled;
  return json(*job);
}

void post_kv_move(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const Selector selector = parse_selector(f, server, *call, false);
    const TierLink* const tiers = server.runtime().tiers();
    const std::string below(tiers ? tiers->traits().name : "disk");
    const std::string from = f.text("from", 16).value_or("cpu"),
                      to = f.text("to", 16).value_or(below);
    const bool copy = f.boolean("copy").value_or(false);
    const bool dry_run = f.boolean("dry_run").value_or(false);
    f.refuse_unknown();
    if (from != "cpu" || to != below)
      f.refuse("to",
               "must be " + below +
                   ", and from cpu; blocks come up when a request wants them "
                   "(POST /v1/kv/prefill)",
               "tier_unavailable");
    if (!tiers)
      f.refuse("to", "is not there; start the server with --kv-dir or --kv-store",
               "tier_unavailable");
    if (f.failed()) return post_refusal(call, f.error());
    if (dry_run) return count_nodes(server, call, "move", selector);
    answer_job(server, call, "move", [&server, selector, copy](KvJob& job) {
      return move_down(server, job, selector, copy);
    });
  });
}

void post_kv_compress(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const Selector selector = parse_selector(f, server, *call, false);
    const bool dry_run = f.boolean("dry_run").value_or(false);
    const Json& format = f.require("format");
    f.refuse_unknown();
    if (f.failed()) return post_refusal(call, f.error());
    // The format is read as a request's is.
    const Json asked{{"kv", {{"format", format}, {"allow_lossy", true}, {"convert", true}}}};
    const ParseContext context = server.parse_context(*call);
    Fields as_kv(asked);
    KvRequest kv;
    parse_kv(as_kv, "", context.kv, kv);
    if (as_kv.failed()) return post_refusal(call, as_kv.error());
    if (!kv.policy.storage)
      return post_refusal(call,
                          bad_value("format", "is the server's own", "kv_format_unsupported"));
    if (dry_run) return count_nodes(server, call, "compress", selector);
    answer_job(server, call, "compress", [&server, selector, policy = kv.policy](KvJob& job) {
      return compress(server, job, selector, policy);
    });
  });
}

void get_kv_jobs(Server& server, std::shared_ptr<Call> call) {
  call->respond({{"data", server.jobs().list()}, {"has_more", false}});
}

void get_kv_job(Server& server, std::shared_ptr<Call> call) {
  const Result<Json> job = server.jobs().show(call->arguments.front());
  if (!job.ok()) return call->refuse(job_error(job.error()));
  call->respond(job.value());
}

void delete_kv_job(Server& server, std::shared_ptr<Call> call) {
  const Result<Json> job = server.jobs().cancel(call->arguments.front());
  if (!job.ok()) return call->refuse(job_error(job.error()));
  call->respond(job.value());
}

}  // namespace quire
