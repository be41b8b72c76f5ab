// cli/serve.cc - `quire serve`: the model over HTTP.
#include <fmt/core.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/model_options.h"
#include "engine/cache_trace.h"
#include "server/server.h"

#ifndef QUIRE_VERSION
#define QUIRE_VERSION "0"
#endif

namespace quire::cli {
namespace {

struct ServeOptions {
  ModelOptionsCli model;
  ServiceOptions service;
  std::vector<std::string> names, cors, hosts;
  std::string host = "127.0.0.1", api_key_file, api_key, access_log, otlp, max_body = "32MiB",
              speculative, trace, trace_max = "1GiB", pooling = "last", events_config,
              events_form = "map";
  KvEventsOptions events;
  std::uint16_t port = 8080;
  std::uint32_t connections = 8192, connections_per_address = 0;
  double drain = 30, responses_ttl = 3600;
  std::uint32_t responses_max = 1024;
  std::string accounting = "exact";
  std::optional<std::uint32_t> cache_min_tokens;
  bool anthropic_strict = false;
  std::uint32_t cached_tokens_min = 1;
  ParserNames parsers;
  bool no_special = false, trust_templates = false;
  bool strict = false, no_text = false, no_metrics = false, metrics_auth = false, dry_run = false;
};

std::string default_name(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

// Signals are taken by sigtimedwait alone, so that no handler runs on the engine's thread.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Every connection needs a file descriptor, so the limit is raised as far as this user may.
void allow_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Memory of large requests goes back to the system when they end, instead of staying with the
// thread that worked on them.
void return_memory() {
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  mallopt(M_ARENA_MAX, 2);
}

// The next signal, or 0 when none came in time.
int next_signal(const sigset_t& set, std::chrono::milliseconds limit) {
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &time);
  return signal > 0 ? signal : 0;
}

// A grammar that is being compiled cannot be interrupted. If there is one, the process just ends.
int stop_now(Server& server, std::unique_ptr<CacheTrace> trace, int code) {
  trace.reset();  // while the engine can still be asked
  server.stop();
  if (server.quiet_within(std::chrono::milliseconds(500))) return code;
  std::fflush(nullptr);
  std::_Exit(code);
}

// Runs until a signal asks it to end. Running requests may then finish.
int watch(Server& server, std::unique_ptr<CacheTrace> trace, const sigset_t& signals,
          double drain_seconds) {
  std::uint64_t trimmed_at = 0;  // requests seen when memory was last given back
  while (true) {
    const int signal = next_signal(signals, std::chrono::seconds(2));
    if (signal == 0) {
      if (const std::uint64_t seen = server.requests_seen(); seen != trimmed_at && server.idle()) {
        malloc_trim(0);  // a crowd of small requests leaves many small holes
        trimmed_at = seen;
      }
      if (const auto news = server.look_at_model_files())
        fmt::print(stderr, "warning: {}\n", *news);
    } else if (signal == SIGHUP) {
      if (const Status s = server.reload(); !s.ok())
        fmt::print(stderr, "warning: {}\n", s.error().message);
    } else if (signal == SIGUSR1) {
      fmt::print(stderr, "{}\n", server.statistics().dump());
    } else {
      break;
    }
  }
  server.drain();
  if (!server.idle())
    fmt::print(stderr, "finishing what is running, for at most {} s; a second signal ends it now\n",
               drain_seconds);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(static_cast<std::int64_t>(drain_seconds * 1000));
  while (!server.idle() && std::chrono::steady_clock::now() < end) {
    const int signal = next_signal(signals, std::chrono::milliseconds(20));
    if (signal == SIGINT || signal == SIGTERM)
      return stop_now(server, std::move(trace), kInterrupted);
  }
  return stop_now(server, std::move(trace), kOk);
}

// Numbers of events are kept in the folder of cached blocks, or in the cache folder by address.
void keep_event_numbers(KvEventsOptions& events, const std::string& kv_dir) {
  if (events.endpoint.empty() || !events.state.empty()) return;
  std::string name = "kv-events-" + events.endpoint;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.') c = '-';
  const std::filesystem::path folder =
      kv_dir.empty() || kv_dir == "auto" ? std::filesystem::path(model_cache_folder()).parent_path()
                                         : std::filesystem::path(kv_dir);
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  events.state = (folder / name).string();
}

void add_event_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--kv-events", o.events.endpoint,
                 "publish KV events over ZeroMQ: tcp://*:5557 (off)");
  app.add_option("--kv-events-replay", o.events.replay,
                 "answer subscribers that missed some: tcp://*:5558 (off)")
      ->group(kRare);
  app.add_option("--kv-events-topic", o.events.topic, "their topic (kv@HOST:PORT@MODEL)")
      ->group(kRare);
  app.add_option("--kv-events-state", o.events.state,
                 "file that keeps their numbers over restarts (in --kv-dir, or the cache folder)")
      ->group(kRare);
  app.add_option("--kv-events-format", o.events_form,
                 "map, or array for subscribers from before 2026")
      ->check(CLI::IsMember({"map", "array"}))
      ->group(kRare);
  app.add_option("--kv-events-config", o.events_config, "the same as JSON, as vLLM has it")
      ->group(kRare);
  app.add_option("--kv-events-curve", o.events.curve_file,
                 "file with a CURVE secret key: events are encrypted")
      ->group(kRare);
  app.add_flag("--kv-events-public", o.events.open,
               "other machines may subscribe; events hold the tokens of every tenant")
      ->group(kRare);
}

int serve(const ServeOptions& o) {
  if (!o.api_key.empty())
    return fail(kUsage, "a key on the command line can be read by everybody on this machine",
                "put it into a file that only you can read, and give --api-key-file FILE");
  const auto path = find_model(o.model);
  if (!path.ok()) return fail(path.error());
  const auto body = parse_size(o.max_body);
  if (!body.ok()) return fail(body.error());
  const auto trace_max = parse_size(o.trace_max);
  if (!trace_max.ok()) return fail(trace_max.error());
  auto traces = TracerOptions::from_environment(std::getenv, o.otlp);
  if (!traces.ok()) return fail(traces.error());
  const auto drafts = o.speculative.empty() ? Result<DraftOptions>(DraftOptions{})
                                            : parse_draft_options(o.speculative);
  if (!drafts.ok()) return fail(drafts.error());
  if (const Status s = check_parser_names(o.parsers); !s.ok())
    return fail(kUsage, s.error().message, "leave it out, and the model's template decides");
  const sigset_t signals = block_signals();  // before any thread is there
  allow_descriptors();
  return_memory();

  ServerOptions options;
  options.http = {.host = o.host,
                  .port = o.port,
                  .connections_max = o.connections,
                  .connections_per_address_max = o.connections_per_address > 0
                                                     ? o.connections_per_address
                                                     : std::max(1u, o.connections / 4 * 3),
                  .body_bytes_max = body.value()};
  options.models = o.names.empty() ? std::vector{default_name(path.value())} : o.names;
  options.model_path = path.value();
  options.version = QUIRE_VERSION;
  options.api_key_file = o.api_key_file;
  options.cors_origins = o.cors;
  options.allowed_hosts = o.hosts;
  options.access_log = o.access_log;
  options.strict_fields = o.strict;
  options.parse_special = !o.no_special;
  options.trust_templates = o.trust_templates;
  options.vendor_accounting = o.accounting == "vendor";
  options.cache_min_tokens = o.cache_min_tokens;
  options.anthropic_strict = o.anthropic_strict;
  options.cached_tokens_min = o.cached_tokens_min;
  options.parsers = o.parsers;
  options.show_text = !o.no_text;
  options.pooling = *find_pooling(o.pooling);
  options.kv_events = o.events;
  if (o.events_form == "array") options.kv_events.form = EventForm::array;
  if (const Status s =
          o.events_config.empty() ? Status() : options.kv_events.take_config(o.events_config);
      !s.ok())
    return fail(s.error());
  options.metrics = !o.no_metrics;
  options.metrics_auth = o.metrics_auth;
  options.traces = std::move(traces.value());
  // Errors in keys or port are reported before the model is loaded. Clients that connect meanwhile
  // are told that it loads.
  auto keys = load_keys(options);
  if (!keys.ok()) return fail(keys.error());
  options.keys = std::move(keys.value());
  std::unique_ptr<Door> door;
  if (!o.dry_run) {
    auto opened = Door::open(options.http);
    if (!opened.ok())
      return opened.error().code == Code::unavailable ? fail(kCannotBind, opened.error().message)
                                                      : fail(opened.error());
    door = std::move(opened.value());
  }

  const auto began = std::chrono::steady_clock::now();
  ModelOptionsCli model = o.model;
  if (!o.api_key_file.empty()) model.tenant_pin_share = 0.5;
  auto runtime = open_runtime(model);
  if (!runtime.ok()) return fail(runtime.error());
  keep_event_numbers(options.kv_events, model.tier.dir);
  ServiceOptions service_options = o.service;
  service_options.drafts = drafts.value();
  if (service_options.queue_max_per_tenant == 0 && !o.api_key_file.empty())
    service_options.queue_max_per_tenant = (service_options.queue_max + 1) / 2;
  if (service_options.sequences_max_per_tenant == 0 && !o.api_key_file.empty())
    service_options.sequences_max_per_tenant = (service_options.sequences_max * 3 + 3) / 4;
  auto service = Service::start(std::move(runtime.value()), service_options);
  if (!service.ok()) return fail(service.error());
  const Runtime& r = service.value()->runtime();

  const std::string name = options.models.front();
  const std::string kv = fmt::format("{}, {} in blocks of {} tokens", r.kv_format(),
                                     human_bytes(static_cast<double>(r.kv_cache_bytes())),
                                     r.geometry().tokens_per_block);
  const std::string weights =
      r.executor().traits().device != DeviceKind::cpu
          ? fmt::format(" weights={}, {}", r.executor().weights().packed ? "packed" : "bf16",
                        human_bytes(static_cast<double>(r.executor().weights().bytes)))
          : "";
  options.folder = r.kv_dir();
  options.responses_max = o.responses_max;
  options.responses_ttl = static_cast<Nanoseconds>(o.responses_ttl * 1e9);
  if (o.dry_run) {
    fmt::print(stderr, "would serve model={} kv={}{}\n", name, kv, weights);
    service.value()->stop();
    return kOk;
  }
  auto server = Server::start(std::move(service.value()), std::move(options), std::move(door));
  if (!server.ok()) return fail(server.error());
  std::unique_ptr<CacheTrace> trace;
  if (!o.trace.empty()) {
    auto begun = CacheTrace::start(
        server.value()->service(),
        {.path = o.trace, .bytes_max = trace_max.value(), .evictor = o.model.evictor});
    if (!begun.ok()) return fail(kFailed, begun.error().message);
    trace = std::move(begun.value());
  }
  const std::string url = fmt::format("http://{}:{}", o.host, server.value()->port());
  fmt::print(stderr, "listening on {} model={} kv={}{}\n", url, name, kv, weights);
  if (isatty(STDERR_FILENO)) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    fmt::print(stderr,
               "ready after {:.1f} s. Open {} in a browser, or\n"
               "  curl {}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
               "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n"
               "Ctrl-C ends it.\n",
               seconds, url, url);
  }
  return watch(*server.value(), std::move(trace), signals, o.drain);
}

std::function<int()> declare_serve(CLI::App& app) {
  auto o = std::make_shared<ServeOptions>();
  add_model_options(app, o->model);
  add_tier_options(app, o->model.tier, true);
  add_retention_options(app, o->model);
  app.add_option("--host", o->host, "address to listen on (127.0.0.1)");
  app.add_option("--port", o->port, "port (8080); 0: any");
  app.add_option("-a,--alias,--served-model-name", o->names, "name(s) of the model (its file's)");
  app.add_option("--api-key-file", o->api_key_file,
                 "lines of KEY [tenant=NAME] [admin]; a KEY has 8 characters");
  app.add_option("--api-key", o->api_key)->group("");
  app.add_option("--max-num-seqs,--parallel", o->service.sequences_max,
                 "answers that decode together (64)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-num-seqs-per-tenant", o->service.sequences_max_per_tenant,
                 "answers of one tenant that decode together (with keys: three quarters of all)")
      ->check(CLI::Range(1, 4096))
      ->group(kRare);
  app.add_option("--max-queue", o->service.queue_max, "requests that wait (512)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--max-queue-per-tenant", o->service.queue_max_per_tenant,
                 "requests of one tenant that wait (with keys: half of all)")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kRare);
  app.add_option("--prompt-tokens", o->service.prompt_tokens,
                 "rows of prompts in a step that also makes answers (96; on a GPU all)")
      ->check(CLI::Range(1, 65536))
      ->group(kRare);
  app.add_option("--step-tokens", o->service.step_tokens, "rows of one step (512)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--speculative-config", o->speculative,
                 "drafts, as JSON: {\"method\": \"auto\"} (none)");
  add_event_options(app, *o);
  app.add_option("--pooling", o->pooling,
                 "what embeddings are made of: last (default), mean or cls")
      ->check(CLI::IsMember({"last", "mean", "cls"}))
      ->group(kRare);
  app.add_option("--access-log", o->access_log, "one JSON line per request; - for stderr");
  app.add_option("--trace", o->trace, "a file for what the cache saw, without text: quire replay")
      ->group(kRare);
  app.add_option("--trace-max", o->trace_max, "bytes of that file (1GiB)")->group(kRare);
  app.add_option("--otlp", o->otlp,
                 "URL of an OpenTelemetry collector for traces (OTEL_EXPORTER_OTLP_ENDPOINT)")
      ->group(kRare);
  app.add_option("--drain", o->drain, "seconds to finish in after Ctrl-C (30)")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--cors-origins", o->cors, "origins of web pages that may call")
      ->delimiter(',')
      ->group(kRare);
  app.add_option("--allowed-host", o->hosts,
                 "names by which clients call a server without keys, besides localhost")
      ->delimiter(',')
      ->group(kRare);
  app.add_option("--max-body", o->max_body, "longest request (32MiB)")->group(kRare);
  app.add_option("--max-connections", o->connections, "connections that are open at once (8192)")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kRare);
  app.add_option("--max-connections-per-address", o->connections_per_address,
                 "connections of one client address (three quarters of all)")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kRare);
  app.add_option("--responses-max", o->responses_max,
                 "responses that are stored (1024), in at most 64 MiB; 0: none")
      ->check(CLI::Range(0, 1'000'000))
      ->group(kRare);
  app.add_option("--responses-ttl", o->responses_ttl, "seconds that a response stays stored (3600)")
      ->check(CLI::Range(1.0, 366 * 86400.0))
      ->group(kRare);
  app.add_flag("--trust-request-templates", o->trust_templates,
               "requests may bring a chat_template")
      ->group(kRare);
  app.add_option("--tool-call-parser", o->parsers.calls,
                 "how the model writes tool calls: hermes, mistral, llama3, none (auto)")
      ->group(kRare);
  app.add_option("--reasoning-parser", o->parsers.reasoning,
                 "how the model writes its reasoning: think, mistral, openai, none (auto)")
      ->group(kRare);
  app.add_flag("--no-parse-special", o->no_special,
               "text of /v1/completions never becomes control tokens")
      ->group(kRare);
  app.add_option("--explain-keep", o->service.requests_kept, "requests that explain remembers")
      ->group(kRare);
  app.add_option("--cache-accounting", o->accounting,
                 "cached tokens in answers: exact, or as the dialect's vendor counts (exact)")
      ->check(CLI::IsMember({"exact", "vendor"}))
      ->group(kRare);
  app.add_option("--cache-min-tokens", o->cache_min_tokens,
                 "cache breakpoints after fewer tokens are ignored (one block; vendor: 1024)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(kRare);
  app.add_flag("--anthropic-strict", o->anthropic_strict,
               "refuse what Anthropic's version 2026-10-21 refuses")
      ->group(kRare);
  app.add_option("--gemini-min-cached-tokens", o->cached_tokens_min,
                 "fewest tokens of a cachedContents (1)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(kRare);
  app.add_flag("--strict-fields", o->strict, "refuse JSON fields that are not known")->group(kRare);
  app.add_flag("--kv-no-text", o->no_text, "show no text of cached prompts")->group(kRare);
  app.add_flag("--no-metrics", o->no_metrics, "no /metrics")->group(kRare);
  app.add_flag("--metrics-auth", o->metrics_auth, "/metrics needs a key")->group(kRare);
  app.add_flag("--dry-run", o->dry_run, "load and plan, then exit")->group(kRare);
  for (CLI::Option* option : app.get_options()) {  // --max-queue is also QUIRE_MAX_QUEUE
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    std::string name = "QUIRE_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    option->envname(name);
  }
  return [o] { return serve(*o); };
}

}  // namespace

extern const Command kServe = {
    "serve", "serve a model over HTTP",
    "examples:\n"
    "  quire serve                                  the default model on 127.0.0.1:8080\n"
    "  quire serve model.gguf --port 9000 -a m      under the name m\n"
    "  quire serve model.gguf --host 0.0.0.0 --api-key-file keys.txt",
    declare_serve};

}  // namespace quire::cli
