// A trace as load on a live server: token ids that are made up from the keys of blocks, sent when they
// were recorded.
#include "cli/replay_live.h"

#include <fmt/core.h>

#include "base/random.h"
#include "cli/help.h"
#include "lab/load/summary.h"
#include "replay/asks.h"

namespace quire::cli {
namespace {

// Prompts of equal keys have equal ids. The recorded answers are not part of later prompts here: what
// the server says now is something else. Their blocks are made up like all others.
load::Workload workload_of_asks(const AskedTrace& trace, double speed) {
  load::Workload workload{"trace", {}};
  for (const Ask& a : trace.asks) {
    load::SessionPlan session{.start_s = static_cast<double>(a.arrival) * 1e-9 / speed};
    std::uint32_t left = a.prompt_tokens;
    for (std::size_t i = 0; i < a.keys.size() && left > a.piece; ++i) {
      const std::uint64_t key = a.keys[i] != 0 ? a.keys[i] : mix64(a.number + i);
      session.opening.push_back({"user", mix64(key), a.piece, {}});
      left -= a.piece;
    }
    const bool keyed = a.keyed_tokens >= a.prompt_tokens && session.opening.size() < a.keys.size();
    const std::uint64_t last =
        keyed ? mix64(a.keys[session.opening.size()]) : mix64(~mix64(a.number));
    session.turns.push_back({.adds = {"user", last, left, {}},
                             .output_tokens = std::max<std::uint32_t>(a.answer_tokens, 1)});
    workload.sessions.push_back(std::move(session));
  }
  return workload;
}

}  // namespace

void add_live_options(CLI::App& app, LiveCliOptions& o) {
  app.add_option("--url", o.url, "send the trace to this server, with its own timing");
  app.add_option("--model", o.model, "with --url: the model (the first the server lists)")
      ->group(kRare);
  app.add_option("--api-key", o.api_key, "with --url: bearer key")->group(kRare);
  app.add_option("--vocabulary", o.vocabulary, "with --url: token ids are below this (32000)")
      ->check(CLI::Range(16, 1 << 24))
      ->group(kRare);
}

int replay_live(const std::string& file, double speed, const LiveCliOptions& o, bool json) {
  const auto trace = read_asks(file);
  if (!trace.ok()) return fail(kFailed, trace.error().message);
  load::Plan plan;
  auto endpoint = Endpoint::from_url(o.url);
  if (!endpoint.ok()) return fail(kUsage, endpoint.error().message);
  plan.endpoint = std::move(endpoint.value());
  if (!o.api_key.empty()) plan.headers = "Authorization: Bearer " + o.api_key + "\r\n";
  plan.ask.api = load::Api::token_ids;
  plan.ask.vocabulary = o.vocabulary;
  plan.timeout_s = o.timeout;
  plan.ask.model = o.model;
  if (o.model.empty()) {
    auto model = load::first_model(plan.endpoint, plan.headers);
    if (!model.ok()) return fail(kUnreachable, model.error().message, "is it running?");
    plan.ask.model = model.value();
  }
  const auto run = load::run_load(plan, workload_of_asks(trace.value(), speed));
  if (!run.ok()) return fail(run.error());
  const load::Summary summary = load::summarize(run.value(), {});
  if (json) {
    Json out{{"order", "live"}, {"url", o.url}, {"model", plan.ask.model}};
    out.update(load::to_json(summary));
    print_json(out);
  } else {
    fmt::print("{}", load::to_text(summary));
  }
  for (const std::string& why : summary.errors) fmt::print(stderr, "warning: {}\n", why);
  return summary.failed == summary.requests ? kUnreachable : summary.failed > 0 ? kFailed : kOk;
}

}  // namespace quire::cli
