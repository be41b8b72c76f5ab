#include "server/server.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <future>

#include "server/bad_words.h"
#include "server/grammar_masks.h"
#include "server/ids.h"
#include "server/kv_events.h"
#include "server/openai_dialect.h"

namespace quire {
namespace {

bool good_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::ranges::all_of(id, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("._:-").find(c) != std::string_view::npos;
  });
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(std::unique_ptr<Service> service,
                                              ServerOptions options) {
  CHECK(!options.models.empty());
  std::shared_ptr<const ApiKeys> keys = std::make_shared<ApiKeys>();
  if (!options.api_key_file.empty()) {
    TRY(ApiKeys loaded, ApiKeys::load(options.api_key_file));
    keys = std::make_shared<ApiKeys>(std::move(loaded));
  }
  if (keys->empty() && !is_loopback(options.http.host))
    return Error{Code::invalid, options.http.host +
                                    " can be reached from other machines; give --api-key-file, or "
                                    "listen on 127.0.0.1"};
  std::unique_ptr<Server> server(new Server(std::move(service), std::move(options)));
  server->keys_ = std::move(keys);
  if (!server->options_.access_log.empty())
    TRY_STATUS(server->log_.open(server->options_.access_log));
  if (server->options_.traces) {
    TracerOptions traces = *server->options_.traces;
    traces.resource["service.version"] = server->options_.version;
    TRY(server->tracer_, Tracer::start(std::move(traces)));
  }
  HttpServerOptions http = server->options_.http;
  http.threads = 1;  // the cores belong to the model; a mailbox wakes one thread
  http.refuse = [](int status, std::string message) {
    HttpResponse r =
        error_response({.status = status,
                        .message = std::move(message),
                        .type = status >= 500 ? "server_error" : "invalid_request_error",
                        .code = status == 413   ? "request_too_large"
                                : status == 503 ? "too_many_connections"
                                                : "bad_request",
                        .retry_after_s = status == 503 ? 1u : 0u});
    const std::string id = "req_" + random_hex(24);
    r.headers.push_back({"x-request-id", id});
    r.headers.push_back({"request-id", id});
    return r;
  };
  Server* const self = server.get();
  server->events_ = std::make_unique<EventPump>(*self);
  // A client may have been waiting for the port: its request waits until everything is in place.
  std::promise<void> ready;
  TRY(server->http_,
      HttpServer::start(http, [self, go = ready.get_future().share()](std::shared_ptr<Exchange> x) {
        go.wait();
        self->handle(std::move(x));
      }));
  ready.set_value();
  return server;
}

Server::Server(std::unique_ptr<Service> service, ServerOptions options)
    : options_(std::move(options)), service_(std::move(service)) {
  mailbox_ =
      std::make_unique<Mailbox>([this](std::function<void()> f) { http_->post(std::move(f)); });
  grammar_ = GrammarMasks::create(runtime().tokenizer(), runtime().config().vocabulary);
  struct stat info {};
  if (::stat(options_.model_path.c_str(), &info) == 0) model_created_ = info.st_mtime;
  const std::string identity = fmt::format("{} {} {} {} {}", options_.version, options_.model_path,
                                           info.st_size, info.st_mtime, runtime().kv_format());
  const Digest digest = sha256(identity);
  fingerprint_ = "fp_";
  for (int i = 0; i < 5; ++i)
    fingerprint_ += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
}

Server::~Server() { stop(); }

void Server::drain() {
  service_->drain();
  events_->end_all();
  http_->drain();
}

bool Server::idle() const { return service_->idle() && under_way_ == 0; }

void Server::stop() {
  if (!http_) return;
  events_->end_all();
  service_->stop();  // tells every stream that it is over
  for (int i = 0; i < 100 && under_way_ > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  http_->stop();
}

Status Server::reload() {
  TRY_STATUS(log_.reopen());
  if (options_.api_key_file.empty()) return {};
  TRY(ApiKeys loaded, ApiKeys::load(options_.api_key_file));
  std::atomic_store(&keys_,
                    std::shared_ptr<const ApiKeys>(std::make_shared<ApiKeys>(std::move(loaded))));
  return {};
}

bool Server::serves(std::string_view model) const {
  return std::ranges::find(options_.models, model) != options_.models.end();
}

ParseContext Server::parse_context(Call& call) const {
  return {
      .vocabulary = static_cast<std::uint32_t>(runtime().tokenizer().size()),
      .strict_fields = options_.strict_fields,
      .kv = {
          .kv_format = runtime().kv_format(),
          .plan = runtime().plan(),
          .storage = &runtime().storage(),
          .retain = runtime().retain(),
          .check_retain = [this](const RetainPolicy& p,
                                 const StoragePolicy* s) { return runtime().check_retain(p, s); },
          .select = runtime().select(),
          .check_select = [this](const SelectPolicy& p, const StoragePolicy* s,
                                 bool retains) { return runtime().check_select(p, s, retains); },
          .check_storage = [this](const StoragePolicy& s) { return runtime().check_storage(s); },
          .tenant = call.caller.tenant,
          .admin = call.caller.admin},
      .kv_header = std::string(call.request().header("x-kv-policy"))};
}

void Server::add_cors(Exchange& x) const {
  const std::string origin(x.request().header("origin"));
  if (origin.empty() || options_.cors_origins.empty()) return;
  const auto allowed = [&](const std::string& o) { return o == "*" || o == origin; };
  if (std::ranges::none_of(options_.cors_origins, allowed)) return;
  x.common_headers.push_back({"Access-Control-Allow-Origin", origin});
  x.common_headers.push_back({"Vary", "Origin"});
  x.common_headers.push_back({"Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE, OPTIONS"});
  x.common_headers.push_back({"Access-Control-Allow-Headers",
                              "authorization, content-type, x-api-key, x-request-id, x-kv-policy"});
  x.common_headers.push_back(
      {"Access-Control-Expose-Headers", "x-request-id, x-kv-cached-tokens, x-kv-prompt-tokens"});
}

void Server::handle(std::shared_ptr<Exchange> x) {
  auto call = std::make_shared<Call>();
  call->exchange = x;
  call->began = SteadyClock().now();
  const std::string_view given = x->request().header("x-request-id");
  call->id = good_request_id(given) ? std::string(given) : "req_" + random_hex(24);
  x->common_headers = {{"x-request-id", call->id}, {"request-id", call->id}};
  call->bytes_in = x->request().body.size();
  begin_trace(*call);
  add_cors(*x);
  ++under_way_;
  call->presence = std::shared_ptr<void>(nullptr, [this](void*) { --under_way_; });
  x->answered = [this, call](int status) {
    count(call->route ? std::string(call->route->pattern) : "other", status);
    if (!call->logs_itself) report_plain(*call, status);
  };

  HttpRequest& request = x->request();
  if (request.method == "OPTIONS") return x->respond({.status = 204});
  RouteMatch match = find_route(all_routes(), request.method, request.path);
  // One check, before anything else is known about the request.
  const bool open = match.route != nullptr && match.route->access == Access::open;
  const std::optional<Caller> caller = std::atomic_load(&keys_)->find(presented_key(request));
  if (!caller && !open)
    return call->refuse({.status = 401,
                         .message = "no valid API key was sent; use Authorization: Bearer KEY",
                         .type = "authentication_error",
                         .code = "invalid_api_key"});
  if (caller) call->caller = *caller;
  if (match.route == nullptr) {
    if (match.allow.empty()) return call->refuse(not_found("there is no " + request.path));
    HttpResponse r = error_response({.status = 405,
                                     .message = request.path + " takes " + match.allow,
                                     .code = "method_not_allowed"});
    r.headers.push_back({"Allow", match.allow});
    return x->respond(std::move(r));
  }
  call->route = match.route;
  call->arguments = std::move(match.arguments);
  if (match.route->access == Access::admin && !call->caller.admin)
    return call->refuse(forbidden("this needs an admin key"));
  match.route->handle(*this, std::move(call));
}

void Server::with_json(std::shared_ptr<Call> call, std::function<void(const Json&)> then) {
  worker_.run([call, then = std::move(then)] {
    const std::string& text = call->request().body;
    auto body = parse_json(text.empty() ? "{}" : std::string_view(text), kRequestJson);
    if (!body.ok()) {
      return post_refusal(call, {.message = body.error().message, .code = "invalid_json"});
    }
    std::string().swap(call->request().body);
    then(body.value());
  });
}

void Server::generate(std::shared_ptr<Call> call, Asked asked) {
  const auto refuse = [call](ApiError error) { post_refusal(call, std::move(error)); };
  if (!serves(asked.model))
    return refuse({.status = 404,
                   .message = fmt::format("the model '{}' is not served here; this server has '{}'",
                                          asked.model, model()),
                   .code = "model_not_found",
                   .param = "model"});
  if (!asked.seeded) asked.sampling.seed = random_u64() >> 11;  // exact in any JSON reader
  auto stops = StopStrings::create(asked.stop);
  if (!stops.ok()) return refuse(from_error(stops.error(), "stop"));
  if (asked.chat && (asked.grammar.kind == AskedGrammar::Kind::none ||
                     asked.tool_choice.kind == ToolChoice::Kind::required)) {
    const ChatTemplate* own = runtime().chat_template();
    asked.grammar = tool_call_grammar(asked, !asked.chat_template.empty() ? asked.chat_template
                                             : own                        ? own->source()
                                                                          : "");
  }

  auto start = std::make_shared<GenerationStart>(
      GenerationStart{.asked = std::move(asked), .stops = std::move(stops.value())});
  if (auto error = make_prompts(start->asked, runtime(), start->prompts))
    return refuse(std::move(*error));
  const AskedGrammar& grammar = start->asked.grammar;
  if (grammar.kind == AskedGrammar::Kind::none || (grammar.hint && !grammar_))
    return begin(call, std::move(*start), nullptr);
  if (!grammar_) return refuse(not_implemented("constrained output", grammar.param));
  grammar_->make(grammar, [this, call, start, refuse](GrammarMaker::Made mask) {
    const AskedGrammar& asked_for = start->asked.grammar;
    if (!mask.ok() && !asked_for.hint) return refuse(from_error(mask.error(), asked_for.param));
    begin(call, std::move(*start), mask.ok() ? std::move(mask.value()) : nullptr);
  });
}

void Server::begin(std::shared_ptr<Call> call, GenerationStart start,
                   std::unique_ptr<TokenMask> mask) {
  for (std::size_t i = 0; i < start.prompts.size(); ++i) {
    Request r = make_request(start.asked, start.prompts[i], runtime(),
                             i == 0 ? call->id : fmt::format("{}-{}", call->id, i));
    if (mask) r.mask = mask->fork();
    if (!start.asked.bad_words.empty())
      r.mask = std::make_unique<BadWords>(runtime().tokenizer(), start.asked.bad_words,
                                          std::move(r.mask));
    start.requests.push_back(std::move(r));
  }
  const std::string short_id = call->id.starts_with("req_") ? call->id.substr(4) : call->id;
  start.request_id = call->id;
  start.response_id = (start.asked.chat ? "chatcmpl-" : "cmpl-") + short_id;
  start.dialect =
      std::make_unique<OpenAiDialect>(start.asked,
                                      ResponseHead{.id = short_id,
                                                   .created = unix_now_ns() / 1'000'000'000,
                                                   .model = start.asked.model,
                                                   .system_fingerprint = fingerprint_},
                                      runtime().tokenizer());
  call->logs_itself = true;
  start.ended = [this, call, asked = start.asked](const GenerationSummary& s) {
    report_generation(*call, asked, s);
  };
  std::make_shared<Generation>(*service_, *mailbox_, call->exchange, std::move(start))->submit();
}

void Server::count(const std::string& route, int status) {
  const CacheStats cache = service_->snapshot().cache;
  hits_.sample(SteadyClock().now(), cache.tokens_queried, cache.tokens_hit);
  std::lock_guard lock(counts_mutex_);
  ++answers_[{route, status}];
}

ServerCounts Server::counts() const {
  ServerCounts c{.events_dropped = events_->dropped()};
  if (tracer_) {
    c.spans_sent = tracer_->sent();
    c.spans_dropped = tracer_->dropped();
  }
  std::lock_guard lock(counts_mutex_);
  c.answers = answers_;
  return c;
}

Origin Call::origin() const {
  return {.request_id = id,
          .tenant = caller.tenant,
          .key_id = caller.key_id,
          .method = exchange->request().method,
          .route = route ? route->pattern : std::string_view("other"),
          .began = began,
          .bytes_in = bytes_in,
          .trace = trace,
          .span_id = span_id};
}

ServedBy Server::served_by() const {
  return {model(), runtime().kv_format(), options_.http.host, http_->port()};
}

void Server::begin_trace(Call& call) const {
  if (!tracer_) return;
  const HttpRequest& r = call.exchange->request();
  auto given = parse_traceparent(r.header("traceparent"), r.header("tracestate"));
  const bool came = given.has_value();
  call.trace = came ? std::move(*given) : TraceContext{.trace_id = random_hex(32)};
  call.span_id = random_hex(16);
  if (!tracer_->samples(call.trace, came)) call.trace = {};
}

void Server::report_plain(const Call& call, int status) {
  const Nanoseconds now = SteadyClock().now();
  const bool traced = !call.trace.trace_id.empty() && call.route != nullptr &&
                      !operation_name(call.route->pattern).empty();
  if (traced) tracer_->add({refused_span(call.origin(), served_by(), status, now)});
  if (log_.on()) log_.write(plain_line(call.origin(), status, now));
}

void Server::report_generation(const Call& call, const Asked& asked, const GenerationSummary& s) {
  const Nanoseconds now = SteadyClock().now();
  if (!call.trace.trace_id.empty())
    tracer_->add(generation_spans(call.origin(), asked, s, served_by(), now));
  if (log_.on())
    log_.write(
        generation_line(call.origin(), asked, s, served_by(), call.exchange->bytes_sent(), now));
}

}  // namespace quire
