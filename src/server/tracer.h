// server/tracer.h - sends spans to an OpenTelemetry collector (OTLP over HTTP, as JSON), from a
// thread of its own.
//
// No request waits for it. add() puts spans into a bounded queue; spans that do not fit are dropped
// and counted. A slow or absent collector costs no more than the memory of the queue.
//
//   if (auto options = TracerOptions::from_environment(std::getenv)) {
//     TRY(auto tracer, Tracer::start(*options));
//     if (tracer->samples(context, came_with_one)) tracer->add(std::move(spans));
//   }
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "server/span.h"

namespace quire {

struct TracerOptions {
  std::string url = {};  // of the collector; spans go to URL/v1/traces, or to `path` if it is given
  std::optional<std::string> path = {};
  std::string headers = {};        // whole lines
  Json resource = Json::object();  // service.name and the like
  enum class Sampler : std::uint8_t { always_on, always_off, ratio };
  Sampler sampler = Sampler::always_on;
  bool parent_based = true;  // a caller that has decided is followed
  double ratio = 1;
  std::size_t queue_max = 8192, batch_max = 512;  // spans
  std::chrono::milliseconds delay = std::chrono::seconds(1), timeout = std::chrono::seconds(10);
  std::chrono::milliseconds last_timeout = std::chrono::seconds(1);  // when the server ends

  // What OTEL_* variables say. Nothing where no endpoint is named or the SDK is disabled; an error
  // says which variable makes no sense.
  static Result<std::optional<TracerOptions>> from_environment(
      const std::function<const char*(const char*)>& get, const std::string& url = {});
};

class Tracer {
 public:
  static Result<std::unique_ptr<Tracer>> start(TracerOptions options);
  ~Tracer();  // sends what is queued, if that goes quickly

  // Whether the trace is to be recorded; `given`: the caller sent the context.
  bool samples(const TraceContext& context, bool given) const;
  void add(std::vector<Span> spans);  // any thread

  std::uint64_t sent() const { return sent_; }
  std::uint64_t dropped() const { return dropped_; }

 private:
  class Collector;
  explicit Tracer(TracerOptions options);
  void loop();
  bool deliver(const std::string& body);

  const TracerOptions options_;
  std::unique_ptr<Collector> collector_;  // the thread's
  std::mutex mutex_;                      // of the queue
  std::condition_variable changed_;
  std::deque<Span> queue_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> sent_{0}, dropped_{0};
  std::thread thread_;
};

}  // namespace quire
