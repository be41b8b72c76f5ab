#include "server/server.h"

#include <fmt/core.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "server/bad_words.h"
#include "server/grammar_masks.h"
#include "server/ids.h"
#include "server/kv_events.h"
#include "server/kv_jobs.h"
#include "server/kv_sessions.h"
#include "server/prompt_fit.h"

namespace quire {
namespace {

constexpr std::size_t kLargeBody = 64 << 10;

bool good_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::ranges::all_of(id, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("._:-").find(c) != std::string_view::npos;
  });
}

// Log-probabilities of a prompt are written once for every choice.
std::optional<ApiError> check_logprobs(const GenerationRequest& asked,
                                       const std::vector<Prompt>& prompts, std::size_t context) {
  if (asked.prompt_logprobs < 0) return std::nullopt;
  const std::size_t max = std::max<std::size_t>(1 << 17, 2 * context);
  std::size_t tokens = 0;
  for (const Prompt& p : prompts) tokens += p.tokens.size() - p.scored_from;
  const std::size_t each = static_cast<std::size_t>(asked.prompt_logprobs) + 1;
  if (tokens * each * (asked.chat ? 1 : asked.n) <= max) return std::nullopt;
  return bad_value("prompt_logprobs",
                   fmt::format("{} tokens x {} log-probabilities x {} choices are more than {}",
                               tokens, each, asked.n, max));
}

// Names in a Host header that mean this server.
std::vector<std::string> allowed_names(const ServerOptions& options) {
  std::vector<std::string> names = {host_without_port(options.http.host)};
  for (const std::string& name : options.allowed_hosts) names.push_back(host_without_port(name));
  return names;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(std::unique_ptr<Service> service,
                                              ServerOptions options, std::unique_ptr<Door> door) {
  CHECK(!options.models.empty());
  std::shared_ptr<const ApiKeys> keys = options.keys;
  if (!keys) {
    TRY(keys, load_keys(options));
  }
  if (!door) {
    TRY(door, Door::open(options.http));
  }
  std::unique_ptr<Server> server(new Server(std::move(service), std::move(options), keys->empty()));
  for (const Dialect* dialect : dialects())
    if (dialect->open != nullptr) {
      TRY(server->states_[dialect], dialect->open(server->options_));
    }
  TRY_STATUS(server->set_limits({}, *keys));
  server->keys_ = std::move(keys);
  server->door_ = std::move(door);
  if (!server->options_.access_log.empty())
    TRY_STATUS(server->log_.open(server->options_.access_log));
  if (server->options_.traces) {
    TracerOptions traces = *server->options_.traces;
    traces.resource["service.version"] = server->options_.version;
    TRY(server->tracer_, Tracer::start(std::move(traces)));
  }
  TRY_STATUS(server->start_publisher());
  Server* const self = server.get();
  server->events_ = std::make_unique<EventPump>(*self);
  server->jobs_ = std::make_unique<KvJobs>();
  server->door_->open_for([self](std::shared_ptr<Exchange> x) { self->handle(std::move(x)); },
                          [self](const HttpRequest& head) {
                            Caller caller;
                            RouteMatch match;
                            return !self->refusal(head, {}, caller, match);
                          });
  return server;
}

// The topic has exactly two @.
Status Server::start_publisher() {
  KvEventsOptions events = options_.kv_events;
  if (events.endpoint.empty()) return {};
  if (events.topic.empty()) {
    std::string name = model();
    std::ranges::replace(name, '@', '_');
    events.topic = fmt::format("kv@{}:{}@{}", options_.http.host, port(), name);
  }
  TRY(publisher_, KvPublisher::start(*service_, events));
  return {};
}

Result<std::shared_ptr<const ApiKeys>> load_keys(const ServerOptions& options) {
  auto keys = std::make_shared<ApiKeys>();
  if (!options.api_key_file.empty()) {
    TRY(*keys, ApiKeys::load(options.api_key_file));
  }
  if (keys->empty() && !is_loopback(options.http.host))
    return Error{Code::invalid, options.http.host +
                                    " can be reached from other machines; give --api-key-file, or "
                                    "listen on 127.0.0.1"};
  return std::shared_ptr<const ApiKeys>(std::move(keys));
}

Server::Server(std::unique_ptr<Service> service, ServerOptions options, bool keyless)
    : options_(std::move(options)),
      service_(std::move(service)),
      gate_({.check_host = keyless,
             .hosts = allowed_names(options_),
             .origins = options_.cors_origins}) {
  doorbell_ = std::make_unique<Doorbell>(
      [this](std::function<void()> f) { door_->http().post(std::move(f)); });
  grammar_ = GrammarMasks::create(runtime().tokenizer(), runtime().config().vocabulary);
  sampling_ = sampling_defaults(runtime().source());
  const ChatTemplate* chat = runtime().chat_template();
  format_ = quire::answer_format(chat != nullptr ? chat->source() : "", options_.parsers);
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
  pool_.stop_all();  // the engine would refuse what comes of it
  events_->end_all();
  door_->http().drain();
}

bool Server::idle() const { return service_->idle() && under_way_ == 0; }

void Server::stop() {
  if (!events_) return;  // it never began
  pool_.stop_all();
  events_->end_all();
  jobs_->stop();
  publisher_.reset();
  service_->stop();  // tells every stream that it is over
  for (int i = 0; i < 100 && under_way_ > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  door_->http().stop();
  for (const auto& [dialect, state] : states_) state->flush();
}

bool Server::quiet_within(std::chrono::milliseconds limit) {
  return pool_.idle_within(limit) && (!grammar_ || grammar_->idle_within(limit));
}

Status Server::reload() {
  // Keys come first, even if the log cannot be opened: a removed key must not stay valid.
  Status keys;
  if (!options_.api_key_file.empty()) {
    auto loaded = ApiKeys::load(options_.api_key_file);
    if (loaded.ok()) {
      const auto before = std::atomic_load(&keys_);
      const auto now = std::make_shared<const ApiKeys>(std::move(loaded.value()));
      std::atomic_store(&keys_, now);
      keys = set_limits(*before, *now);
    } else {
      keys = loaded.error();
    }
  }
  TRY_STATUS(log_.reopen());
  return keys;
}

// If the file no longer has limits for a tenant, the tenant gets the default limits. Limits that
// were set over HTTP stay.
Status Server::set_limits(const ApiKeys& before, const ApiKeys& now) {
  std::map<std::string, TenantLimits> limits = now.limits();
  for (const auto& [tenant, of] : before.limits()) limits.try_emplace(tenant);
  if (limits.empty()) return {};
  return service_
      ->call([&](EngineView& e) -> Status {
        for (const auto& [tenant, of] : limits)
          TRY_STATUS(e.runtime.cache().set_limits(tenant, of));
        return {};
      })
      .get();
}

std::optional<std::string> Server::look_at_model_files() {
  const std::optional<std::string> changed = runtime().source().change();
  if (files_changed_.exchange(changed.has_value()) == changed.has_value()) return std::nullopt;
  return changed
             ? *changed + "; answers still come from what was loaded, until the server starts again"
             : "the model's files are those that were loaded again";
}

ApiError Server::no_model(const std::string& name) const {
  return {.status = 404,
          .message =
              fmt::format("the model '{}' is not served here; this server has '{}'", name, model()),
          .code = "model_not_found",
          .param = "model",
          .details = {{"model", name}}};
}

std::uint32_t Server::cache_min_tokens() const {
  constexpr std::uint32_t kVendorMin = 1024;
  return options_.cache_min_tokens.value_or(
      options_.vendor_accounting ? kVendorMin : runtime().geometry().tokens_per_block);
}

bool Server::serves(std::string_view model) const {
  return std::ranges::find(options_.models, model) != options_.models.end() ||
         runtime().adapters().has(model);
}

std::shared_ptr<DialectState> Server::state_of(const Dialect& dialect) const {
  const auto found = states_.find(&dialect);
  return found == states_.end() ? nullptr : found->second;
}

ParseContext Server::parse_context(Call& call, const Dialect* dialect) const {
  return {
      .vocabulary = static_cast<std::uint32_t>(runtime().tokenizer().size()),
      .strict_fields = options_.strict_fields,
      .model = model(),
      .sampling = sampling_.options,
      .parse_special = options_.parse_special,
      .trust_templates = options_.trust_templates,
      .pooling = options_.pooling,
      .hidden = runtime().config().hidden,
      .cache_min_tokens = cache_min_tokens(),
      .kv = {
          .kv_format = runtime().kv_format(),
          .plan = runtime().plan(),
          .storage = &runtime().storage(),
          .retain = runtime().retain(),
          .check_retain = [this](const RetainPolicy& p,
                                 const StoragePolicy* s) { return runtime().check_retain(p, s); },
          .select = runtime().select(),
          .check_select = [this](const SelectPolicy& p, const StoragePolicy* s,
                                 const RetainPolicy* r) { return runtime().check_select(p, s, r); },
          .check_storage = [this](const StoragePolicy& s) { return runtime().check_storage(s); },
          .session_policy =
              [this](const std::string& tenant, const std::string& id) {
                return service_->sessions().policy(tenant, id);
              },
          .tenant = call.caller.tenant,
          .admin = call.caller.admin},
      .kv_header = std::string(call.request().header("x-kv-policy")),
      .answer_id = call.short_id(),
      .state = state_of(dialect != nullptr ? *dialect : *call.dialect)};
}

void Server::handle(std::shared_ptr<Exchange> x) {
  auto call = std::make_shared<Call>();
  call->exchange = x;
  call->began = SteadyClock().now();
  const std::string_view given = x->request().header("x-request-id");
  call->id = good_request_id(given) ? std::string(given) : "req_" + random_hex(24);
  x->common_headers = {{"x-request-id", call->id}, {"request-id", call->id}};
  call->dialect = &dialect_of(x->request());
  call->bytes_in = x->request().body.size();
  begin_trace(*call);
  for (HttpHeader& h : gate_.cors_headers(x->request())) x->common_headers.push_back(std::move(h));
  ++under_way_;
  call->presence = std::shared_ptr<void>(nullptr, [this](void*) { --under_way_; });
  x->answered = [this, call](int status) {
    count(call->route ? std::string(call->route->pattern) : "other", status);
    if (!call->logs_itself) report_plain(*call, status);
  };

  RouteMatch match;
  if (auto refused = refusal(x->request(), call->id, call->caller, match))
    return x->respond(*refused);
  if (match.route->dialect != nullptr) call->dialect = match.route->dialect;
  if (x->request().body_unread) return call->refuse({.message = "send it again"});  // a new key
  call->route = match.route;
  call->arguments = std::move(match.arguments);
  match.route->handle(*this, std::move(call));
}

std::optional<HttpResponse> Server::refusal(const HttpRequest& request, std::string_view request_id,
                                            Caller& caller, RouteMatch& match) const {
  const auto refused = [&](const ApiError& error) {
    return dialect_of(request).error(error, request_id);
  };
  if (const auto error = gate_.check(request)) return refused(*error);
  if (request.method == "OPTIONS") return HttpResponse{.status = 204};
  match = find_route(all_routes(), request.method, request.path);
  // One check, before anything else is known about the request.
  const bool open = match.route != nullptr && match.route->access == Access::open;
  const std::optional<Caller> found = std::atomic_load(&keys_)->find(presented_key(request));
  if (!found && !open)
    return refused({.status = 401,
                    .message = "no valid API key was sent; use Authorization: Bearer KEY",
                    .type = "authentication_error",
                    .code = "invalid_api_key"});
  if (found) caller = *found;
  if (match.route == nullptr) {
    if (match.allow.empty()) return refused(not_found("there is no " + request.path));
    HttpResponse r = refused({.status = 405,
                              .message = request.path + " takes " + match.allow,
                              .code = "method_not_allowed"});
    r.headers.push_back({"Allow", match.allow});
    return r;
  }
  if (match.route->access == Access::admin && !caller.admin)
    return refused(forbidden("this needs an admin key"));
  return std::nullopt;
}

std::string_view Server::health() {
  constexpr Nanoseconds kStalled = 30'000'000'000;
  const ServiceStats s = service_->snapshot();
  const Nanoseconds now = SteadyClock().now();
  if (s.steps != steps_seen_ || s.requests_running == 0) {
    steps_seen_ = s.steps;
    steps_changed_ = now;
  }
  if (s.failed[static_cast<std::size_t>(FailureKind::device)] > 0) return "device_lost";
  if (now - steps_changed_ > kStalled) return "stalled";
  return service_->draining() ? "draining" : "ok";
}

void Server::work_for(const std::shared_ptr<Call>& call, std::function<void()> work) {
  if (!call->stop) call->stop = std::make_shared<Stop>();
  pool_.run({.whose = call->client(), .stop = call->stop, .work = [call, work = std::move(work)] {
               if (const auto why = stopped(*call->stop)) return post_refusal(call, *why);
               try {
                 work();
               } catch (const std::exception& e) {
                 fmt::print(stderr, "error: {}: {}\n", call->request().path, e.what());
                 post_refusal(call, internal_error());
               }
             }});
}

void Server::with_json(std::shared_ptr<Call> call, std::function<void(const Json&)> then) {
  call->stop = std::make_shared<Stop>();
  call->exchange->gone = [stop = call->stop] { stop->ask(Stop::Why::client_gone); };
  // A list of tokens has a value for each: room for a few prompts as long as the context.
  JsonLimits limits = kRequestJson;
  limits.values_max =
      std::clamp<std::size_t>(std::size_t{16} * runtime().context(), 1 << 16, limits.values_max);
  work_for(call, [call, limits, then = std::move(then)] {
    const std::string& text = call->request().body;
    const bool large = text.size() > kLargeBody;
    {
      auto body = parse_json(text.empty() ? "{}" : std::string_view(text), limits);
      if (!body.ok())
        return post_refusal(call, {.message = body.error().message, .code = "invalid_json"});
      call->request().drop_body();
      then(body.value());
    }
    if (large) ::malloc_trim(0);  // what it took goes back to the system
  });
}

void Server::when_walk_is_due(const std::shared_ptr<Call>& call, std::function<void()> walk) {
  constexpr Nanoseconds kWaitMax = 1'000'000'000, kShare = 20;
  const Nanoseconds now = SteadyClock().now();
  Nanoseconds due = next_walk_, turn = 0;
  do {
    turn = std::max(now, due);
    if (turn - now > kWaitMax)
      return post_refusal(call, {.status = 429,
                                 .message = "others are looking at the cache; try again later",
                                 .type = "rate_limit_error",
                                 .code = "too_many_walks",
                                 .retry_after_s = 1});
  } while (!next_walk_.compare_exchange_weak(due, turn + kShare * walk_took_));
  if (turn <= now) return walk();
  work_for(call, [turn, walk = std::move(walk)] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(turn - SteadyClock().now()));
    walk();
  });
}

AnswerFormat Server::format_for(const GenerationRequest& asked) const {
  return asked.chat_template.empty() ? format_
                                     : quire::answer_format(asked.chat_template, options_.parsers);
}

void Server::generate(std::shared_ptr<Call> call, std::function<ParseRequest> parse) {
  if (service_->draining()) return call->refuse(shutting_down());
  with_json(call, [this, call, parse = std::move(parse)](const Json& body) {
    GenerationRequest asked;
    if (auto error = parse(body, parse_context(*call), asked))
      return post_refusal(call, std::move(*error));
    answer(call, std::move(asked));
  });
}

void Server::answer(std::shared_ptr<Call> call, GenerationRequest asked) {
  const auto refuse = [call](ApiError error) { post_refusal(call, std::move(error)); };
  if (!serves(asked.model)) return refuse(no_model(asked.model));
  if (auto error = choose_adapters(asked)) return refuse(std::move(*error));
  asked.client = call->client();
  if (!asked.seeded) asked.sampling.seed = random_u64() >> 11;  // exact in any JSON reader
  auto stops = StopStrings::create(asked.stop);
  if (!stops.ok()) return refuse(from_error(stops.error(), "stop"));
  if (asked.chat && (asked.grammar.kind == AnswerGrammar::Kind::none ||
                     asked.tool_choice.kind == ToolChoice::Kind::required)) {
    asked.grammar = tool_call_grammar(asked, format_for(asked), runtime().tokenizer());
  }

  auto start = std::make_shared<GenerationStart>(
      GenerationStart{.asked = std::move(asked), .stops = std::move(stops.value())});
  start->format = format_of_answer(start->asked, format_for(start->asked), runtime().tokenizer());
  if (auto error = make_fitting_prompts(start->asked, runtime(), start->prompts))
    return refuse(std::move(*error));
  if (auto error = check_logprobs(start->asked, start->prompts, runtime().context()))
    return refuse(std::move(*error));
  start->elsewhere = [this](std::function<void()> work) {
    pool_.run(
        {.whose = {}, .stop = std::make_shared<Stop>(), .work = [work = std::move(work)]() mutable {
           work();
           work = nullptr;
           ::malloc_trim(0);
         }});
  };
  const AnswerGrammar& grammar = start->asked.grammar;
  if (grammar.kind == AnswerGrammar::Kind::none || (grammar.hint && !grammar_))
    return begin(call, std::move(*start), nullptr);
  if (!grammar_) return refuse(not_implemented("constrained output", grammar.param));
  const auto state = std::make_shared<MaskState>();
  start->mask = state;
  grammar_->make(grammar, state, [this, call, start, refuse](GrammarMaker::Made mask) {
    const AnswerGrammar& asked_for = start->asked.grammar;
    if (!mask.ok() && !asked_for.hint) return refuse(from_error(mask.error(), asked_for.param));
    begin(call, std::move(*start), mask.ok() ? std::move(mask.value()) : nullptr);
  });
}

void Server::begin(std::shared_ptr<Call> call, GenerationStart start,
                   std::unique_ptr<TokenMask> mask) {
  for (std::size_t i = 0; i < start.prompts.size(); ++i) {
    Request r = make_request(start.asked, start.prompts[i], runtime(),
                             i == 0 ? call->id : fmt::format("{}-{}", call->id, i));
    if (auto error = claim_session(*this, start.prompts.size(), start.asked, r))
      return post_refusal(call, std::move(*error));
    if (mask)
      r.mask = open_mask(mask_opening(start.asked.grammar, start.format, start.prompts[i].tail,
                                      runtime().tokenizer()),
                         mask->fork());
    if (!start.asked.bad_words.empty())
      r.mask = std::make_unique<BadWords>(runtime().tokenizer(), start.asked.bad_words,
                                          std::move(r.mask));
    start.requests.push_back(std::move(r));
  }
  start.request_id = call->id;
  start.show_text = options_.show_text;
  start.dialect = call->dialect;
  AnswerHead head{.id = call->short_id(),
                  .created = unix_now_ns() / 1'000'000'000,
                  .model = start.asked.model,
                  .system_fingerprint = fingerprint_,
                  .cache = {.vendor = options_.vendor_accounting,
                            .tokens_min = cache_min_tokens(),
                            .tokens_per_block = runtime().geometry().tokens_per_block}};
  for (const PromptSegment& s : start.prompts.front().segments) head.cache.parts.push_back(s.end);
  start.writer = call->dialect->writer(start.asked, std::move(head), runtime().tokenizer());
  call->logs_itself = true;
  start.ended = [this, call, asked = start.asked](const GenerationSummary& s) {
    report_generation(*call, asked, s);
  };
  std::make_shared<Generation>(*service_, *doorbell_, call->exchange, std::move(start))->submit();
}

SessionStore Server::saves() {
  return SessionStore(runtime(), {.run = [this](const std::function<void(Runtime&)>& f) -> Status {
                                    try {
                                      service_->call([&f](EngineView& e) { f(e.runtime); }).get();
                                      return {};
                                    } catch (const std::future_error&) {
                                      return Error{Code::cancelled, "the server is shutting down"};
                                    }
                                  },
                                  .abandon =
                                      [this](std::shared_ptr<void> what) {
                                        const std::lock_guard lock(abandoned_mutex_);
                                        abandoned_.push_back(std::move(what));
                                      }});
}

void Server::count(const std::string& route, int status) {
  const CacheStats cache = service_->snapshot().cache;
  hits_.sample(SteadyClock().now(), cache.tokens_queried, cache.tokens_hit);
  std::lock_guard lock(counts_mutex_);
  ++answers_[{route, status}];
}

ServerCounts Server::counts() const {
  ServerCounts c{.events_dropped = events_->dropped() + (publisher_ ? publisher_->dropped() : 0),
                 .sessions = service_->sessions().count()};
  if (runtime().executor().traits().adapters) {
    c.adapters = runtime().adapters().list().size();
    c.adapters_max = runtime().adapters().options().adapters_max;
    c.adapter_bytes = runtime().adapters().bytes();
  }
  if (tracer_) {
    c.spans_sent = tracer_->sent();
    c.spans_dropped = tracer_->dropped();
  }
  std::lock_guard lock(counts_mutex_);
  c.answers = answers_;
  return c;
}

// Addresses that nobody vouches for are counted in a few groups, so that their number has no effect.
std::string Call::client() const {
  constexpr std::size_t kGroups = 256;
  if (!caller.tenant.empty()) return caller.tenant;
  const std::string& peer = exchange->request().peer;
  return peer.empty() ? std::string()
                      : fmt::format("address {}", std::hash<std::string>()(peer) % kGroups);
}

std::string Call::short_id() const { return id.starts_with("req_") ? id.substr(4) : id; }

Origin Call::origin() const {
  return {.request_id = id,
          .tenant = caller.tenant,
          .key_id = caller.key_id,
          .method = exchange->request().method,
          .route = route ? route->pattern : std::string_view("other"),
          .operation = route ? route->operation : std::string_view(),
          .dialect = dialect->name,
          .began = began,
          .bytes_in = bytes_in,
          .trace = trace,
          .span_id = span_id};
}

ServedBy Server::served_by() const {
  return {model(), runtime().kv_format(), options_.http.host, port()};
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
  const bool traced =
      !call.trace.trace_id.empty() && call.route != nullptr && !call.route->operation.empty();
  if (traced) tracer_->add({refused_span(call.origin(), served_by(), status, now)});
  if (log_.on()) log_.write(plain_line(call.origin(), status, now));
}

void Server::report_generation(const Call& call, const GenerationRequest& asked,
                               const GenerationSummary& s) {
  const Nanoseconds now = SteadyClock().now();
  if (!call.trace.trace_id.empty())
    tracer_->add(generation_spans(call.origin(), asked, s, served_by(), now));
  if (log_.on())
    log_.write(
        generation_line(call.origin(), asked, s, served_by(), call.exchange->bytes_sent(), now));
}

}  // namespace quire
