#include "server/tracer.h"

#include <gtest/gtest.h>

#include <map>

#include "net/http_server.h"

namespace quire {
namespace {

using namespace std::chrono_literals;

// Takes what is posted, after `refusals` answers of 503.
class Collector {
 public:
  explicit Collector(int refusals = 0) : refusals_(refusals) {
    server_ = std::move(HttpServer::start({}, [this](std::shared_ptr<Exchange> x) {
                          std::lock_guard lock(mutex_);
                          if (refusals_-- > 0) return x->respond({.status = 503});
                          paths_.push_back(x->request().path);
                          keys_.push_back(std::string(x->request().header("x-key")));
                          bodies_.push_back(parse_json(x->request().body).value());
                          x->respond({.body = "{}"});
                        }).value());
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  std::vector<Json> spans() {
    std::lock_guard lock(mutex_);
    std::vector<Json> all;
    for (const Json& b : bodies_)
      for (const Json& s : b["resourceSpans"][0]["scopeSpans"][0]["spans"]) all.push_back(s);
    return all;
  }
  std::uint64_t connections() const { return server_->counters().connections_total; }

  std::vector<std::string> paths_, keys_;
  std::vector<Json> bodies_;

 private:
  std::mutex mutex_;
  int refusals_;
  std::unique_ptr<HttpServer> server_;  // last: its thread uses the others
};

Span span_named(std::string name) {
  return {.name = std::move(name), .trace_id = std::string(32, 'a'), .span_id = "1234567812345678"};
}

TracerOptions quick(std::string url) {
  TracerOptions o;
  o.url = std::move(url);
  o.delay = 10ms;
  o.timeout = 60s;
  return o;
}

void wait_until(const std::function<bool()>& what) {
  for (int i = 0; i < 2000 && !what(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(what());
}

TEST(Tracer, SpansArriveInBatchesOverOneConnection) {
  Collector collector;
  TracerOptions options = quick(collector.url());
  options.headers = "x-key: secret\r\n";
  options.resource = {{"service.name", "test"}};
  auto tracer = std::move(Tracer::start(options).value());
  for (int i = 0; i < 5; ++i) {
    tracer->add({span_named("a"), span_named("b")});
    wait_until([&] { return tracer->sent() == 2u * (i + 1); });
  }
  EXPECT_EQ(collector.spans().size(), 10u);
  EXPECT_EQ(collector.paths_[0], "/v1/traces");
  EXPECT_EQ(collector.keys_[0], "secret");
  EXPECT_EQ(
      collector.bodies_[0]["resourceSpans"][0]["resource"]["attributes"][0]["value"]["stringValue"],
      "test");
  EXPECT_EQ(collector.connections(), 1u);
}

TEST(Tracer, WhatIsQueuedIsSentAtTheEnd) {
  Collector collector;
  TracerOptions options = quick(collector.url());
  options.delay = 1h;
  options.last_timeout = 1h;  // sanitizers take their time
  {
    auto tracer = std::move(Tracer::start(options).value());
    for (int i = 0; i < 700; ++i) tracer->add({span_named("x")});  // more than a batch
  }
  EXPECT_EQ(collector.spans().size(), 700u);
}

TEST(Tracer, BusyCollectorIsAskedAgain) {
  Collector collector(2);
  auto tracer = std::move(Tracer::start(quick(collector.url())).value());
  tracer->add({span_named("x")});
  wait_until([&] { return tracer->sent() == 1; });
  EXPECT_EQ(tracer->dropped(), 0u);
}

TEST(Tracer, FullQueueDropsAndCounts) {
  TracerOptions options = quick("http://127.0.0.1:9");  // nobody is there
  options.delay = 1h;
  options.queue_max = 10;
  auto tracer = std::move(Tracer::start(options).value());
  for (int i = 0; i < 6; ++i) tracer->add({span_named("a"), span_named("b"), span_named("c")});
  EXPECT_EQ(tracer->dropped(), 9u) << "three traces fit";
  const auto began = std::chrono::steady_clock::now();
  tracer.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
}

TEST(Tracer, CollectorThatNeverAnswersDoesNotHoldUpTheEnd) {
  auto silent = HttpServer::start({}, [](std::shared_ptr<Exchange>) {});
  TracerOptions options = quick("http://127.0.0.1:" + std::to_string(silent.value()->port()));
  auto tracer = std::move(Tracer::start(options).value());
  tracer->add({span_named("x")});
  std::this_thread::sleep_for(50ms);
  const auto began = std::chrono::steady_clock::now();
  tracer.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
}

TEST(Tracer, UrlThatCannotBeRightIsRefused) {
  EXPECT_FALSE(Tracer::start(quick("https://collector:4318")).ok());
  EXPECT_FALSE(Tracer::start(quick("collector")).ok());
}

TEST(Tracer, SamplerFollowsTheCallerOrTheRatio) {
  TracerOptions options = quick("http://127.0.0.1:9");
  options.sampler = TracerOptions::Sampler::ratio;
  options.ratio = 0.25;
  auto tracer = std::move(Tracer::start(options).value());
  const auto context = [](char digit, bool sampled) {
    return TraceContext{.trace_id = std::string(32, digit), .sampled = sampled};
  };
  EXPECT_TRUE(tracer->samples(context('3', false), false));
  EXPECT_FALSE(tracer->samples(context('4', false), false));
  EXPECT_TRUE(tracer->samples(context('f', true), true)) << "the caller has decided";
  EXPECT_FALSE(tracer->samples(context('0', false), true));
}

Result<std::optional<TracerOptions>> from(std::map<std::string, std::string> variables) {
  return TracerOptions::from_environment([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(TracerOptions, StandardVariablesAreRead) {
  EXPECT_FALSE(from({}).value().has_value());
  EXPECT_FALSE(from({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, {"OTEL_SDK_DISABLED", "true"}})
                   .value()
                   .has_value());
  const TracerOptions o =
      *from({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
             {"OTEL_SERVICE_NAME", "mine"},
             {"OTEL_RESOURCE_ATTRIBUTES", "service.name=other, host.name=a%20b ,"},
             {"OTEL_EXPORTER_OTLP_HEADERS", "api-key=k%3D1"},
             {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"},
             {"OTEL_TRACES_SAMPLER_ARG", "0.5"},
             {"OTEL_EXPORTER_OTLP_TIMEOUT", "2500"}})
           .value();
  EXPECT_EQ(o.url, "http://c:4318");
  EXPECT_EQ(o.resource["service.name"], "mine");
  EXPECT_EQ(o.resource["host.name"], "a b");
  EXPECT_EQ(o.headers, "api-key: k=1\r\n");
  EXPECT_EQ(o.ratio, 0.5);
  EXPECT_TRUE(o.parent_based);
  EXPECT_EQ(o.timeout, 2500ms);
  EXPECT_EQ(from({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4318/a/b"}}).value()->path,
            "/a/b");
}

TEST(TracerOptions, WhatMakesNoSenseIsNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"OTEL_TRACES_SAMPLER", "sometimes"},        {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
      {"OTEL_RESOURCE_ATTRIBUTES", "no equals"},   {"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a=%0d%0ab"},
  };
  for (const auto& [name, value] : wrong) {
    const auto got = from({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, {name, value}});
    ASSERT_FALSE(got.ok()) << name;
    EXPECT_NE(got.error().message.find(name), std::string::npos);
  }
}

TEST(Span, TraceparentIsReadAsW3cSays) {
  const std::string trace(32, 'a'), parent(16, 'b');
  const auto whole = parse_traceparent("00-" + trace + "-" + parent + "-01", "vendor=1");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->trace_id, trace);
  EXPECT_EQ(whole->parent_id, parent);
  EXPECT_EQ(whole->state, "vendor=1");
  EXPECT_TRUE(whole->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + trace + "-" + parent + "-00")->sampled);
  EXPECT_TRUE(parse_traceparent("01-" + trace + "-" + parent + "-01-more"));
  for (const std::string& bad :
       {std::string(), "00-" + trace + "-" + parent, "ff-" + trace + "-" + parent + "-01",
        "00-" + trace + "-" + parent + "-01-more",
        "00-" + std::string(32, '0') + "-" + parent + "-01",
        "00-" + trace + "-" + std::string(16, '0') + "-01",
        "00-" + std::string(32, 'A') + "-" + parent + "-01", "00_" + trace + "-" + parent + "-01"})
    EXPECT_FALSE(parse_traceparent(bad)) << bad;
}

TEST(Span, OtlpHasTypedValuesAndLongNumbersAsStrings) {
  Span s = span_named("chat m");
  s.kind = Span::Kind::server;
  s.start_unix_ns = 1795000000123456789;
  s.failed = true;
  s.attribute("tokens", 12);
  s.attribute("share", 0.5);
  s.attribute("stream", true);
  s.attribute("finish", Json::array({"stop", "length"}));
  const Json all = parse_json(otlp_json({{"service.name", "q"}}, std::vector{s})).value();
  const Json& one = all["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(one["kind"], 2);
  EXPECT_EQ(one["startTimeUnixNano"], "1795000000123456789");
  EXPECT_EQ(one["attributes"][0]["value"]["intValue"], "12");
  EXPECT_EQ(one["attributes"][1]["value"]["doubleValue"], 0.5);
  EXPECT_EQ(one["attributes"][2]["value"]["boolValue"], true);
  EXPECT_EQ(one["attributes"][3]["value"]["arrayValue"]["values"][1]["stringValue"], "length");
  EXPECT_EQ(one["status"]["code"], 2);
  EXPECT_FALSE(one.contains("parentSpanId"));
}

}  // namespace
}  // namespace quire
