#include "engine/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>

#include "engine/engine.h"
#include "engine/explain.h"
#include "engine/job.h"
#include "engine/sessions.h"

namespace quire {
namespace {

constexpr std::uint64_t kPreparedBytes = std::uint64_t{128} << 20;
constexpr auto kPrepareAfter = std::chrono::milliseconds(20);  // idle

struct Cancel {
  JobId job;
};
struct FinishChoice {
  JobId job;
  std::uint32_t choice;
};
using Message =
    std::variant<std::unique_ptr<Job>, Cancel, FinishChoice, std::function<void(EngineView&)>>;

JobId job_of(Ticket t) { return static_cast<JobId>(static_cast<std::uint64_t>(t)); }

}  // namespace

struct Service::State {
  State(std::unique_ptr<Runtime> r, ServiceOptions o)
      : runtime(std::move(r)),
        options(std::move(o)),
        log(options.requests_kept),
        engine(*runtime, options, log, clock) {}

  // The cache is this engine's own, or it waits for its turn.
  SharedCache::Turn turn() const {
    return runtime->shared() != nullptr ? SharedCache::Turn(*runtime->shared())
                                        : SharedCache::Turn();
  }

  bool post(Message message) {
    {
      const std::lock_guard lock(mutex);
      if (stopped) return false;
      inbox.push_back(std::move(message));
      has_mail.store(true, std::memory_order_relaxed);
    }
    wake.notify_one();
    return true;
  }

  void run();
  void publish(bool wait);

  std::unique_ptr<Runtime> runtime;
  const ServiceOptions options;
  SteadyClock clock;
  RequestLog log;
  const std::shared_ptr<Sessions> sessions = std::make_shared<Sessions>();
  Engine engine;  // the engine thread's, while it runs

  std::mutex mutex;  // of the inbox: held to push and to swap, never while anything is computed
  std::condition_variable wake;
  std::vector<Message> inbox, mail;
  std::unordered_map<std::string, std::shared_ptr<TenantQueue>> queues;
  bool stopping = false, stopped = false;
  std::atomic<bool> has_mail{false};  // or stopping: look under the lock

  std::atomic<bool> draining{false};
  std::atomic<std::uint64_t> next_ticket{1};
  std::atomic<std::uint64_t> accepted{0}, ended{0};                 // jobs
  TenantQueue waiting;                                              // of all tenants
  std::array<std::atomic<std::uint64_t>, kFailureKinds> refused{};  // by FailureKind

  std::mutex stats_mutex;
  ServiceStats stats;
  std::thread thread;
};

Result<std::unique_ptr<Service>> Service::start(std::unique_ptr<Runtime> runtime,
                                                ServiceOptions options) {
  options.step_tokens = std::min(options.step_tokens, runtime->executor().traits().rows_max);
  if (options.step_tokens == 0 || options.sequences_max == 0 || options.queue_max == 0)
    return Error{Code::invalid,
                 "step tokens, sequences and queue must each be at least 1; leave them out for "
                 "the defaults"};
  options.sequences_max = std::min(options.sequences_max, options.step_tokens);
  SharedCache* const shared = runtime->shared();
  const SharedCache::Turn turn = shared ? SharedCache::Turn(*shared) : SharedCache::Turn();
  auto state = std::make_unique<State>(std::move(runtime), std::move(options));
  state->next_ticket = state->options.numbers_from + 1;
  state->publish(true);
  State* s = state.get();
  s->thread = std::thread([s] { s->run(); });
  return std::unique_ptr<Service>(new Service(std::move(state)));
}

Service::Service(std::unique_ptr<State> state) : state_(std::move(state)) {}
Service::~Service() {
  stop();
  const std::shared_ptr<SharedCache> shared = state_->runtime->share();  // outlives the turn
  const SharedCache::Turn turn = shared ? SharedCache::Turn(*shared) : SharedCache::Turn();
  state_.reset();
}

void Service::State::run() {
  std::uint64_t taken = 0;  // jobs out of the inbox
  const auto read_mail = [&] {
    for (Message& m : mail) {
      if (auto* job = std::get_if<std::unique_ptr<Job>>(&m)) {
        ++taken;
        engine.submit(std::move(*job));
      } else if (auto* cancel = std::get_if<Cancel>(&m)) {
        engine.cancel(cancel->job);
      } else if (auto* finish = std::get_if<FinishChoice>(&m)) {
        engine.finish(finish->job, finish->choice);
      } else {
        EngineView view{*runtime, log, engine, clock.now()};
        std::get<std::function<void(EngineView&)>>(m)(view);
      }
    }
    mail.clear();
  };
  const auto tell = [&](bool wait) {
    publish(wait);
    ended.store(taken - engine.job_count(), std::memory_order_release);
  };
  // While the service is idle, it prepares memory for the next requests. It waits a moment first,
  // because a request that comes meanwhile waits for the page that is being prepared.
  const auto has_work = [&] { return !inbox.empty() || stopping || engine.has_jobs(); };
  const auto wait_for_work = [&](std::unique_lock<std::mutex>& lock) {
    if (wake.wait_for(lock, kPrepareAfter, has_work)) return;
    lock.unlock();
    const auto prepare = [&] {
      const SharedCache::Turn mine = turn();
      return runtime->cache().prepare(kPreparedBytes);
    };
    while (!has_mail.load(std::memory_order_relaxed) && prepare()) {
    }
    lock.lock();
    for (bool writes = true; writes && !has_work(); wake.wait_for(lock, kPrepareAfter, has_work)) {
      lock.unlock();
      {
        const SharedCache::Turn mine = turn();
        writes = engine.write_below();
        publish(true);
      }
      lock.lock();
    }
    wake.wait(lock, has_work);
  };
  for (bool over = false; !over;) {
    // Takes the lock only if there is mail, or if there is nothing else to do.
    if (has_mail.load(std::memory_order_relaxed) || !engine.has_jobs()) {
      std::unique_lock lock(mutex);
      const Nanoseconds since = clock.now();
      wait_for_work(lock);
      engine.counters().idle_seconds += static_cast<double>(clock.now() - since) * 1e-9;
      over = stopped = stopping;
      mail.swap(inbox);
      has_mail.store(stopping, std::memory_order_relaxed);
    }
    bool stuck = false;
    {
      const SharedCache::Turn mine = turn();
      read_mail();
      if (over)
        engine.fail_all(FailureKind::draining, "the server is stopping");
      else
        stuck = engine.has_jobs() && !engine.step();
      tell(!engine.has_jobs());
    }
    if (stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const SharedCache::Turn mine = turn();
  engine.save_below(options.save_max);
}

// A reader never makes a busy engine wait: the engine then publishes after its next step.
void Service::State::publish(bool wait) {
  std::unique_lock lock(stats_mutex, std::defer_lock);
  if (wait)
    lock.lock();
  else if (!lock.try_lock())
    return;
  stats = engine.stats();
}

Submitted Service::submit(Request request, std::shared_ptr<RequestSink> sink) {
  State& s = *state_;
  const auto refuse = [&](Failure failure) {
    ++s.refused[static_cast<std::size_t>(failure.kind)];
    return Submitted{{}, std::move(failure)};
  };
  if (s.draining.load(std::memory_order_relaxed))
    return refuse({FailureKind::draining, "the server is shutting down", 5});
  PreparedJob prepared = prepare_job(*s.runtime, s.options, std::move(request), std::move(sink));
  if (!prepared.job) return refuse(std::move(prepared.failure));
  Job& job = *prepared.job;
  {
    const std::lock_guard lock(s.mutex);
    std::shared_ptr<TenantQueue>& queue = s.queues[job.request.shares_as()];
    if (!queue) queue = std::make_shared<TenantQueue>(&s.waiting);
    job.queue = queue;
  }
  const std::uint32_t own_max =
      s.options.queue_max_per_tenant ? s.options.queue_max_per_tenant : s.options.queue_max;
  const std::uint32_t all = s.waiting.waiting++, own = job.queue->waiting++;
  job.counted = true;
  // Whoever fills the queue does not keep others out: a few more requests of each may wait.
  const std::uint32_t max = s.options.queue_max, sure = std::max(1u, max / 16);
  const bool full = all >= max && (own >= sure || all >= 2 * max);
  if (full || own >= own_max) {
    job.leave_queue();
    return refuse({FailureKind::queue_full,
                   fmt::format("{} requests wait already; try again in a moment", full ? all : own),
                   1});
  }
  const std::uint64_t number = s.next_ticket++;
  job.id = static_cast<JobId>(number);
  job.submitted = s.clock.now();
  ++s.accepted;
  if (!s.post(std::move(prepared.job))) {
    ++s.ended;
    return refuse({FailureKind::draining, "the server is shutting down", 5});
  }
  return {static_cast<Ticket>(number), {}};
}

void Service::cancel(Ticket ticket) { state_->post(Cancel{job_of(ticket)}); }

void Service::finish(Ticket ticket, std::uint32_t choice) {
  state_->post(FinishChoice{job_of(ticket), choice});
}

bool Service::post(std::function<void(EngineView&)> f) { return state_->post(std::move(f)); }

std::vector<BlockKey> Service::block_keys(std::span<const TokenId> prompt,
                                          const KvPolicy& policy) const {
  return prompt_keys(*state_->runtime, prompt, policy);
}

ServiceStats Service::snapshot() const {
  ServiceStats copy;
  {
    const std::lock_guard lock(state_->stats_mutex);
    copy = state_->stats;
  }
  for (std::size_t i = 0; i < copy.failed.size(); ++i) copy.failed[i] += state_->refused[i];
  return copy;
}

void Service::hold(bool held) {
  post([held](EngineView& e) { e.engine.hold(held); });
}

bool Service::drop_weights() {
  try {
    return call([](EngineView& e) {
             if (!e.engine.resting()) return false;
             e.runtime.take_weights(nullptr);
             return true;
           })
        .get();
  } catch (const std::future_error&) {
    return true;  // the engine has ended
  }
}

Status Service::load_weights(std::uint32_t threads, ModelSource::Progress progress) {
  TRY(std::unique_ptr<SpareWeights> read,
      state_->runtime->read_weights(threads, std::move(progress)));
  const auto weights = std::make_shared<std::unique_ptr<SpareWeights>>(std::move(read));
  try {
    call([weights](EngineView& e) { e.runtime.take_weights(std::move(*weights)); }).get();
  } catch (const std::future_error&) {
    return Error{Code::cancelled, "the server is shutting down"};
  }
  return {};
}

void Service::drain() { state_->draining = true; }
bool Service::draining() const { return state_->draining; }
bool Service::idle() const { return state_->ended == state_->accepted; }

void Service::stop() {
  if (!state_->thread.joinable()) return;
  drain();
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->has_mail = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
}

Sessions& Service::sessions() const { return *state_->sessions; }
const Runtime& Service::runtime() const { return *state_->runtime; }
const ServiceOptions& Service::options() const { return state_->options; }

void EngineView::drop_snapshots(std::optional<RootId> root) const { engine.drop_snapshots(root); }

std::vector<ActiveRequest> EngineView::active() const { return engine.active(); }

}  // namespace quire
