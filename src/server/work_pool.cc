#include "server/work_pool.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>

namespace quire {
namespace {

using PoolClock = std::chrono::steady_clock;
constexpr int kSlowPriority = 10;  // a tenth of what the engine gets of a processor
constexpr auto kLook = std::chrono::milliseconds(10);  // how often jobs are looked at

double seconds_of(clockid_t clock) {
  timespec t{};
  if (clock_gettime(clock, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

struct WorkPool::State : std::enable_shared_from_this<WorkPool::State> {
  struct Running {
    std::shared_ptr<Stop> stop;
    PoolClock::time_point began;
    pid_t thread;
    clockid_t clock;  // processor time of its thread
    double seconds;   // on that clock when it began
    bool slow = false;
  };
  struct Client {
    std::deque<Job> waiting;
    std::uint32_t running = 0;
    std::uint64_t served = 0;  // when last, in jobs of the pool
  };

  explicit State(WorkPoolOptions o) : options(o) {}

  const WorkPoolOptions options;
  std::mutex mutex;  // of everything below
  std::condition_variable has_job, has_running, changed;
  std::map<std::string, Client, std::less<>> clients;  // those that wait or run
  std::list<Running> running;
  std::uint32_t waiting = 0, slow = 0, threads = 0;
  std::uint64_t jobs = 0;
  bool stopping = false, over = false;

  void start_thread() {
    ++threads;
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  }

  std::map<std::string, Client, std::less<>>::iterator next_client() {
    auto best = clients.end();
    for (auto it = clients.begin(); it != clients.end(); ++it) {
      if (it->second.waiting.empty()) continue;
      if (best == clients.end() || it->second.running < best->second.running ||
          (it->second.running == best->second.running && it->second.served < best->second.served))
        best = it;
    }
    return best;
  }

  void work() {
    clockid_t clock = CLOCK_MONOTONIC;
    pthread_getcpuclockid(pthread_self(), &clock);
    std::unique_lock lock(mutex);
    for (bool slowed = false; !slowed;) {
      has_job.wait(lock, [&] { return over || waiting > 0; });
      if (waiting == 0) break;
      const auto client = next_client();
      Job job = std::move(client->second.waiting.front());
      client->second.waiting.pop_front();
      --waiting;
      ++client->second.running;
      client->second.served = ++jobs;
      if (stopping) job.stop->ask(Stop::Why::shutting_down);
      const auto here = running.insert(running.end(), {.stop = job.stop,
                                                       .began = PoolClock::now(),
                                                       .thread = gettid(),
                                                       .clock = clock,
                                                       .seconds = seconds_of(clock)});
      if (running.size() == 1) has_running.notify_one();
      lock.unlock();
      {
        const StopScope scope(*job.stop);
        job.work();
        job.work = nullptr;
      }
      lock.lock();
      slowed = here->slow;  // its priority cannot be raised again
      if (slowed) --slow;
      running.erase(here);
      if (--client->second.running == 0 && client->second.waiting.empty()) clients.erase(client);
      changed.notify_all();
    }
    --threads;
    changed.notify_all();
  }

  void watch() {
    std::unique_lock lock(mutex);
    while (true) {
      has_running.wait(lock, [&] { return over || !running.empty(); });
      if (over && threads == 0) return;
      changed.wait_for(lock, kLook, [&] { return over && threads == 0; });
      for (Running& r : running) look_at(r);
    }
  }

  void look_at(Running& r) {
    if (!r.slow && PoolClock::now() - r.began > options.slow_after) {
      if (slow < options.slow_max) {
        r.slow = true;
        ++slow;
        setpriority(PRIO_PROCESS, static_cast<id_t>(r.thread), kSlowPriority);
        start_thread();
      } else if (waiting > 0) {  // the list is in the order in which they began
        for (Running& longest : running)
          if (!longest.stop->asked()) {
            longest.stop->ask(Stop::Why::too_long);
            break;
          }
      }
    }
    if (seconds_of(r.clock) - r.seconds > options.seconds_max) r.stop->ask(Stop::Why::too_long);
  }
};

WorkPool::WorkPool(WorkPoolOptions options) : state_(std::make_shared<State>(options)) {
  const std::lock_guard lock(state_->mutex);
  for (std::uint32_t i = 0; i < options.threads; ++i) state_->start_thread();
  std::thread([state = state_] { state->watch(); }).detach();
}

WorkPool::~WorkPool() {
  stop_all();
  std::unique_lock lock(state_->mutex);
  state_->over = true;
  state_->has_job.notify_all();
  state_->has_running.notify_all();
  state_->changed.wait(lock, [&] { return state_->threads == 0; });
  state_->changed.notify_all();  // the watch
}

void WorkPool::run(Job job) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->clients[job.whose].waiting.push_back(std::move(job));
    ++state_->waiting;
  }
  state_->has_job.notify_one();
}

void WorkPool::stop_all() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  for (State::Running& r : state_->running) r.stop->ask(Stop::Why::shutting_down);
}

bool WorkPool::idle_within(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit,
                                  [&] { return state_->running.empty() && state_->waiting == 0; });
}

}  // namespace quire
