#include "server/model_house.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>

#include "engine/engine.h"
#include "server/ids.h"
#include "server/model_of_request.h"

namespace quire {
namespace {

constexpr auto kHouseLooks = std::chrono::milliseconds(20);  // how often the loader looks around
constexpr Nanoseconds kTryAgainAfter = 10'000'000'000;       // a model that could not be loaded
constexpr std::size_t kBodyReadAtOnce = 64 << 10;

void refuse_in_house(Exchange& x, const ApiError& error) {
  const std::string id = "req_" + random_hex(24);
  HttpResponse r = dialect_of(x.request()).error(error, id);
  r.headers.push_back({"x-request-id", id});
  r.headers.push_back({"request-id", id});
  x.respond(std::move(r));
}

}  // namespace

ModelHouse::ModelHouse(HouseOptions options, std::shared_ptr<Door> door)
    : options_(std::move(options)), door_(std::move(door)) {
  for (const HousedModel& model : options_.models) {
    Entry& e = entries_.emplace_back();
    e.model = model;
    e.bytes = model.bytes;
  }
}

Result<std::unique_ptr<ModelHouse>> ModelHouse::start(HouseOptions options,
                                                      std::shared_ptr<Door> door) {
  CHECK(!options.models.empty());
  for (const HousedModel& m : options.models)
    if (m.bytes > options.weights_bytes_max)
      return Error{
          Code::exhausted,
          fmt::format("{} has {:.2f} GiB of weights, --weights-memory is {:.2f} GiB: raise "
                      "it, or leave the model out",
                      m.name, static_cast<double>(m.bytes) / 0x1p30,
                      static_cast<double>(options.weights_bytes_max) / 0x1p30)};
  std::unique_ptr<ModelHouse> house(new ModelHouse(std::move(options), std::move(door)));
  TRY_STATUS(house->open(house->entries_.front(), 0));
  ModelHouse* const self = house.get();
  house->loader_ = std::thread([self] { self->run(); });
  house->door_->open_for([self](std::shared_ptr<Exchange> x) { self->handle(std::move(x)); },
                         [self](const HttpRequest& head) {
                           Caller caller;
                           RouteMatch match;
                           return !self->first().refusal(head, {}, caller, match);
                         });
  return house;
}

ModelHouse::~ModelHouse() { stop(); }

ModelHouse::Entry* ModelHouse::find(std::string_view name) {
  constexpr std::string_view kLatest = ":latest";  // Ollama's word for a name without a tag
  const std::string_view plain =
      name.ends_with(kLatest) ? name.substr(0, name.size() - kLatest.size()) : name;
  for (Entry& e : entries_)
    if (e.model.name == name || e.model.name == plain) return &e;
  for (Entry& e : entries_)  // an adapter of it
    if (const Server* s = e.opened.load(); s != nullptr && s->serves(name)) return &e;
  return nullptr;
}

void ModelHouse::handle(std::shared_ptr<Exchange> x) {
  Caller caller;
  RouteMatch match;
  const HttpRequest& request = x->request();
  // Who has no key, or asks for what is not there, makes nothing happen.
  if (first().refusal(request, {}, caller, match) || request.body_unread || match.route == nullptr)
    return first().handle(std::move(x));
  if (request.method == "POST" && request.body.size() > kBodyReadAtOnce &&
      model_of_target(request).empty()) {
    pool_.run({.whose = caller.tenant.empty() ? request.peer : caller.tenant,
               .stop = std::make_shared<Stop>(),
               .work = [this, x] {
                 std::string model = model_of_request(x->request());
                 x->post([this, x, model = std::move(model)] { route(x, model); });
               }});
    return;
  }
  const std::string model = model_of_request(request);
  route(std::move(x), model);
}

void ModelHouse::route(std::shared_ptr<Exchange> x, const std::string& model) {
  if (x->over()) return;
  Entry* const entry = model.empty() ? &entries_.front() : find(model);
  if (entry == nullptr) return first().handle(std::move(x));  // says that it is not there
  if (Server* const server = entry->opened.load()) return server->handle(std::move(x));
  if (x->request().method == "POST") return wait_for(*entry, std::move(x));
  // Looking loads no model: /v1/models/NAME says what is known of it, and others that it is not there.
  if (x->request().path.find("/models/") != std::string::npos) return first().handle(std::move(x));
  refuse_in_house(*x, {.status = 503,
                       .message = "the model '" + entry->model.name + "' was not loaded yet",
                       .type = "unavailable_error",
                       .code = "model_not_loaded",
                       .retry_after_s = 5});
}

void ModelHouse::wait_for(Entry& entry, std::shared_ptr<Exchange> x) {
  std::erase_if(entry.waiting, [](const auto& w) { return w->over(); });
  const std::string& peer = x->request().peer;
  const auto own = std::ranges::count_if(entry.waiting,
                                         [&](const auto& w) { return w->request().peer == peer; });
  if (entry.waiting.size() >= options_.waiting_max ||
      static_cast<std::size_t>(own) * 2 > options_.waiting_max)
    return refuse_in_house(*x, {.status = 429,
                                .message = "too many requests wait for this model already",
                                .type = "rate_limit_error",
                                .code = "queue_full",
                                .retry_after_s = 5});
  {
    const std::lock_guard lock(mutex_);
    const Nanoseconds now = clock_.now();
    if (entry.failed > 0 && now - entry.failed < kTryAgainAfter)
      return refuse_in_house(*x, {.status = 503,
                                  .message = "the model could not be loaded: " + entry.problem,
                                  .type = "unavailable_error",
                                  .code = "model_failed",
                                  .retry_after_s = 10});
    entry.failed = 0;
    if (entry.wanted_since == 0) entry.wanted_since = now;
  }
  entry.waiting.push_back(std::move(x));
  wake_.notify_one();
}

void ModelHouse::release(Entry& entry) {
  std::deque<std::shared_ptr<Exchange>> waiting;
  waiting.swap(entry.waiting);
  Server* const server = entry.opened.load();
  std::string problem;
  {
    const std::lock_guard lock(mutex_);
    problem = entry.problem;
  }
  for (std::shared_ptr<Exchange>& x : waiting) {
    if (x->over()) continue;
    if (server != nullptr)
      server->handle(std::move(x));
    else
      refuse_in_house(*x, {.status = 503,
                           .message = "the model could not be loaded: " + problem,
                           .type = "unavailable_error",
                           .code = "model_failed",
                           .retry_after_s = 10});
  }
}

std::vector<ServedModel> ModelHouse::catalog() const {
  std::vector<ServedModel> all;
  const std::lock_guard lock(mutex_);
  for (const Entry& e : entries_) {
    const bool loading = e.state == ModelState::loading;
    all.push_back({.name = e.model.name,
                   .created = e.model.created,
                   .context = e.model.context,
                   .bytes = e.bytes,
                   .state = e.state,
                   .progress = loading && e.bytes > 0
                                   ? std::min(1.0, static_cast<double>(e.done_bytes) /
                                                       static_cast<double>(e.bytes))
                                   : 0,
                   .problem = e.problem});
  }
  return all;
}

// A model is wanted when a request waits for it, here or in its engine.
void ModelHouse::look_who_is_wanted(Nanoseconds now) {
  for (Entry& e : entries_) {
    if (e.opened.load() == nullptr || e.server->service().idle()) continue;
    e.used = now;
    if (e.state == ModelState::unloaded && e.wanted_since == 0) e.wanted_since = now;
  }
}

bool ModelHouse::may_leave(const Entry& e, Nanoseconds now) const {
  return now - e.loaded >= std::max(options_.stay_min, 4 * e.load_took);
}

// Whether there is room for the weights of `wanted`. If not, a model is told to leave, if one may.
bool ModelHouse::make_place(Entry& wanted, Nanoseconds now) {
  std::uint64_t taken = 0, leaving = 0;
  Entry* oldest = nullptr;
  for (Entry& e : entries_) {
    if (&e == &wanted || e.state != ModelState::loaded) continue;
    taken += e.bytes;
    if (e.leaving)
      leaving += e.bytes;
    else if (may_leave(e, now) && (oldest == nullptr || e.used < oldest->used))
      oldest = &e;
  }
  // Alone it may always come, even if in memory it is larger than its files said.
  if (taken == 0 || taken + wanted.bytes <= options_.weights_bytes_max) return true;
  if (taken - leaving + wanted.bytes > options_.weights_bytes_max && oldest != nullptr) {
    oldest->leaving = true;
    oldest->server->service().hold(true);
  }
  return false;
}

// Its answers are finished first: until then this does nothing. Without the mutex.
void ModelHouse::let_go(Entry& e) {
  Service& service = e.server->service();
  if (!service.drop_weights()) return;
  service.hold(false);
  ::malloc_trim(0);
  {
    const std::lock_guard lock(mutex_);
    e.state = ModelState::unloaded;
    e.leaving = false;
    e.wanted_since = 0;
  }
  if (options_.log) options_.log(fmt::format("unloaded {}", e.model.name));
}

Status ModelHouse::open(Entry& e, std::size_t index) {
  {
    const std::lock_guard lock(mutex_);
    e.state = ModelState::loading;
    e.done_bytes = 0;
  }
  const Nanoseconds began = clock_.now();
  const auto progress = [this, &e](std::uint64_t done, std::uint64_t) {
    const std::lock_guard lock(mutex_);
    e.done_bytes = done;
  };
  Status status;
  if (Server* const server = e.opened.load()) {
    status = server->service().load_weights(options_.threads, progress);
  } else {
    auto opened = options_.open(
        index, door_, [this] { return catalog(); }, index == 0 ? nullptr : &first(), progress);
    if (opened.ok()) {
      e.server = std::move(opened.value());
      e.opened = e.server.get();
    } else {
      status = opened.error();
    }
  }
  const Nanoseconds now = clock_.now();
  const std::lock_guard lock(mutex_);
  e.wanted_since = 0;
  if (!status.ok()) {
    e.state = ModelState::unloaded;
    e.problem = status.error().message;
    e.failed = now;
    return status;
  }
  e.state = ModelState::loaded;
  e.problem.clear();
  e.failed = 0;
  e.bytes = std::max<std::uint64_t>(e.server->runtime().executor().weights().bytes, 1);
  e.loaded = e.used = now;
  e.load_took = now - began;
  return {};
}

void ModelHouse::load(Entry& e) {
  const auto index = static_cast<std::size_t>(
      std::ranges::find_if(entries_, [&](const Entry& one) { return &one == &e; }) -
      entries_.begin());
  const bool first_time = e.opened.load() == nullptr;
  const Status status = open(e, index);
  if (options_.log)
    options_.log(status.ok()
                     ? fmt::format("loaded {} in {:.1f} s", e.model.name,
                                   static_cast<double>(e.load_took) * 1e-9)
                     : fmt::format("cannot load {}: {}", e.model.name, status.error().message));
  if (first_time) {
    door_->http().post([this, &e] { release(e); });
  } else if (!status.ok()) {  // who waits in its engine is told
    e.server->service().post([message = status.error().message](EngineView& view) {
      view.engine.fail_all(FailureKind::model_file,
                           "the model's weights could not be loaded: " + message);
    });
  }
}

void ModelHouse::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Nanoseconds now = clock_.now();
    look_who_is_wanted(now);
    Entry* next = nullptr;
    Entry* leaving = nullptr;
    for (Entry& e : entries_) {
      if (e.leaving) leaving = &e;
      const bool failed = e.failed > 0 && now - e.failed < kTryAgainAfter;
      if (e.state == ModelState::unloaded && e.wanted_since > 0 && !failed &&
          (next == nullptr || e.wanted_since < next->wanted_since))
        next = &e;
    }
    const bool place = next != nullptr && make_place(*next, now);
    if (leaving != nullptr && next == nullptr) {  // who wanted its place has gone
      leaving->leaving = false;
      leaving->server->service().hold(false);
      leaving = nullptr;
    }
    if (place || leaving != nullptr) {
      lock.unlock();
      if (place)
        load(*next);
      else
        let_go(*leaving);
      lock.lock();
    }
    if (!place) wake_.wait_for(lock, kHouseLooks);
  }
}

void ModelHouse::drain() {
  for (Entry& e : entries_)
    if (Server* const s = e.opened.load()) s->drain();
  door_->http().drain();
}

bool ModelHouse::idle() const {
  return std::ranges::all_of(entries_, [](const Entry& e) {
    const Server* const s = e.opened.load();
    return s == nullptr || s->idle();
  });
}

void ModelHouse::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  wake_.notify_one();
  if (loader_.joinable()) loader_.join();
  for (Entry& e : entries_)
    if (Server* const s = e.opened.load()) s->stop();
  door_->http().stop();
}

bool ModelHouse::quiet_within(std::chrono::milliseconds limit) {
  return std::ranges::all_of(entries_, [&](Entry& e) {
    Server* const s = e.opened.load();
    return s == nullptr || s->quiet_within(limit);
  });
}

Status ModelHouse::reload() {
  Status status;
  for (Entry& e : entries_)
    if (Server* const s = e.opened.load())
      if (Status one = s->reload(); !one.ok()) status = std::move(one);
  return status;
}

std::optional<std::string> ModelHouse::look_at_model_files() {
  for (Entry& e : entries_)
    if (Server* const s = e.opened.load())
      if (auto news = s->look_at_model_files()) return news;
  return std::nullopt;
}

Json ModelHouse::statistics() const {
  Json all = Json::object();
  for (const Entry& e : entries_)
    if (const Server* const s = e.opened.load()) all[e.model.name] = s->statistics();
  return all;
}

}  // namespace quire
