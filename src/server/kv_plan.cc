// POST /v1/kv/plan: what memory, context, concurrency and format buy, for the served model or
// another one. Nothing is allocated and no step waits for it.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "engine/plan.h"
#include "model/catalog.h"
#include "model/model.h"
#include "replay/trace_plan.h"
#include "server/routes.h"

namespace quire {
namespace {

constexpr std::int64_t kBytesMax = std::int64_t{1} << 53, kTokensMost = 1 << 24;

struct PlanWorkload {
  std::uint64_t prompt = 0, output = 0, shared_prefix = 0, groups = 1;
  double qps = 0;
};

struct PlanSubject {
  std::function<Geometry(const StoragePolicy&)> geometry;
  std::uint64_t weights_bytes = 0, context = 0;
  bool served = false;
};

// The model that the body names or describes; by default the one that is served.
std::optional<PlanSubject> plan_subject(Fields& f, Server& server) {
  const Runtime& r = server.runtime();
  const std::uint32_t p = r.geometry().tokens_per_block;
  const auto of_entry = [p](const CatalogEntry& e) {
    return PlanSubject{[e, p](const StoragePolicy& s) { return catalog_geometry(e, p, s); },
                       static_cast<std::uint64_t>(e.parameters * 2e9), e.context, false};
  };
  if (auto c = f.object("config")) {
    CatalogEntry e{.name = "config"};
    e.layers = static_cast<std::uint32_t>(c->integer("layers", 1, 512).value_or(0));
    e.kv_heads = static_cast<std::uint32_t>(c->integer("kv_heads", 1, 128).value_or(0));
    e.head_dim = static_cast<std::uint32_t>(c->integer("head_dim", 16, 512).value_or(0));
    e.query_heads = e.kv_heads;
    e.context = 4096;
    c->text("attention", 16);
    if (e.layers == 0 || e.kv_heads == 0 || e.head_dim == 0 || e.head_dim % 16 != 0)
      f.refuse("config", "must have layers, kv_heads and head_dim (a multiple of 16)");
    return of_entry(e);
  }
  const std::string name = f.text("model", 256).value_or("");
  const auto& served = server.options().models;
  if (name.empty() || std::ranges::find(served, name) != served.end())
    return PlanSubject{[&r, p](const StoragePolicy& s) { return make_geometry(r.config(), p, s); },
                       r.executor().weights().bytes, r.context(), true};
  const auto known = find_in_catalog(name);
  if (!known.ok()) {
    f.refuse("model", known.error().message, "model_not_found");
    return std::nullopt;
  }
  return of_entry(*known.value());
}

// Of prompts in steady state: whole blocks of the shared prefix, if all prefixes stay in memory
// beside those who run.
double expected_hit_rate(const PlanWorkload& w, std::uint32_t block, const Plan& plan) {
  if (w.prompt == 0) return 0;
  const std::uint64_t shared = std::min(w.shared_prefix, w.prompt - 1) / block * block;
  if (plan.max_tokens > 0 && shared * w.groups + w.prompt + w.output > plan.max_tokens) return 0;
  return static_cast<double>(shared) / static_cast<double>(w.prompt);
}

Json plan_json(const Plan& plan, const PlanSubject& subject, const PlanRequest& request,
               const StoragePolicy& storage, std::uint32_t block) {
  Json by_format = Json::array();
  for (const Format* format : formats()) {
    const Geometry stored = subject.geometry(StoragePolicy(format));
    if (!check_geometry(stored).ok()) continue;
    const Plan other = make_plan(stored, request);
    by_format.push_back({{"format", format->name},
                         {"bytes_per_token", other.bytes_per_token + other.window_bytes_per_token},
                         {"max_concurrency", other.max_concurrency}});
  }
  return {{"format", storage.name()},
          {"bytes_per_token", plan.bytes_per_token + plan.window_bytes_per_token},
          {"bytes_per_sequence", plan.bytes_per_sequence},
          {"kv_pool_bytes", plan.kv_pool_bytes},
          {"max_tokens", plan.max_tokens},
          {"context", plan.context},
          {"concurrency", plan.concurrency},
          {"max_concurrency", plan.max_concurrency},
          {"blocks", plan.blocks},
          {"block_size", block},
          {"weights_bytes", request.weights_bytes},
          {"by_format", by_format},
          {"with_sharing",
           {{"dedup_ratio", plan.deduplication}, {"max_concurrency", plan.shared_concurrency}}},
          {"formula", plan.formula}};
}

// A trace of either format, as the text of its lines. It runs here, on a thread of requests, one at a
// time for all, so it must not be long.
constexpr std::size_t kTraceAsksMax = 20'000;
constexpr std::uint64_t kTraceEventsOfOne = 300'000;
constexpr std::uint64_t kTraceTokensMax = 4 << 20;
std::atomic<bool> trace_runs{false};

struct TraceTurn {
  bool mine = !trace_runs.exchange(true);
  ~TraceTurn() {
    if (mine) trace_runs = false;
  }
};

std::optional<ApiError> plan_of_lines(std::string lines, TracePlanRequest asked, Json& est) {
  const auto bad = [](const std::string& why) { return bad_value("trace", why); };
  const TraceTurn turn;
  if (!turn.mine)
    return ApiError{.status = 429,
                    .message = "another trace is being planned; try again later",
                    .type = "rate_limit_error",
                    .code = "rate_limit_exceeded",
                    .retry_after_s = 5};
  const auto trace = parse_asks(std::move(lines), "trace", kTraceEventsOfOne);
  if (!trace.ok()) return bad(trace.error().message);
  const std::uint64_t tokens = trace.value().prompt_tokens() + trace.value().answer_tokens();
  if (trace.value().asks.size() > kTraceAsksMax || tokens > kTraceTokensMax)
    return bad(
        fmt::format("{} requests with {} tokens; a server plans for up to {} with {}. "
                    "`quire plan --trace` has no such bounds",
                    trace.value().asks.size(), tokens, kTraceAsksMax, kTraceTokensMax));
  auto made = plan_trace(trace.value(), asked);
  if (!made.ok()) return bad(made.error().message);
  est = std::move(made.value());
  return std::nullopt;
}

}  // namespace

void post_kv_plan(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const auto subject = plan_subject(f, server);
    const auto count = [&f](const char* name, std::int64_t max) {
      return static_cast<std::uint64_t>(f.integer(name, 0, max).value_or(0));
    };
    PlanRequest request{.memory_bytes = count("memory_bytes", kBytesMax),
                        .context = count("context", kTokensMost),
                        .concurrency = count("concurrency", 1 << 20)};
    const auto weights = f.integer("weights_bytes", 0, kBytesMax);
    const std::string name = f.text("format", 64).value_or("");
    PlanWorkload w;
    const bool has_workload = f.find("workload") != nullptr;
    if (auto o = f.object("workload")) {
      w.prompt = static_cast<std::uint64_t>(o->integer("prompt", 1, kTokensMost).value_or(1));
      w.output = static_cast<std::uint64_t>(o->integer("output", 0, kTokensMost).value_or(0));
      w.shared_prefix =
          static_cast<std::uint64_t>(o->integer("shared_prefix", 0, kTokensMost).value_or(0));
      w.groups = static_cast<std::uint64_t>(o->integer("prefix_groups", 1, 1 << 20).value_or(1));
      w.qps = o->number("qps", 0, 1e9).value_or(0);
    }
    std::optional<std::string> trace = f.text("trace", std::size_t{16} << 20);
    StepCosts costs;
    if (const Json* given = f.find("costs")) {
      const auto read = parse_step_costs(*given);
      if (read.ok())
        costs = read.value();
      else
        f.refuse("costs", read.error().message);
    }
    const auto format = name.empty() ? Result<const Format*>(nullptr) : find_format(name);
    if (!format.ok()) f.refuse("format", format.error().message, "kv_format_unsupported");
    if (f.failed()) return post_refusal(call, f.error());

    const StoragePolicy storage = format.value()    ? StoragePolicy(format.value())
                                  : subject->served ? server.runtime().storage()
                                                    : StoragePolicy(find_format("f16").value());
    const Geometry geometry = subject->geometry(storage);
    if (const Status ok = check_geometry(geometry); !ok.ok()) {
      f.refuse("format", ok.error().message, "kv_format_unsupported");
      return post_refusal(call, f.error());
    }
    request.weights_bytes = request.memory_bytes == 0 ? 0
                            : weights                 ? static_cast<std::uint64_t>(*weights)
                                                      : subject->weights_bytes;
    if (request.context == 0 && w.prompt > 0) request.context = w.prompt + w.output;
    if (request.context == 0 && (request.memory_bytes == 0 || request.concurrency == 0))
      request.context = subject->context;
    if (request.memory_bytes == 0 && request.concurrency == 0) {
      // Nothing to solve for: the memory that this server has.
      request.memory_bytes = server.runtime().kv_cache_bytes();
      request.weights_bytes = 0;
    }
    // Beyond this, bytes would not fit their numbers.
    double per_token = 0;
    for (const LayerGroup& g : geometry.groups) per_token += geometry.bytes_per_token(g);
    if (static_cast<double>(request.context) * per_token > 0x1p38 ||
        static_cast<double>(request.concurrency) * per_token > 0x1p38 ||
        (request.context == 0 && static_cast<double>(request.concurrency) * per_token > 0x1p30)) {
      f.refuse("context", "with this model, it takes more memory than can be planned");
      return post_refusal(call, f.error());
    }
    request.shared_prefix = w.shared_prefix;
    request.prefix_groups = w.groups;
    const Plan plan = make_plan(geometry, request);

    const ServiceStats s = server.service().snapshot();
    Json answer = plan_json(plan, *subject, request, storage, geometry.tokens_per_block);
    Json of_trace;
    if (trace) {
      if (subject->served && !costs.known()) costs = s.step_costs.costs();
      TracePlanRequest asked{
          .geometry = geometry,
          .cache_bytes =
              request.memory_bytes > 0
                  ? request.memory_bytes - std::min(request.memory_bytes, request.weights_bytes)
                  : plan.kv_pool_bytes,
          .costs = costs};
      if (auto error = plan_of_lines(std::move(*trace), std::move(asked), of_trace))
        return post_refusal(call, std::move(*error));
      answer["est"] = {{"hit_rate", of_trace["hit_rate"]},
                       {"ttft_ms", of_trace["first_token_ms"]["p50"]},
                       {"decode_tok_s", of_trace["token_ms"]["p50"] > 0
                                            ? Json(1e3 / of_trace["token_ms"]["p50"].get<double>())
                                            : Json()},
                       {"bound", "memory_bandwidth"}};
      answer["trace"] = std::move(of_trace);
    }
    Json assumptions = Json::array({"K and V as allocated: whole blocks, whole slabs"});
    Json warnings = Json::array();
    if (request.memory_bytes > 0 && request.memory_bytes <= request.weights_bytes)
      warnings.push_back("the weights alone do not fit this memory");
    if (plan.context > subject->context)
      warnings.push_back(fmt::format("the model was trained for {} tokens", subject->context));
    if (has_workload && !trace) {
      const double hit = expected_hit_rate(w, geometry.tokens_per_block, plan);
      const double computed = static_cast<double>(s.prompt_tokens_computed);
      const double token_s = subject->served && computed > 0 ? s.prefill_seconds.sum / computed : 0;
      const double gap_s = subject->served && s.token_seconds.count > 0
                               ? s.token_seconds.sum / static_cast<double>(s.token_seconds.count)
                               : 0;
      const double compute = static_cast<double>(w.prompt) * (1 - hit);
      answer["est"] = {{"hit_rate", hit},
                       {"ttft_ms", token_s > 0 ? Json(compute * token_s * 1e3) : Json()},
                       {"decode_tok_s", gap_s > 0 ? Json(1 / gap_s) : Json()},
                       {"bound", "memory_bandwidth"}};
      if (token_s > 0 && w.qps > 0 && w.qps * compute * token_s > 1)
        warnings.push_back("prompts alone would take more than all the time there is");
      assumptions.push_back(
          "every prompt begins with one of the shared prefixes, which stay cached");
      assumptions.push_back("times are the means of what this server has measured so far");
    }
    answer["assumptions"] = assumptions;
    answer["warnings"] = warnings;
    post_answer(call, std::move(answer));
  });
}

}  // namespace quire
