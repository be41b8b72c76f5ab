// server/server.h - the service over HTTP: routes, keys, request ids, logs.
//
//   TRY(auto server, Server::start(std::move(service), {.http = {.port = 8080}, .models = {"m"}}));
//   server->drain();  while (!server->idle()) ...;  server->stop();
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/sampling_defaults.h"
#include "engine/service.h"
#include "engine/session_store.h"
#include "net/http_server.h"
#include "server/access_log.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/dialect/dialect.h"
#include "server/door.h"
#include "server/gate.h"
#include "server/generation.h"
#include "server/grammar.h"
#include "server/hit_history.h"
#include "server/kv_publisher.h"
#include "server/metrics.h"
#include "server/report.h"
#include "server/router.h"
#include "server/tracer.h"
#include "server/work_pool.h"

namespace quire {

class EventPump;  // server/kv_events.h
class KvJobs;     // server/kv_jobs.h

struct ServerOptions {
  HttpServerOptions http;
  std::vector<std::string> models;  // names of the model; the first is the one answers carry
  std::string model_path;
  std::string version = "0";
  std::string api_key_file;                // empty: no keys, everybody may do everything
  std::shared_ptr<const ApiKeys> keys;     // of the file, where it was read already
  std::vector<std::string> cors_origins;   // empty: none; "*": all
  std::vector<std::string> allowed_hosts;  // where there are no keys; besides names of this machine
  std::string access_log;                  // file, "-" for stderr, empty for none
  bool strict_fields = false;
  bool parse_special = true;       // raw prompts may spell control tokens
  bool trust_templates = false;    // requests may bring a chat_template
  ParserNames parsers = {};        // of tool calls and reasoning; empty: as the template reveals
  bool vendor_accounting = false;  // cached tokens in answers are counted as the vendor does
  std::optional<std::uint32_t> cache_min_tokens = {};  // breakpoints after fewer are ignored
  bool anthropic_strict = false;        // fields that Anthropic's newer versions refuse are refused
  bool show_text = true;                // previews of cached text in /v1/kv/tree
  Pooling pooling = Pooling::last;      // of embeddings, where requests do not say
  std::uint32_t cached_tokens_min = 1;  // of a cachedContents
  bool metrics = true, metrics_auth = false;
  std::optional<TracerOptions> traces = {};  // none: no traces
  KvEventsOptions kv_events = {};            // without an endpoint: no events over ZeroMQ
  std::string folder;  // what dialects keep is written to folders in it; empty: nowhere
  std::uint32_t responses_max = 1024;  // that are stored (/v1/responses)
  std::uint64_t responses_bytes_max = 64 << 20;
  Nanoseconds responses_ttl = 3'600'000'000'000;
};

// One request on its way through a handler.
struct Call {
  std::shared_ptr<Exchange> exchange;
  std::string id;  // x-request-id
  Caller caller;
  const Dialect* dialect = nullptr;
  const Route* route = nullptr;
  std::vector<std::string> arguments;  // of the path
  Nanoseconds began = 0;
  std::uint64_t bytes_in = 0;
  TraceContext trace;              // empty trace_id: not traced
  std::string span_id;             // of its own span
  bool logs_itself = false;        // a generation, which knows more
  std::shared_ptr<void> presence;  // counts as under way while it lives
  std::shared_ptr<Stop> stop;      // asked when the client leaves before the engine has its request

  HttpRequest& request() { return exchange->request(); }
  Origin origin() const;
  std::string client() const;    // whose it is when places and turns are shared out
  std::string short_id() const;  // ids of answers are made of it
  void respond(const Json& body, int status = 200) {
    exchange->respond(json_response(body, status));
  }
  void refuse(const ApiError& error) { exchange->respond(dialect->error(error, id)); }
};

// The same from another thread than the connection's.
inline void post_refusal(const std::shared_ptr<Call>& call, ApiError error) {
  call->exchange->post([call, error = std::move(error)] { call->refuse(error); });
}
inline void post_answer(const std::shared_ptr<Call>& call, Json body) {
  call->exchange->post([call, body = std::move(body)] { call->respond(body); });
}

class Server {
 public:
  // `door`: the port where it is open already; otherwise it is opened now.
  static Result<std::unique_ptr<Server>> start(std::unique_ptr<Service> service,
                                               ServerOptions options,
                                               std::unique_ptr<Door> door = nullptr);
  ~Server();

  std::uint16_t port() const { return door_->http().port(); }
  // Requests of this process (net/local_exchange.h). Any thread; `f` runs where requests are handled.
  void take(std::shared_ptr<Exchange> exchange) {
    post([this, x = std::move(exchange)]() mutable { handle(std::move(x)); });
  }
  void post(std::function<void()> f) { door_->http().post(std::move(f)); }
  void drain();       // new work is refused, what is here goes on
  bool idle() const;  // no request is being answered
  std::uint64_t requests_seen() const { return door_->http().counters().requests_total; }
  void stop();
  // After stop(): whether no thread works for a request any more. A grammar that is being compiled
  // cannot be stopped. The destructor waits for it, so a caller that must end now does not call the
  // destructor.
  bool quiet_within(std::chrono::milliseconds limit);
  Status reload();  // keys, what their tenants may keep, and log file
  // Checks whether the model's files are still those that were loaded; /health and /v1/models show
  // it. Returns a message when that changes, once. Call it now and then, not on a thread that
  // serves.
  std::optional<std::string> look_at_model_files();
  Json statistics() const;  // /v1/kv/stats

  // For handlers.
  Service& service() { return *service_; }
  const Runtime& runtime() const { return service_->runtime(); }
  const ServerOptions& options() const { return options_; }
  const std::string& model() const { return options_.models.front(); }
  const SamplingDefaults& sampling() const { return sampling_; }  // where a request does not say
  const std::string& fingerprint() const { return fingerprint_; }
  const AnswerFormat& answer_format() const { return format_; }  // of the model's own template
  std::int64_t model_created() const { return model_created_; }
  std::string_view health();  // "ok", "draining", "stalled" or "device_lost"
  bool model_files_changed() const { return files_changed_; }
  ServerCounts counts() const;
  EventPump& events() { return *events_; }
  KvJobs& jobs() { return *jobs_; }
  const KvPublisher* publisher() const { return publisher_.get(); }  // null: no events over ZeroMQ
  bool serves(std::string_view model) const;  // the model by one of its names, or an adapter
  // Finds the adapters that a request names. Worker thread: they may have to be read.
  std::optional<ApiError> choose_adapters(GenerationRequest& asked) const;
  ApiError no_model(const std::string& name) const;  // serves() it not
  std::uint32_t cache_min_tokens() const;
  // `dialect`: whose parser gets it; null: the call's.
  ParseContext parse_context(Call& call, const Dialect* dialect = nullptr) const;
  // What a dialect keeps; null: nothing.
  std::shared_ptr<DialectState> state_of(const Dialect& dialect) const;

  // Parses the body on a worker thread and runs `then` there. If the body is wrong, the client gets
  // the error instead.
  void with_json(std::shared_ptr<Call> call, std::function<void(const Json& body)> then);
  // Runs `look` on the engine thread and `show`, with what it returned, on the connection's.
  template <class Look, class Show>
  void with_engine(std::shared_ptr<Call> call, Look look, Show show) {
    const bool runs = service_->post(
        [call, look = std::move(look), show = std::move(show)](EngineView& e) mutable {
          auto seen = std::make_shared<std::invoke_result_t<Look, EngineView&>>(look(e));
          call->exchange->post([seen, show = std::move(show)]() mutable { show(*seen); });
        });
    if (!runs) post_refusal(call, shutting_down());
  }
  // Runs `work` on a worker thread. If it throws, the client gets an internal error.
  void work_for(const std::shared_ptr<Call>& call, std::function<void()> work);
  // Saved sessions (engine/session_store.h): one thread at a time reads or writes them. The lock is
  // not owned if another one does so for long.
  SessionStore saves();
  std::unique_lock<std::timed_mutex> turn_on_disk() {
    return std::unique_lock(disk_mutex_, std::chrono::seconds(2));
  }
  // Reads the body and answers it in the call's dialect, streamed or whole.
  void generate(std::shared_ptr<Call> call, std::function<ParseRequest> parse);
  // The same for a body that was read. Worker thread.
  void answer(std::shared_ptr<Call> call, GenerationRequest asked);
  // with_engine for a `look` that walks the whole cache. Together such walks get a twentieth of the
  // engine's time; a walk that would wait too long for its turn is refused (429). `show` runs on a
  // worker thread and posts its answer.
  template <class Look, class Show>
  void with_walk(std::shared_ptr<Call> call, Look look, Show show) {
    when_walk_is_due(call, [this, call, look = std::move(look), show = std::move(show)]() mutable {
      const bool runs = service_->post(
          [this, call, look = std::move(look), show = std::move(show)](EngineView& e) mutable {
            const Nanoseconds began = SteadyClock().now();
            auto seen = std::make_shared<std::invoke_result_t<Look, EngineView&>>(look(e));
            walk_took_ = SteadyClock().now() - began;
            work_for(call, [seen, show = std::move(show)]() mutable { show(*seen); });
          });
      if (!runs) post_refusal(call, shutting_down());
    });
  }

 private:
  Server(std::unique_ptr<Service> service, ServerOptions options, bool keyless);
  void handle(std::shared_ptr<Exchange> exchange);
  // Worker thread.
  void begin(std::shared_ptr<Call> call, GenerationStart start, std::unique_ptr<TokenMask> mask);
  void when_walk_is_due(const std::shared_ptr<Call>& call, std::function<void()> walk);
  // Why this request must not reach a route: its web page, its key or its path. None: it may, and
  // both arguments are filled in.
  std::optional<HttpResponse> refusal(const HttpRequest& request, std::string_view request_id,
                                      Caller& caller, RouteMatch& match) const;
  void begin_trace(Call& call) const;
  void report_plain(const Call& call, int status);
  void report_generation(const Call& call, const GenerationRequest& asked,
                         const GenerationSummary& summary);
  ServedBy served_by() const;
  AnswerFormat format_for(const GenerationRequest& asked) const;
  Status set_limits(const ApiKeys& before, const ApiKeys& now);
  Status start_publisher();
  void count(const std::string& route, int status);

  ServerOptions options_;
  std::unique_ptr<Service> service_;
  std::timed_mutex disk_mutex_;
  std::mutex abandoned_mutex_;
  std::vector<std::shared_ptr<void>> abandoned_;  // of an engine that has ended; they go before it
  std::shared_ptr<const ApiKeys> keys_;           // replaced by reload(); read with atomic_load
  AccessLog log_;
  std::unique_ptr<Tracer> tracer_;  // none: no traces
  std::string fingerprint_;
  AnswerFormat format_;
  SamplingDefaults sampling_;
  std::int64_t model_created_ = 0;
  std::atomic<std::uint32_t> under_way_{0};
  std::atomic<bool> files_changed_ = false;
  std::uint64_t steps_seen_ = 0;  // by health(), on the connections' thread
  Nanoseconds steps_changed_ = 0;
  std::atomic<Nanoseconds> walk_took_{0}, next_walk_{0};
  HitHistory hits_;
  mutable std::mutex counts_mutex_;
  AnswerCounts answers_;
  std::unique_ptr<Doorbell> doorbell_;
  Gate gate_;
  std::unique_ptr<Door> door_;
  std::unique_ptr<EventPump> events_;
  std::unique_ptr<KvJobs> jobs_;
  std::unique_ptr<KvPublisher> publisher_;
  std::unique_ptr<GrammarMaker> grammar_;  // none: the build has no grammars
  std::map<const Dialect*, std::shared_ptr<DialectState>> states_;  // as Server::start made them
  WorkPool pool_;                                                   // last: its jobs use the others
};

std::span<const Route> all_routes();
// The keys of the file, or no keys. An error if a server without keys could be reached from other
// machines.
Result<std::shared_ptr<const ApiKeys>> load_keys(const ServerOptions& options);

}  // namespace quire
