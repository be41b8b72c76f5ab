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

#include "base/byte_size.h"
#include "cli/command.h"
#include "cli/serve_options.h"
#include "engine/cache_trace.h"

namespace quire::cli {
namespace {

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

// The port, where it could be had. Clients that connect while the model loads are told so.
Result<std::unique_ptr<Door>> open_door(const ServeOptions& o, const HttpServerOptions& http) {
  if (o.dry_run) return std::unique_ptr<Door>();
  return Door::open(http);
}

Result<std::unique_ptr<CacheTrace>> start_trace(const ServeOptions& o, Service& service,
                                                std::uint64_t bytes_max) {
  if (o.trace.empty()) return std::unique_ptr<CacheTrace>();
  return CacheTrace::start(service,
                           {.path = o.trace, .bytes_max = bytes_max, .evictor = o.model.evictor});
}

// "m kv=f16, 1.00 GiB in blocks of 32 tokens"
std::string describe(const std::string& name, const Runtime& r) {
  std::string text = fmt::format("model={} kv={}, {} in blocks of {} tokens", name, r.kv_format(),
                                 human_bytes(static_cast<double>(r.kv_cache_bytes())),
                                 r.geometry().tokens_per_block);
  const Executor& executor = r.executor();
  if (executor.traits().device != DeviceKind::cpu)
    text += fmt::format(" weights={}, {}", executor.weights().packed ? "packed" : "bf16",
                        human_bytes(static_cast<double>(executor.weights().bytes)));
  return text;
}

void greet(const std::string& url, std::chrono::steady_clock::time_point began) {
  if (!isatty(STDERR_FILENO)) return;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print(stderr,
             "ready after {:.1f} s. Open {} in a browser, or\n"
             "  curl {}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
             "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n"
             "Ctrl-C ends it.\n",
             seconds, url, url);
}

int serve(const ServeOptions& o) {
  if (!o.api_key.empty())
    return fail(kUsage, "a key on the command line can be read by everybody on this machine",
                "put it into a file that only you can read, and give --api-key-file FILE");
  const auto path = find_model(o.model);
  if (!path.ok()) return fail(path.error());
  auto options = server_options(o, path.value());
  if (!options.ok()) return fail(options.error());
  const auto scheduling = service_options(o);
  if (!scheduling.ok()) return fail(scheduling.error());
  const auto trace_max = parse_size(o.trace_max);
  if (!trace_max.ok()) return fail(trace_max.error());
  const sigset_t signals = block_signals();  // before any thread is there
  allow_descriptors();
  return_memory();

  // Errors in keys or port are reported before the model is loaded.
  auto keys = load_keys(options.value());
  if (!keys.ok()) return fail(keys.error());
  options.value().keys = std::move(keys.value());
  auto door = open_door(o, options.value().http);
  if (!door.ok())
    return door.error().code == Code::unavailable ? fail(kCannotBind, door.error().message)
                                                  : fail(door.error());

  const auto began = std::chrono::steady_clock::now();
  ModelOptionsCli model = o.model;
  if (!o.api_key_file.empty()) model.tenant_pin_share = 0.5;
  auto runtime = open_runtime(model);
  if (!runtime.ok()) return fail(runtime.error());
  keep_event_numbers(options.value().kv_events, model.tier.dir);
  auto service = Service::start(std::move(runtime.value()), scheduling.value());
  if (!service.ok()) return fail(service.error());
  const Runtime& r = service.value()->runtime();
  const std::string description = describe(options.value().models.front(), r);
  options.value().folder = r.kv_dir();
  if (o.dry_run) {
    fmt::print(stderr, "would serve {}\n", description);
    service.value()->stop();
    return kOk;
  }
  auto server = Server::start(std::move(service.value()), std::move(options.value()),
                              std::move(door.value()));
  if (!server.ok()) return fail(server.error());
  auto trace = start_trace(o, server.value()->service(), trace_max.value());
  if (!trace.ok()) return fail(kFailed, trace.error().message);
  const std::string url = fmt::format("http://{}:{}", o.host, server.value()->port());
  fmt::print(stderr, "listening on {} {}\n", url, description);
  greet(url, began);
  return watch(*server.value(), std::move(trace.value()), signals, o.drain);
}

std::function<int()> declare_serve(CLI::App& app) {
  auto o = std::make_shared<ServeOptions>();
  add_serve_options(app, *o);
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
