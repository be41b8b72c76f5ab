#include "server/tracer.h"

#include <fmt/core.h>

#include <charconv>

#include "base/number.h"
#include "net/http.h"
#include "net/http_client.h"

namespace quire {
namespace {

constexpr int kAttempts = 3;

std::string_view without_blanks(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

// "a=1,b=x%20y": pairs, decoded. False: that is not what it says.
bool for_each_pair(std::string_view list,
                   const std::function<void(std::string key, std::string value)>& f) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(',')), pair = without_blanks(item);
    list.remove_prefix(std::min(list.size(), item.size() + 1));
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    if (equals == pair.npos || equals == 0) return false;
    f(std::string(without_blanks(pair.substr(0, equals))),
      percent_decode(without_blanks(pair.substr(equals + 1))));
  }
  return true;
}

}  // namespace

Result<std::optional<TracerOptions>> TracerOptions::from_environment(
    const std::function<const char*(const char*)>& get, const std::string& url) {
  const auto text = [&](const char* name) {
    const char* value = get(name);
    return std::string(value ? value : "");
  };
  TracerOptions o;
  o.url = url;
  if (o.url.empty()) o.url = text("OTEL_EXPORTER_OTLP_ENDPOINT");
  if (const std::string exact = text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
      url.empty() && !exact.empty()) {
    o.url = exact;
    const std::size_t scheme = exact.find("://");
    const std::size_t slash = exact.find('/', scheme == exact.npos ? 0 : scheme + 3);
    o.path = slash == exact.npos ? "/" : exact.substr(slash);
  }
  if (o.url.empty() || text("OTEL_SDK_DISABLED") == "true" ||
      text("OTEL_TRACES_EXPORTER") == "none")
    return std::optional<TracerOptions>();

  const auto wrong = [&](const char* name, std::string_view expected) {
    return Error{Code::invalid, fmt::format("{}='{}': must be {}", name, text(name), expected)};
  };
  for (const char* name : {"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"})
    if (const std::string p = text(name); !p.empty() && p != "http/json" && p != "http/protobuf")
      return wrong(name, "http/json, which is what is spoken here");
  o.resource["service.name"] = "quire";
  if (!for_each_pair(text("OTEL_RESOURCE_ATTRIBUTES"),
                     [&](std::string k, std::string v) { o.resource[k] = std::move(v); }))
    return wrong("OTEL_RESOURCE_ATTRIBUTES", "key=value,key=value");
  if (const std::string name = text("OTEL_SERVICE_NAME"); !name.empty())
    o.resource["service.name"] = name;
  bool clean = true;
  const bool listed = for_each_pair(
      text("OTEL_EXPORTER_OTLP_HEADERS"), [&](const std::string& k, const std::string& v) {
        clean = clean && (k + v).find_first_of("\r\n") == std::string::npos;
        o.headers += k + ": " + v + "\r\n";
      });
  if (!listed || !clean) return wrong("OTEL_EXPORTER_OTLP_HEADERS", "key=value,key=value");

  std::string sampler = text("OTEL_TRACES_SAMPLER");
  if (sampler.empty()) sampler = "parentbased_always_on";
  o.parent_based = sampler.starts_with("parentbased_");
  if (o.parent_based) sampler.erase(0, std::string_view("parentbased_").size());
  if (sampler == "always_off") {
    o.sampler = Sampler::always_off;
  } else if (sampler == "traceidratio") {
    o.sampler = Sampler::ratio;
    const std::string ratio = text("OTEL_TRACES_SAMPLER_ARG");
    if (!ratio.empty() && (!parse_number(ratio, o.ratio) || !(o.ratio >= 0 && o.ratio <= 1)))
      return wrong("OTEL_TRACES_SAMPLER_ARG", "between 0 and 1");
  } else if (sampler != "always_on") {
    return wrong("OTEL_TRACES_SAMPLER",
                 "always_on, always_off, traceidratio, or one of them with parentbased_ before it");
  }
  for (const auto& [name, to] : {std::pair{"OTEL_EXPORTER_OTLP_TIMEOUT", &o.timeout},
                                 std::pair{"OTEL_BSP_SCHEDULE_DELAY", &o.delay}})
    if (const std::string given = text(name); !given.empty()) {
      double ms = 0;
      if (!parse_number(given, ms) || !(ms >= 1 && ms <= 3'600'000))
        return wrong(name, "milliseconds, at least 1");
      *to = std::chrono::milliseconds(static_cast<std::int64_t>(ms));
    }
  return std::optional<TracerOptions>(std::move(o));
}

// The other end, over one connection that is kept.
class Tracer::Collector final : public HttpClient::Listener {
 public:
  explicit Collector(const TracerOptions& options) : options_(options) {}

  Status find() {
    TRY(const Endpoint endpoint, Endpoint::from_url(options_.url));
    path_ = options_.path ? *options_.path : endpoint.path("/traces");
    client_ = std::make_unique<HttpClient>(endpoint, *this, options_.headers);
    return {};
  }
  // Whether the body was taken. Hurries when `stopping` becomes true.
  bool send(const std::string& body, const std::atomic<bool>& stopping) {
    if (!client_ && !find().ok()) return false;
    client_->post(0, path_, body);
    while (client_->in_flight() > 0) {
      client_->poll(50);
      const auto limit = stopping ? options_.last_timeout : options_.timeout;
      client_->expire(std::chrono::nanoseconds(limit).count());
    }
    return taken_;
  }

 private:
  void event(std::uint64_t, Nanoseconds, std::string_view) override {}
  void end(std::uint64_t, Nanoseconds, const HttpEnding& e) override { taken_ = e.error.empty(); }

  const TracerOptions& options_;
  std::string path_;
  std::unique_ptr<HttpClient> client_;
  bool taken_ = false;
};

Result<std::unique_ptr<Tracer>> Tracer::start(TracerOptions options) {
  std::unique_ptr<Tracer> tracer(new Tracer(std::move(options)));
  // A collector that is not up yet is waited for; a URL that cannot be right is not.
  if (Status s = tracer->collector_->find(); !s.ok() && s.error().code == Code::invalid)
    return s.error();
  tracer->thread_ = std::thread([t = tracer.get()] { t->loop(); });
  return tracer;
}

Tracer::Tracer(TracerOptions options)
    : options_(std::move(options)), collector_(std::make_unique<Collector>(options_)) {}

Tracer::~Tracer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool Tracer::samples(const TraceContext& context, bool given) const {
  if (given && options_.parent_based) return context.sampled;
  if (options_.sampler != TracerOptions::Sampler::ratio)
    return options_.sampler == TracerOptions::Sampler::always_on;
  std::uint64_t low = 0;  // the random part of the id
  std::from_chars(context.trace_id.data() + 19, context.trace_id.data() + 32, low, 16);
  return static_cast<double>(low) < options_.ratio * 0x1p52;
}

void Tracer::add(std::vector<Span> spans) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    const std::size_t room = options_.queue_max - std::min(options_.queue_max, queue_.size());
    if (spans.size() > room) {  // a trace goes whole or not at all
      dropped_ += spans.size();
      return;
    }
    for (Span& s : spans) queue_.push_back(std::move(s));
    wake = queue_.size() >= options_.batch_max;
  }
  if (wake) changed_.notify_one();
}

void Tracer::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_ || !queue_.empty()) {
    changed_.wait_for(lock, options_.delay,
                      [&] { return stopping_ || queue_.size() >= options_.batch_max; });
    std::vector<Span> batch;
    while (!queue_.empty() && batch.size() < options_.batch_max) {
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    if (batch.empty()) continue;
    lock.unlock();
    const bool taken = deliver(otlp_json(options_.resource, batch));
    (taken ? sent_ : dropped_) += batch.size();
    lock.lock();
    if (!taken && stopping_) {  // it is away: the rest would fare no better
      dropped_ += queue_.size();
      queue_.clear();
    }
  }
}

// A collector that restarts or is busy is asked again.
bool Tracer::deliver(const std::string& body) {
  for (int attempt = 1;; ++attempt) {
    if (collector_->send(body, stopping_)) return true;
    if (attempt == kAttempts) return false;
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, options_.delay * attempt, [&] { return stopping_.load(); }))
      return false;
  }
}

}  // namespace quire
