// Whole `kv` objects, sent as requests to the engine of a live server: each is refused with a 4xx or
// answered, in bounded time and memory, and equal requests in a crowd get the same answer.
#include <condition_variable>
#include <mutex>
#include <vector>

#include "server/dialect/openai/openai_parse.h"
#include "server/live_fuzzing.h"

namespace {
using namespace quire;

class FuzzSink final : public RequestSink {
 public:
  void token(std::uint32_t choice, const Choice& made) override {
    if (choice >= answers_.size()) answers_.resize(choice + 1);
    answers_[choice].push_back(made.token);
  }
  void finished(std::uint32_t, Finish) override {}
  void done(const Done&) override { end(true); }
  void failed(const Failure& failure) override {
    CHECK(!failure.message.empty());
    end(false);
  }
  // The answers, by choice; none: it failed.
  const std::vector<std::vector<TokenId>>* wait() {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(9), [&] { return over_; }));
    return good_ ? &answers_ : nullptr;
  }

 private:
  void end(bool good) {
    const std::lock_guard lock(mutex_);
    over_ = true;
    good_ = good;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false, good_ = false;
  std::vector<std::vector<TokenId>> answers_;
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

// Mostly what makes sense, so that most objects reach the engine.
Json fuzz_share(Chooser& pick) {
  return pick.chance(6) ? fuzz_number(pick) : pick.of<Json>({0.1, 0.3, 0.5, 0.9, 1});
}
Json fuzz_count(Chooser& pick) {
  return pick.chance(6) ? fuzz_number(pick) : pick.of<Json>({1, 4, 8, 16, 33, 64, 100});
}

Json fuzz_budget(Chooser& pick) {
  Json budget{
      {"policy", pick.of<Json>({"streaming", "window", "h2o", "tova", "keydiff", "knorm", "snapkv",
                                "expected", "kvzip", "random", "pyramid", "scissorhands",
                                "ada-snapkv", "critical-snapkv", "critical-h2o", "?"})}};
  if (pick.chance(2))
    budget["ratio"] = fuzz_share(pick);
  else
    budget["tokens"] = fuzz_count(pick);
  for (const char* field : {"cut", "sink", "recent", "every"})
    if (pick.chance(4)) budget[field] = fuzz_count(pick);
  if (pick.chance(8)) budget["per_head"] = pick.of<Json>({true, false, 1});
  if (pick.chance(8)) budget["merge"] = pick.of<Json>({"d2o", "cam", "value", "?"});
  return budget;
}

Json fuzz_select(Chooser& pick) {
  switch (pick.below(4)) {
    case 0:
      return {{"policy", "quest"}, {"tokens", fuzz_count(pick)}};
    case 1:
      return {{"policy", "xattention"}, {"threshold", fuzz_share(pick)}};
    case 2:
      return {{"policy", "vertical-slash"},
              {"columns", fuzz_count(pick)},
              {"diagonals", fuzz_count(pick)}};
    default:
      return {{"policy", pick.of<Json>({"topk", "?", 3})}, {"ratio", fuzz_share(pick)}};
  }
}

Json fuzz_retention(Chooser& pick) {
  Json retention = Json::object();
  if (pick.chance(2)) retention["pin"] = pick.of<Json>({true, false});
  if (pick.chance(2)) retention["ttl"] = pick.of<Json>({"1s", 1, "10ms", "1h", -1, "x", 1e300});
  if (pick.chance(3))
    retention["ranges"] = Json::array({{{"start", fuzz_count(pick)},
                                        {"end", fuzz_count(pick)},
                                        {"priority", fuzz_number(pick)}}});
  return retention;
}

Json fuzz_kv(Chooser& pick) {
  Json kv = Json::object();
  if (!pick.chance(8)) kv["allow_lossy"] = true;
  if (pick.chance(2)) kv["format"] = fuzz_format(pick);
  switch (pick.below(4)) {
    case 0:
      kv["budget"] = fuzz_budget(pick);
      break;
    case 1:
      kv["window"] = {{"size", fuzz_count(pick)}};
      if (pick.chance(2)) kv["window"]["sink"] = fuzz_count(pick);
      break;
    default:
      break;
  }
  if (pick.chance(4)) kv["select"] = fuzz_select(pick);
  if (pick.chance(4)) kv["retention"] = fuzz_retention(pick);
  if (pick.chance(4)) kv["reuse"] = pick.of<Json>({"none", "auto", "approximate", "session"});
  if (pick.chance(6)) kv["write"] = pick.of<Json>({"none", "prompt", "auto", "?"});
  if (pick.chance(6)) kv["convert"] = true;
  if (pick.chance(6)) kv["resident"] = pick.of<Json>({"1MiB", "40KiB", 100000, 0, -1, "1e99", "x"});
  if (pick.chance(6)) kv["salt"] = pick.of<Json>({"a", "b", "", "a/b"});
  if (pick.chance(6)) kv["report"] = Json::array({"timing", "blocks", "explain"});
  for (const char* field : {"window", "priority", "ttl", "recompute", "tiers", "prefill", "tenant"})
    if (pick.chance(16)) kv[field] = fuzz_number(pick);
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
  const Json body{{"model", "m"},
                  {"prompt", std::move(prompt)},
                  {"max_tokens", 1 + pick.below(40)},
                  {"ignore_eos", true},
                  {"temperature", 0},
                  {"n", 1 + pick.below(3)},
                  {"kv", fuzz_kv(pick)}};
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
  // Equal requests, some at once: all choices of all of them are the same answer, but where the answer
  // may depend on what is cached.
  std::vector<std::shared_ptr<FuzzSink>> sinks;
  for (std::uint32_t copies = 1 + pick.below(3); copies > 0; --copies) {
    sinks.push_back(std::make_shared<FuzzSink>());
    const Submitted s = server.service().submit(
        make_request(asked, prompts.front(), server.runtime(), "fuzz"), sinks.back());
    if (!s.ok()) {
      CHECK(!s.failure.message.empty());
      sinks.pop_back();
    }
  }
  const bool approximate = asked.kv.policy.convert || asked.kv.policy.blend;
  std::vector<TokenId> answer;
  for (const auto& sink : sinks) {
    const auto* answers = sink->wait();
    if (answers == nullptr || approximate) continue;
    for (const std::vector<TokenId>& one : *answers) {
      if (answer.empty()) answer = one;
      CHECK(one == answer);
    }
  }
  live.check_cost(began);
  return 0;
}
