// cli/serve_options.h - the options of `quire serve`, and what the server is told by them.
#pragma once

#include "cli/model_options.h"
#include "server/server.h"

namespace quire::cli {

struct ServeOptions {
  ModelOptionsCli model;
  std::vector<std::string> more_models;  // behind the first one
  std::string models_dir, weights_memory;
  std::string unix_path, unix_mode = "0600", tls_certificate, tls_key;
  double model_stay = 10;
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

std::string default_name(const std::string& model_path);  // that a model is served under

void add_serve_options(CLI::App& app, ServeOptions& options);

// What is wrong with the options is found here, before the model is loaded.
Result<ServerOptions> server_options(const ServeOptions& options, const std::string& model_path);
Result<ServiceOptions> service_options(const ServeOptions& options);

}  // namespace quire::cli
