// engine/service.h - many requests, one model, one cache: continuous batching behind a thread.
//
// The service owns the Runtime and the engine thread, which is compute thread 0. Everything here
// may be called from any thread and returns at once (stop() and the futures of call() excepted).
//
//   TRY(auto service, Service::start(std::move(runtime), {.step_tokens = 512}));
//   Submitted s = service->submit(std::move(request), sink);         // reports go to the sink
//   if (!s.ok()) return error_body(s.failure);
//   service->cancel(s.ticket);                                       // the client went away
//   auto stats = service->call([](EngineView& e) { return e.runtime.cache().stats(); }).get();
//
// In each step every running answer decodes one token, and the rest of the token budget reads
// prompts in chunks. An answer does not depend on the other requests in the batch, so anything may
// be mixed.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/draft/options.h"
#include "engine/request.h"
#include "engine/runtime.h"
#include "engine/service_stats.h"

namespace quire {

class Sessions;    // engine/sessions.h: names of conversations
class Engine;      // engine/engine.h: what runs on the engine thread
class RequestLog;  // engine/explain.h: the last requests and why they hit or missed

struct ServiceOptions {
  std::uint32_t step_tokens = 512;  // --step-tokens: rows of one step, at most Runtime's rows_max
  // --prompt-tokens: how many of these rows prompts may have while answers wait for their next
  // token. None: all on a GPU, 96 on a CPU, which few rows use as well as 512 do, so that answers do
  // not stutter.
  std::optional<std::uint32_t> prompt_tokens = {};
  std::uint32_t prompt_rows(DeviceKind device) const {
    return prompt_tokens.value_or(device == DeviceKind::cpu ? 96 : step_tokens);
  }
  std::uint32_t sequences_max = 64;            // --max-num-seqs: answers that decode together
  std::uint32_t sequences_max_per_tenant = 0;  // 0: as many as all together
  std::uint32_t queue_max = 512;               // --max-queue: requests that wait
  std::uint32_t queue_max_per_tenant = 0;      // 0: as many as all together
  std::uint32_t preemptions_max = 5;           // per request; then it is left alone
  std::optional<Preempt> preempt = {};         // how; none: the way that costs less
  std::uint32_t requests_kept = 1024;          // --explain-keep
  // Numbers of requests begin after it. Services that share a cache need different ones, because the
  // cache's journal names requests by number.
  std::uint64_t numbers_from = 0;
  // Whether a step of answers is submitted before the tokens of the last one are known. By default
  // only on a GPU, which then never waits for the host.
  std::optional<bool> ahead = {};
  DraftOptions drafts = {};  // --speculative-config
  // How long a request waits for another one that computes the prefix they share. The time starts
  // again with every block that becomes ready.
  Nanoseconds follow_max = 2'000'000'000;
  // How long stop() may take to write blocks to the tiers.
  Nanoseconds save_max = 10'000'000'000;
};

enum class Ticket : std::uint64_t {};

struct Submitted {
  Ticket ticket{};
  Failure failure;  // kind none: accepted
  bool ok() const { return failure.kind == FailureKind::none; }
};

// One request that waits or runs, as /slots shows it.
struct ActiveRequest {
  Ticket ticket{};
  std::string id, tenant;
  enum class State : std::uint8_t { waiting, reading, answering } state = State::waiting;
  std::uint32_t prompt_tokens = 0, cached_tokens = 0, computed_tokens = 0, generated_tokens = 0;
  std::uint32_t choices = 1, preemptions = 0;
  Nanoseconds age = 0;
};

// What a function of call() may look at and change. The engine waits for it.
struct EngineView {
  Runtime& runtime;
  RequestLog& log;
  Engine& engine;
  Nanoseconds now = 0;  // on the clock of the cache's own times

  std::vector<ActiveRequest> active() const;
  // Drops the states that programs left at their cuts, of one root or all.
  void drop_snapshots(std::optional<RootId> root = std::nullopt) const;
};

class Service {
 public:
  static Result<std::unique_ptr<Service>> start(std::unique_ptr<Runtime> runtime,
                                                ServiceOptions options);
  ~Service();  // stops

  // Checks the request and computes its block keys on the calling thread, then queues it. The sink
  // is kept until its done() or failed() has been called.
  Submitted submit(Request request, std::shared_ptr<RequestSink> sink);
  // Ends the request: its sink gets failed(cancelled), and its blocks are free within one step. A
  // ticket whose request is over is ignored, here and below.
  void cancel(Ticket ticket);
  // The caller found a stop string: the choice ends with finished(stop_string).
  void finish(Ticket ticket, std::uint32_t choice);

  // Runs f(EngineView&) on the engine thread between two steps. False after stop(): it never runs,
  // and the future of call() throws.
  bool post(std::function<void(EngineView&)> f);
  template <class F>
  auto call(F f) -> std::future<std::invoke_result_t<F, EngineView&>> {
    using T = std::invoke_result_t<F, EngineView&>;
    auto task = std::make_shared<std::packaged_task<T(EngineView&)>>(std::move(f));
    post([task](EngineView& e) { (*task)(e); });
    return task->get_future();
  }

  // The keys of the prompt's whole blocks, for looking prefixes up.
  std::vector<BlockKey> block_keys(std::span<const TokenId> prompt, const KvPolicy& policy) const;

  Sessions& sessions() const;

  ServiceStats snapshot() const;  // as of the last step; takes no lock the engine waits for

  // While it is held, requests that run go on, and those that wait stay waiting.
  void hold(bool held);
  // Weights leave memory if nothing runs; false: something does. Requests that come later wait until
  // load_weights() has brought them back. Both block, for one thread at a time that is not the engine's.
  bool drop_weights();
  Status load_weights(std::uint32_t threads, ModelSource::Progress progress);

  // From now on submit() refuses. Requests that were accepted go on.
  void drain();
  bool draining() const;
  bool idle() const;  // nothing waits and nothing runs
  // Fails what is left (draining) and ends the thread. For one thread; the second time it does
  // nothing.
  void stop();

  // These never change. For all threads.
  const Runtime& runtime() const;
  const ServiceOptions& options() const;

 private:
  struct State;
  explicit Service(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire
