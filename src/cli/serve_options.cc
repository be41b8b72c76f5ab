#include "cli/serve_options.h"

#include <cctype>
#include <charconv>
#include <filesystem>

#include "base/byte_size.h"
#include "cli/help.h"
#include "hub/hub_cache.h"
#include "tensor/gguf_parts.h"

#ifndef QUIRE_VERSION
#define QUIRE_VERSION "0"
#endif

namespace quire::cli {
namespace {

// Who may connect, and how much they may send.
void add_listener_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--host", o.host, "address to listen on (127.0.0.1)");
  app.add_option("--port", o.port, "port (8080); 0: any");
  app.add_option("--unix", o.unix_path, "listen on a socket at this path, not on a port")
      ->group(kRare);
  app.add_option("--unix-mode", o.unix_mode, "who may open it, as for chmod (0600)")->group(kRare);
  app.add_option("--tls-cert", o.tls_certificate, "speak TLS: a file with the certificate, PEM")
      ->group(kRare);
  app.add_option("--tls-key", o.tls_key, "and one with its key")->group(kRare);
  app.add_option("-a,--alias,--served-model-name", o.names, "name(s) of the model (its file's)");
  app.add_option("--api-key-file", o.api_key_file,
                 "lines of KEY [tenant=NAME] [admin]; a KEY has 8 characters");
  app.add_option("--api-key", o.api_key)->group("");
  app.add_option("--drain", o.drain, "seconds to finish in after Ctrl-C (30)")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--cors-origins", o.cors, "origins of web pages that may call")
      ->delimiter(',')
      ->group(kRare);
  app.add_option("--allowed-host", o.hosts,
                 "names by which clients call a server without keys, besides localhost")
      ->delimiter(',')
      ->group(kRare);
  app.add_option("--max-body", o.max_body, "longest request (32MiB)")->group(kRare);
  app.add_option("--max-connections", o.connections, "connections that are open at once (8192)")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kRare);
  app.add_option("--max-connections-per-address", o.connections_per_address,
                 "connections of one client address (three quarters of all)")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kRare);
}

// How requests share the engine.
void add_scheduling_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--max-num-seqs,--parallel", o.service.sequences_max,
                 "answers that decode together (64)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-num-seqs-per-tenant", o.service.sequences_max_per_tenant,
                 "answers of one tenant that decode together (with keys: three quarters of all)")
      ->check(CLI::Range(1, 4096))
      ->group(kRare);
  app.add_option("--max-queue", o.service.queue_max, "requests that wait (512)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--max-queue-per-tenant", o.service.queue_max_per_tenant,
                 "requests of one tenant that wait (with keys: half of all)")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kRare);
  app.add_option("--prompt-tokens", o.service.prompt_tokens,
                 "rows of prompts in a step that also makes answers (96; on a GPU all)")
      ->check(CLI::Range(1, 65536))
      ->group(kRare);
  app.add_option("--step-tokens", o.service.step_tokens, "rows of one step (512)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--speculative-config", o.speculative,
                 "drafts, as JSON: {\"method\": \"auto\"} (none)");
  app.add_option("--explain-keep", o.service.requests_kept, "requests that explain remembers")
      ->group(kRare);
}

// How the words of requests are understood.
void add_dialect_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--pooling", o.pooling, "what embeddings are made of: last (default), mean or cls")
      ->check(CLI::IsMember({"last", "mean", "cls"}))
      ->group(kRare);
  app.add_option("--responses-max", o.responses_max,
                 "responses that are stored (1024), in at most 64 MiB; 0: none")
      ->check(CLI::Range(0, 1'000'000))
      ->group(kRare);
  app.add_option("--responses-ttl", o.responses_ttl, "seconds that a response stays stored (3600)")
      ->check(CLI::Range(1.0, 366 * 86400.0))
      ->group(kRare);
  app.add_flag("--trust-request-templates", o.trust_templates, "requests may bring a chat_template")
      ->group(kRare);
  app.add_option("--tool-call-parser", o.parsers.calls,
                 "how the model writes tool calls: hermes, mistral, llama3, none (auto)")
      ->group(kRare);
  app.add_option("--reasoning-parser", o.parsers.reasoning,
                 "how the model writes its reasoning: think, mistral, openai, none (auto)")
      ->group(kRare);
  app.add_flag("--no-parse-special", o.no_special,
               "text of /v1/completions never becomes control tokens")
      ->group(kRare);
  app.add_option("--cache-accounting", o.accounting,
                 "cached tokens in answers: exact, or as the dialect's vendor counts (exact)")
      ->check(CLI::IsMember({"exact", "vendor"}))
      ->group(kRare);
  app.add_option("--cache-min-tokens", o.cache_min_tokens,
                 "cache breakpoints after fewer tokens are ignored (one block; vendor: 1024)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(kRare);
  app.add_flag("--anthropic-strict", o.anthropic_strict,
               "refuse what Anthropic's version 2026-10-21 refuses")
      ->group(kRare);
  app.add_option("--gemini-min-cached-tokens", o.cached_tokens_min,
                 "fewest tokens of a cachedContents (1)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(kRare);
  app.add_flag("--strict-fields", o.strict, "refuse JSON fields that are not known")->group(kRare);
}

// What is written down and shown.
void add_observing_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--access-log", o.access_log, "one JSON line per request; - for stderr");
  app.add_option("--trace", o.trace, "a file for what the cache saw, without text: quire replay")
      ->group(kRare);
  app.add_option("--trace-max", o.trace_max, "bytes of that file (1GiB)")->group(kRare);
  app.add_option("--otlp", o.otlp,
                 "URL of an OpenTelemetry collector for traces (OTEL_EXPORTER_OTLP_ENDPOINT)")
      ->group(kRare);
  app.add_flag("--kv-no-text", o.no_text, "show no text of cached prompts")->group(kRare);
  app.add_flag("--no-metrics", o.no_metrics, "no /metrics")->group(kRare);
  app.add_flag("--metrics-auth", o.metrics_auth, "/metrics needs a key")->group(kRare);
}

void add_loading_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--lora-dir", o.model.adapter_dir,
                 "clients with an admin key may load adapters from this folder (off)")
      ->group(kRare);
}

void add_event_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--kv-events", o.events.endpoint,
                 "publish KV events over ZeroMQ: tcp://*:5557 (off)")
      ->group(kRare);
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

// --max-queue is also QUIRE_MAX_QUEUE.
void name_variables(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    std::string name = "QUIRE_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    option->envname(name);
  }
}

// More than one model behind one port.
void add_several_options(CLI::App& app, ServeOptions& o) {
  app.add_option("MORE", o.more_models, "more models; each is loaded when it is first asked for");
  app.add_option("--models-dir", o.models_dir, "serve all GGUF files and folders of models in it");
  app.add_option("--weights-memory", o.weights_memory,
                 "of several models: weights in memory at once (60 % of free)");
  app.add_option("--model-stay", o.model_stay,
                 "seconds that a model stays at least, once it was loaded (10)")
      ->check(CLI::Range(0.0, 86400.0))
      ->group(kRare);
}

}  // namespace

std::string default_name(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  if (const std::string repo = repo_of_snapshot(path); !repo.empty()) return repo;
  return p.extension() == ".gguf" ? gguf_stem(p.string()) : p.filename().string();
}

void add_serve_options(CLI::App& app, ServeOptions& o) {
  add_model_options(app, o.model);
  add_several_options(app, o);
  add_tier_options(app, o.model.tier, true);
  add_retention_options(app, o.model);
  add_adapter_options(app, o.model);
  add_listener_options(app, o);
  add_scheduling_options(app, o);
  add_event_options(app, o);
  add_loading_options(app, o);
  add_dialect_options(app, o);
  add_observing_options(app, o);
  app.add_flag("--dry-run", o.dry_run, "load and plan, then exit")->group(kRare);
  name_variables(app);
}

Result<ServerOptions> server_options(const ServeOptions& o, const std::string& model_path) {
  const auto body = parse_size(o.max_body);
  if (!body.ok()) return body.error();
  auto traces = TracerOptions::from_environment(std::getenv, o.otlp);
  if (!traces.ok()) return traces.error();
  if (const Status s = check_parser_names(o.parsers); !s.ok())
    return Error{Code::invalid,
                 s.error().message + "; leave it out, and the model's template decides"};
  if (o.tls_certificate.empty() != o.tls_key.empty())
    return Error{Code::invalid, "--tls-cert and --tls-key go together"};
  unsigned mode = 0;
  const char* const digits_end = o.unix_mode.data() + o.unix_mode.size();
  const auto [mode_end, mode_error] = std::from_chars(o.unix_mode.data(), digits_end, mode, 8);
  if (mode_error != std::errc{} || mode_end != digits_end || mode > 0777)
    return Error{Code::invalid, "--unix-mode wants digits as chmod does: 0600, 0660"};
  ServerOptions options;
  options.http = {.host = o.host,
                  .port = o.port,
                  .unix_path = o.unix_path,
                  .unix_mode = mode,
                  .tls_certificate = o.tls_certificate,
                  .tls_key = o.tls_key,
                  .connections_max = o.connections,
                  .connections_per_address_max = o.connections_per_address > 0
                                                     ? o.connections_per_address
                                                     : std::max(1u, o.connections / 4 * 3),
                  .body_bytes_max = body.value()};
  options.models = o.names.empty() ? std::vector{default_name(model_path)} : o.names;
  options.model_path = model_path;
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
    return s.error();
  options.metrics = !o.no_metrics;
  options.metrics_auth = o.metrics_auth;
  options.traces = std::move(traces.value());
  options.responses_max = o.responses_max;
  options.responses_ttl = static_cast<Nanoseconds>(o.responses_ttl * 1e9);
  return options;
}

Result<ServiceOptions> service_options(const ServeOptions& o) {
  ServiceOptions options = o.service;
  if (!o.speculative.empty()) {
    const auto drafts = parse_draft_options(o.speculative);
    if (!drafts.ok()) return drafts.error();
    options.drafts = drafts.value();
  }
  if (o.api_key_file.empty()) return options;
  // With keys there are tenants, and none of them may take all places.
  if (options.queue_max_per_tenant == 0) options.queue_max_per_tenant = (options.queue_max + 1) / 2;
  if (options.sequences_max_per_tenant == 0)
    options.sequences_max_per_tenant = (options.sequences_max * 3 + 3) / 4;
  return options;
}

}  // namespace quire::cli
