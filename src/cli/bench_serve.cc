// cli/bench_serve.cc - `quire bench serve`: load on any OpenAI-compatible server, and what it did
// to the answers.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "cli/command.h"
#include "cli/help.h"
#include "lab/load/plot.h"
#include "lab/load/run.h"
#include "lab/load/summary.h"

namespace quire::cli {
namespace {

using namespace load;

struct Options {
  std::string url, model, api_key, api = "chat", trace, slo, extra, json_file, plot, records, label;
  WorkloadShape shape;
  std::uint32_t concurrency = 8, warmup = 0, vocabulary = 32000;
  double rate = 0, timeout = 600, speed = 1;
  bool even = false, obey_eos = false, json = false;
};

std::string from_environment(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value && *value ? value : fallback;
}

Result<Workload> workload_of(const Options& o) {
  if (o.shape.kind != "trace") {
    TRY(Workload workload, make_workload(o.shape));
    if (o.rate > 0) start_by_clock(workload, o.rate, !o.even, o.shape.seed);
    return workload;
  }
  if (o.trace.empty()) return Error{Code::invalid, "a trace needs its file: --trace FILE"};
  TRY(const std::string lines, read_file(o.trace));
  TRY(Workload workload, parse_trace(lines, o.trace));
  for (SessionPlan& s : workload.sessions) s.start_s /= o.speed;
  return workload;
}

Result<Plan> plan_of(const Options& o) {
  Plan plan;
  TRY(plan.endpoint, Endpoint::from_url(o.url));
  if (!o.api_key.empty()) plan.headers = "Authorization: Bearer " + o.api_key + "\r\n";
  plan.ask.api = o.api == "chat"          ? Api::chat
                 : o.api == "completions" ? Api::completions
                                          : Api::token_ids;
  plan.ask.vocabulary = o.vocabulary;
  plan.ask.ignore_eos = !o.obey_eos;
  if (!o.extra.empty()) {
    TRY(plan.ask.extra, parse_json(o.extra));
    if (!plan.ask.extra.is_object()) return Error{Code::invalid, "--extra is not a JSON object"};
  }
  const bool by_clock = o.rate > 0 || o.shape.kind == "trace";
  plan.concurrency = by_clock ? 0 : o.concurrency;
  plan.timeout_s = o.timeout;
  plan.ask.model = o.model;
  if (o.model.empty()) {
    TRY(plan.ask.model, first_model(plan.endpoint, plan.headers));
  }
  TRY(plan.ask.calibration, calibrate(plan));
  return plan;
}

// The first sessions, run one after the other before the clock starts.
Workload take_first(Workload& workload, std::size_t count) {
  count = std::min(count, workload.sessions.size());
  Workload first{workload.name, {}};
  const auto end = workload.sessions.begin() + static_cast<std::ptrdiff_t>(count);
  first.sessions.assign(workload.sessions.begin(), end);
  workload.sessions.erase(workload.sessions.begin(), end);
  if (!workload.sessions.empty()) {
    const double start = workload.sessions.front().start_s;
    for (SessionPlan& s : workload.sessions) s.start_s -= start;
  }
  return first;
}

Json settings(const Options& o, const Plan& plan, const Workload& workload) {
  Json s{{"workload", workload.name}, {"sessions", workload.sessions.size()}, {"api", o.api}};
  if (workload.name != "trace") {
    s.update({{"input_tokens", o.shape.input},
              {"output_tokens", o.shape.output},
              {"prefix_tokens", o.shape.prefix},
              {"groups", o.shape.groups},
              {"turns", o.shape.turns},
              {"seed", o.shape.seed}});
  }
  if (plan.concurrency > 0)
    s["concurrency"] = plan.concurrency;
  else
    s["rate"] = o.rate;
  return s;
}

std::string record_lines(const Measured& run) {
  std::string lines;
  for (const Record& r : run.requests)
    lines += Json{{"session", r.session},
                  {"turn", r.turn},
                  {"sent_s", r.sent_s},
                  {"ttft_ms", r.first_s < 0 ? Json() : Json((r.first_s - r.sent_s) * 1e3)},
                  {"total_ms", (r.end_s - r.sent_s) * 1e3},
                  {"prompt_tokens", r.usage.prompt},
                  {"cached_tokens", r.usage.cached ? Json(*r.usage.cached) : Json()},
                  {"output_tokens", r.usage.output},
                  {"error", r.error.empty() ? Json() : Json(r.error)}}
                 .dump(-1, ' ', false, Json::error_handler_t::replace) +
             "\n";
  return lines;
}

int report(const Options& o, const Plan& plan, const Workload& workload, const Measured& run,
           const Slo& slo) {
  const Summary summary = summarize(run, slo);
  Json out{{"bench", "serve"}, {"label", o.label}, {"url", o.url}, {"model", plan.ask.model}};
  out["settings"] = settings(o, plan, workload);
  out.update(to_json(summary));
  if (o.json)
    print_json(out);
  else
    fmt::print("{}", to_text(summary));
  const std::string title = fmt::format(
      "{}: {}, {}", o.label.empty() ? plan.ask.model : o.label, workload.name,
      plan.concurrency > 0 ? fmt::format("{} at a time", plan.concurrency) : "by the clock");
  const std::pair<const std::string&, std::string> files[] = {{o.json_file, out.dump(1) + "\n"},
                                                              {o.plot, plot_svg(run, title)},
                                                              {o.records, record_lines(run)}};
  for (const auto& [path, text] : files)
    if (!path.empty())
      if (const Status written = write_file(path, text); !written.ok())
        return fail(written.error());
  return summary.failed == summary.requests ? kUnreachable : summary.failed > 0 ? kFailed : kOk;
}

int run(const Options& o) {
  const auto slo = parse_slo(o.slo);
  if (!slo.ok()) return fail(slo.error());
  auto workload = workload_of(o);
  if (!workload.ok()) return fail(workload.error());
  auto plan = plan_of(o);
  if (!plan.ok())
    return plan.error().code == Code::unavailable
               ? fail(kUnreachable, plan.error().message, "is it running? --url says where")
               : fail(plan.error());
  if (isatty(STDERR_FILENO))
    plan.value().progress = [](std::size_t ended, std::size_t of) {
      fmt::print(stderr, "\r{} of {}{}", ended, of, ended == of ? "\r\033[K" : "");
    };
  if (const Workload first = take_first(workload.value(), o.warmup); !first.sessions.empty()) {
    Plan alone = plan.value();
    alone.concurrency = 1;
    if (const auto warm = run_load(alone, first); !warm.ok()) return fail(warm.error());
  }
  const auto measured = run_load(plan.value(), workload.value());
  if (!measured.ok()) return fail(measured.error());
  return report(o, plan.value(), workload.value(), measured.value(), slo.value());
}

std::function<int()> declare(CLI::App& app) {
  auto o = std::make_shared<Options>();
  o->url = from_environment("QUIRE_URL", "http://127.0.0.1:8080");
  o->api_key = from_environment("QUIRE_API_KEY", "");
  WorkloadShape& s = o->shape;
  app.add_option("--url", o->url, "the server ($QUIRE_URL or http://127.0.0.1:8080)");
  app.add_option("--workload", s.kind, "random, shared-prefix, agent or trace (random)")
      ->check(CLI::IsMember({"random", "shared-prefix", "agent", "trace"}));
  app.add_option("-n,--sessions,--requests", s.sessions, "conversations; 1 request each (32)");
  app.add_option("--input", s.input, "new tokens of each turn (256)");
  app.add_option("--output", s.output, "tokens of each answer (64)");
  app.add_option("--prefix", s.prefix, "tokens that prompts begin with in common (0)");
  app.add_option("--turns", s.turns, "turns of an agent's conversation (1)");
  app.add_option("-c,--concurrency", o->concurrency, "closed loop: conversations at once (8)")
      ->check(CLI::Range(1, 10000));
  app.add_option("--rate", o->rate, "open loop: conversations begun per second (Poisson)");
  app.add_option("--trace", o->trace, "JSON lines to replay (docs/load.md)");
  app.add_option("--slo", o->slo, "limits of goodput, as ttft=500ms,tpot=40ms");
  app.add_option("--warmup", o->warmup, "conversations run before measuring (0)");
  app.add_option("--api", o->api, "chat, completions or ids (chat)")
      ->check(CLI::IsMember({"chat", "completions", "ids"}));
  app.add_flag("--json", o->json, "print one JSON object");
  app.add_option("--out", o->json_file, "write the JSON object to this file");
  app.add_option("--plot", o->plot, "write a picture (SVG) to this file");

  const auto rare = [&](CLI::Option* option) { option->group(kRare); };
  rare(app.add_option("--groups", s.groups, "different prefixes of shared-prefix (1)"));
  rare(app.add_option("--think", s.think_s, "seconds between an answer and the next turn (0)"));
  rare(app.add_flag("--even", o->even, "evenly spaced instead of Poisson"));
  rare(app.add_option("--speed", o->speed, "replay a trace this many times faster (1)")
           ->check(CLI::PositiveNumber));
  rare(app.add_option("--model", o->model, "model name (the first the server lists)"));
  rare(app.add_option("--api-key", o->api_key, "bearer key ($QUIRE_API_KEY)"));
  rare(app.add_option("--seed", s.seed, "another seed shares no prompt (1)"));
  rare(app.add_option("--vocabulary", o->vocabulary, "token ids are below this (32000)")
           ->check(CLI::Range(1024, 1 << 24)));
  rare(app.add_flag("--obey-eos", o->obey_eos, "let answers end early"));
  rare(app.add_option("--extra", o->extra, "JSON object added to every request"));
  rare(app.add_option("--timeout", o->timeout, "seconds until a request is given up (600)"));
  rare(app.add_option("--records", o->records, "write one JSON line per request to this file"));
  rare(app.add_option("--label", o->label, "a name for the picture and the JSON object"));
  return [o] { return run(*o); };
}

}  // namespace

extern const Command kBenchServe = {
    "bench serve", "put load on a server and measure its answers",
    "examples:\n"
    "  quire bench serve --url http://127.0.0.1:8080 -c 8 -n 64 --input 256 --output 64\n"
    "  quire bench serve --workload agent --prefix 3000 --turns 6 -n 16 -c 16 --plot agent.svg\n"
    "  quire bench serve --rate 2 -n 200 --slo ttft=500ms,tpot=40ms --json",
    declare};

}  // namespace quire::cli
