// Whole `kv` objects, sent as requests to the engine of a live server: each is refused with a 4xx or
// answered, in bounded time and memory.
#include <condition_variable>
#include <mutex>

#include "server/dialect/openai/openai_parse.h"
#include "server/live_fuzzing.h"

namespace {
using namespace quire;

class FuzzSink final : public RequestSink {
 public:
  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done&) override { end(); }
  void failed(const Failure& failure) override {
    CHECK(!failure.message.empty());
    end();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(9), [&] { return over_; }));
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
};

Json fuzz_number(Chooser& pick) {
  return pick.of<Json>({0, 1, 2, 16, 17, 64, 255, 1000, 1 << 20, -1, 0.5, 0.3, 1e30, "x", nullptr,
                        true, "10s", "1000000d"});
}

Json fuzz_format(Chooser& pick) {
  const auto name = [&] {
    return pick.of<Json>({"f16", "f32", "int8", "int4", "hadamard-int4", "fp8", "kivi2", "bf16",
                          "planned", "nothing"});
  };
  if (pick.chance(2)) return name();
  Json format{{"k", name()}, {"v", name()}};
  for (const char* field : {"recent_exact", "sinks", "group"})
    if (pick.chance(3)) format[field] = fuzz_number(pick);
  if (pick.chance(4)) format["skip_layers"] = Json::array({fuzz_number(pick)});
  return format;
}

Json fuzz_kv(Chooser& pick) {
  Json kv = Json::object();
  if (!pick.chance(4)) kv["allow_lossy"] = true;
  if (pick.chance(2)) kv["format"] = fuzz_format(pick);
  if (pick.chance(2)) {
    Json budget{
        {"policy", pick.of<Json>({"streaming", "window", "h2o", "tova", "keydiff", "knorm",
                                  "snapkv", "expected", "kvzip", "random", "pyramid", "?"})}};
    for (const char* field : {"tokens", "ratio", "cut", "sinks", "recent", "per_head", "window"})
      if (pick.chance(2)) budget[field] = fuzz_number(pick);
    kv["budget"] = std::move(budget);
  }
  if (pick.chance(4))
    kv["select"] = {{"policy", pick.of<Json>({"quest", "topk", "window", "?"})},
                    {"tokens", fuzz_number(pick)}};
  if (pick.chance(4))
    kv["retention"] = {{"pin", pick.of<Json>({true, false})}, {"ttl", fuzz_number(pick)}};
  for (const char* field : {"window", "priority", "ttl", "recompute", "convert", "reuse", "write",
                            "salt", "report", "tiers", "prefill"})
    if (pick.chance(5)) kv[field] = fuzz_number(pick);
  return kv;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  LiveServer& live = LiveServer::get();
  Server& server = live.server();
  const auto began = std::chrono::steady_clock::now();
  Chooser pick(data, size);
  Json prompt = Json::array();
  for (std::uint32_t n = 1 + pick.below(200); n > 0; --n) prompt.push_back(61 + pick.below(3));
  const Json body{
      {"model", "m"},       {"prompt", std::move(prompt)}, {"max_tokens", 1 + pick.below(40)},
      {"ignore_eos", true}, {"n", 1 + pick.below(3)},      {"kv", fuzz_kv(pick)}};
  Call call;
  struct NoExchange final : Exchange {
    void post(std::function<void()>) override {}
    void respond(HttpResponse) override {}
    void begin(HttpResponse) override {}
    bool write(std::string_view) override { return true; }
    void end() override {}
    bool began() const override { return false; }
    bool over() const override { return false; }
    std::uint64_t bytes_sent() const override { return 0; }
  };
  call.exchange = std::make_shared<NoExchange>();
  GenerationRequest asked;
  if (const auto error = openai::parse_completion(body, server.parse_context(call), asked)) {
    CHECK(error->status >= 400 && error->status < 600 && !error->message.empty());
    return 0;
  }
  std::vector<Prompt> prompts;
  if (make_prompts(asked, server.runtime(), prompts)) return 0;
  const auto sink = std::make_shared<FuzzSink>();
  const Submitted s =
      server.service().submit(make_request(asked, prompts.front(), server.runtime(), "fuzz"), sink);
  if (s.ok())
    sink->wait();
  else
    CHECK(!s.failure.message.empty());
  live.check_cost(began);
  return 0;
}
