// Requests with adapters: the same bits in any company, blocks that nobody else's adapter finds, and
// the table of what is served.
#include "engine/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "engine/engine_testing.h"
#include "engine/sessions.h"
#include "model/tiny_adapter.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using Set = std::shared_ptr<const AdapterSet>;

Set set_of(std::vector<AdapterSet::Part> parts) {
  return AdapterSet::make(std::move(parts)).value();
}

Request adapted(std::vector<TokenId> prompt, Set set, std::uint32_t tokens = 6) {
  Request r = request(std::move(prompt), tokens);
  r.kv.adapters = std::move(set);
  r.sampling.logprobs = 3;
  return r;
}

// Tokens and their log-probabilities.
std::vector<std::pair<TokenId, float>> told(const MemorySink& sink) {
  std::vector<std::pair<TokenId, float>> all;
  for (const Choice& c : sink.answers[0].tokens) all.emplace_back(c.token, c.logprob);
  return all;
}

struct AnyModel {
  const char* name;
  TinyOptions options;
};
void PrintTo(const AnyModel& m, std::ostream* out) { *out << m.name; }

class AdaptedModels : public ::testing::TestWithParam<AnyModel> {};

// Base, two adapters, both together in either order, and one that begins late: whoever shares a step.
TEST_P(AdaptedModels, ABatchOfAllIsEachAlone) {
  std::vector<std::vector<std::pair<TokenId, float>>> first;
  for (const Isa isa : kIsas) {
    if (!cpu_has(isa)) continue;
    for (const std::uint32_t threads : {1u, 2u, 3u}) {
      if (isa == Isa::scalar && threads != 2) continue;
      RuntimeOptions opened{.threads = threads, .isa = isa};
      TinyEngine e(GetParam().options, opened, {.step_tokens = 64});
      const ModelConfig& config = e.runtime->config();
      const auto one = Adapter::random(config, 4, 1, 0.3f).value(),
                 two = Adapter::random(config, 20, 2, 0.2f).value(),
                 late = Adapter::random(config, 8, 3, 0.3f, {'m'}).value();
      const std::vector<Set> sets = {nullptr,         set_of({{one}}),
                                     set_of({{two}}), set_of({{one}, {two, 0.5f}}),
                                     nullptr,         set_of({{two, 0.5f}, {one}}),
                                     set_of({{late}})};
      std::vector<TokenId> prompt = text_of(70, 9);
      prompt[50] = 'm';
      for (std::size_t i = 51; i < prompt.size(); ++i)
        prompt[i] = prompt[i] == 'm' ? 'n' : prompt[i];
      std::vector<std::vector<std::pair<TokenId, float>>> alone;
      for (const Set& set : sets) {
        e.runtime->cache().clear(true);
        const auto sink = e.submit(adapted(prompt, set));
        e.run();
        ASSERT_TRUE(sink->result);
        alone.push_back(told(*sink));
      }
      for (std::size_t i = 1; i < sets.size(); ++i)
        EXPECT_EQ(alone[i] == alone[0], sets[i] == nullptr) << "set " << i;
      for (const std::uint32_t chunk : {0u, 1u, 9u}) {
        e.runtime->cache().clear(true);
        std::vector<std::shared_ptr<MemorySink>> sinks;
        for (const Set& set : sets) {
          Request r = adapted(prompt, set);
          r.chunk = chunk;
          r.kv.reuse = false;
          sinks.push_back(e.submit(std::move(r)));
        }
        e.run();
        for (std::size_t i = 0; i < sets.size(); ++i)
          EXPECT_EQ(told(*sinks[i]), alone[i]) << "set " << i << ", chunks of " << chunk;
      }
      if (first.empty()) first = alone;
      EXPECT_EQ(first, alone) << isa_name(isa) << " with " << threads << " threads";
      e.expect_empty();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, AdaptedModels,
    ::testing::Values(AnyModel{"llama", {.layers = 2}},
                      AnyModel{"llama_q8_0", {.type = DType::q8_0, .layers = 2}},
                      AnyModel{"qwen2_bf16", {.architecture = "qwen2", .type = DType::bf16}},
                      AnyModel{"olmo2", {.architecture = "olmo2"}},  // a norm of all heads
                      AnyModel{"falcon", {.architecture = "falcon", .kv_heads = 1}},  // parallel
                      AnyModel{"gpt2", {.architecture = "gpt2"}},  // biases, no gate
                      AnyModel{"granite_q4_1", {.architecture = "granite", .type = DType::q4_1}},
                      AnyModel{"mixtral", {.layers = 2, .experts = 4}}),
    [](const auto& p) { return std::string(p.param.name); });

// Answers are those of a model that has W + scale B A for W, as near as two roundings let them be.
TEST(AdaptedAnswers, AreThoseOfMergedWeights) {
  const TinyOptions options{.layers = 2};
  const std::string folder = ::testing::TempDir() + "quire_merge_" + std::to_string(::getpid());
  TinyRuntime plain(options, {.kv_format = "f32"});
  const TinyAdapterOptions all{
      .modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}};
  ASSERT_TRUE(write_tiny_adapter(folder, all, plain->config()).ok());
  ASSERT_TRUE(write_file(folder + "/a.gguf", tiny_gguf_adapter(all, plain->config())).ok());
  const std::vector<TokenId> prompt = text_of(40, 3);
  const auto logits = [&](Runtime& runtime, const Set& set) {
    Stepper stepper(runtime);
    Sequence s = std::move(runtime.cache()
                               .open({.root = runtime.tenant_root("").value(),
                                      .token_capacity = 40,
                                      .reuse = false,
                                      .adapters = set})
                               .value());
    runtime.cache().attach(s, prompt);
    const auto got = stepper.read(s).value();
    return std::vector<float>(got.begin(), got.end());
  };
  for (const std::string& path : {folder, folder + "/a.gguf"}) {
    ASSERT_TRUE(plain->adapters().load("a", path, true).ok());
    const std::vector<float> beside = logits(*plain, plain->adapters().find("a").value()),
                             base = logits(*plain, nullptr);
    TinyRuntime merged(options, {.kv_format = "f32", .merged_adapter = path});
    const std::vector<float> within = logits(*merged, nullptr);
    EXPECT_NE(plain->identity("", nullptr).weights, merged->identity("", nullptr).weights);
    double difference = 0, moved = 0, scale = 0;
    for (std::size_t i = 0; i < base.size(); ++i) {
      difference = std::max(difference, std::abs(double{beside[i]} - within[i]));
      moved = std::max(moved, std::abs(double{beside[i]} - base[i]));
      scale = std::max(scale, std::abs(double{within[i]}));
    }
    EXPECT_LT(difference / scale, 1e-5) << path;
    EXPECT_GT(moved / scale, 0.1) << path;
  }
  std::filesystem::remove_all(folder);
}

class AdapterTable : public ::testing::Test {
 protected:
  AdapterTable() {
    std::filesystem::create_directories(in_ + "/sub");
    for (const char* name : {"a", "b", "c"}) write(name, static_cast<std::uint64_t>(name[0]));
  }
  ~AdapterTable() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, std::uint64_t seed) {
    ASSERT_TRUE(
        write_tiny_adapter(in_ + "/" + name, {.seed = seed}, engine_.runtime->config()).ok());
  }
  std::vector<std::pair<TokenId, float>> answer(const Set& set, std::uint32_t* cached = nullptr) {
    const auto sink = engine_.submit(adapted(text_of(100, 4), set));
    engine_.run();
    if (cached) *cached = sink->result->cached_tokens;
    return told(*sink);
  }

  TinyEngine engine_{tiny()};
  const std::string folder_ = ::testing::TempDir() + "quire_table_" + std::to_string(::getpid()),
                    in_ = folder_ + "/in";
};

TEST_F(AdapterTable, TheSameTextUnderAnotherAdapterNeverHits) {
  Adapters& adapters = engine_.runtime->adapters();
  ASSERT_TRUE(adapters.load("a", in_ + "/a").ok());
  ASSERT_TRUE(adapters.load("b", in_ + "/b").ok());
  std::uint32_t cached = 0;
  const auto base = answer(nullptr, &cached);
  EXPECT_EQ(cached, 0u);
  const auto of_a = answer(adapters.find("a").value(), &cached);
  EXPECT_EQ(cached, 0u);
  answer(adapters.find("b").value(), &cached);
  EXPECT_EQ(cached, 0u);
  std::string names;
  const ScaledAdapter both[] = {{0, 1}, {1, 1}}, half[] = {{0, 0.5f}};
  answer(adapters.find(both, names).value(), &cached);
  EXPECT_EQ(cached, 0u);
  EXPECT_EQ(names, "a+b");
  answer(adapters.find(half, names).value(), &cached);
  EXPECT_EQ(cached, 0u);
  EXPECT_EQ(answer(adapters.find("a").value(), &cached), of_a);
  EXPECT_GE(cached, 96u);
  EXPECT_EQ(answer(nullptr, &cached), base);
  EXPECT_GE(cached, 96u);
  // Another file under the same name, and the first one again.
  write("a", 77);
  EXPECT_FALSE(adapters.load("a", in_ + "/a").ok());
  ASSERT_TRUE(adapters.load("a", in_ + "/a", true).ok());
  EXPECT_NE(answer(adapters.find("a").value(), &cached), of_a);
  EXPECT_EQ(cached, 0u);
  write("a", 'a');
  ASSERT_TRUE(adapters.load("a", in_ + "/a", true).ok());
  EXPECT_EQ(answer(adapters.find("a").value(), &cached), of_a);
  EXPECT_GE(cached, 96u);
}

TEST_F(AdapterTable, WhatBeginsLateSharesWhatTheModelLeft) {
  const auto late = Adapter::random(engine_.runtime->config(), 8, 3, 0.3f, {'!', '!'}).value();
  const Set set = set_of({{late}});
  std::vector<TokenId> prompt = text_of(100, 4);
  const auto sink = engine_.submit(request(prompt, 1));
  engine_.run();
  prompt.resize(75);
  prompt.insert(prompt.end(), {'!', '!'});
  for (const TokenId t : text_of(40, 5)) prompt.push_back(t);
  const auto fresh = [&](bool reuse) {
    Request r = adapted(prompt, set);
    r.kv.reuse = reuse;
    if (!reuse) r.kv.write = KvWrite::none;
    const auto got = engine_.submit(std::move(r));
    engine_.run();
    return std::pair(told(*got), got->result->cached_tokens);
  };
  const auto alone = fresh(false), shared = fresh(true), again = fresh(true);
  EXPECT_EQ(alone.first, shared.first);
  EXPECT_EQ(alone.first, again.first);
  EXPECT_EQ(shared.second, 64u);  // whole blocks before the invocation
  EXPECT_GE(again.second, 96u);
  // The model does not find what was adapted.
  const auto base = engine_.submit(request(prompt, 6));
  engine_.run();
  EXPECT_LT(base->result->cached_tokens, 77u);
  EXPECT_NE(told(*base), alone.first);
  // Without the invocation the model answers as it is.
  const auto never = engine_.submit(adapted(text_of(100, 4), set, 1));
  engine_.run();
  EXPECT_EQ(told(*never)[0].first, sink->answers[0].tokens[0].token);
  EXPECT_GE(never->result->cached_tokens, 96u);
  const PreparedJob refused = prepare_job(
      *engine_.runtime, engine_.options,
      [&] {
        Request r = adapted(prompt, set);
        r.kv.retain = std::make_shared<RetainPolicy>(parse_retain_policy("snapkv:50%").value());
        return r;
      }(),
      nullptr);
  EXPECT_THAT(refused.failure.message, HasSubstr("invocation"));
}

TEST_F(AdapterTable, MemoryIsBoundedAndTheLeastRecentlyUsedLeaves) {
  const std::uint64_t one = std::uint64_t{2} << 20;  // a huge page each
  Adapters adapters(engine_.runtime->config(), true, {.bytes_max = 2 * one});
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(adapters.load(name, in_ + "/" + name).ok());
  const auto in_memory = [&] {
    std::string names;
    for (const AdapterInfo& a : adapters.list())
      if (a.in_memory) names += a.name;
    return names;
  };
  EXPECT_EQ(in_memory(), "bc");
  EXPECT_LE(adapters.bytes(), 2 * one);
  {
    const Set a = adapters.find("a").value();
    EXPECT_EQ(in_memory(), "ac");
    const Set c = adapters.find("c").value();
    const auto full = adapters.find("b");
    ASSERT_FALSE(full.ok());
    EXPECT_EQ(full.error().code, Code::exhausted);
    EXPECT_THAT(full.error().message, HasSubstr("--lora-memory"));
    EXPECT_TRUE(adapters.unload("a").ok());
    EXPECT_EQ(adapters.bytes(), 2 * one) << "who uses it still has it";
    EXPECT_FALSE(adapters.find("b").ok());
  }
  EXPECT_EQ(adapters.bytes(), one);
  EXPECT_TRUE(adapters.find("b").ok());
  EXPECT_FALSE(adapters.has("a"));
  EXPECT_EQ(adapters.unload("a").error().code, Code::not_found);
  // What left memory and has changed on disk is not served under its old name.
  ASSERT_TRUE(adapters.load("d", in_ + "/a").ok());
  write("c", 78);
  const auto changed = adapters.find("c");
  ASSERT_FALSE(changed.ok());
  EXPECT_THAT(changed.error().message, HasSubstr("another one now"));
  ASSERT_TRUE(adapters.load("c", in_ + "/c", true).ok());
  EXPECT_TRUE(adapters.find("c").ok());
}

TEST_F(AdapterTable, ClientsLoadFromTheFolderAlone) {
  namespace fs = std::filesystem;
  const std::string outside = folder_ + "/out";
  ASSERT_TRUE(write_tiny_adapter(outside, {}, engine_.runtime->config()).ok());
  fs::create_directory_symlink(outside, in_ + "/link");
  fs::create_directories(in_ + "/half");
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
    fs::create_symlink(outside + "/" + file, in_ + "/half/" + file);
  Adapters shut(engine_.runtime->config(), true, {}),
      open(engine_.runtime->config(), true, {.folder = in_});
  EXPECT_EQ(shut.load_inside("a", in_ + "/a").error().code, Code::unavailable);
  EXPECT_TRUE(open.load_inside("a", "a").ok());
  EXPECT_TRUE(open.load_inside("b", in_ + "/b").ok());
  EXPECT_TRUE(open.load_inside("c", "sub/../c").ok());
  for (const std::string& path :
       {outside, std::string("../out"), std::string("link"), in_ + "/../out", std::string("half"),
        std::string("."), std::string("/etc/passwd"), folder_ + "/input", std::string("a\0b", 3)}) {
    const Status got = open.load_inside("x", path);
    ASSERT_FALSE(got.ok()) << path;
    EXPECT_THAT(got.error().message, HasSubstr("not in the folder")) << path;
  }
  EXPECT_EQ(open.load_inside("x", "none").error().code, Code::not_found);
  EXPECT_THAT(open.load_inside("x", "../none").error().message, HasSubstr("not in the folder"));
  for (const std::string& name : {std::string(), std::string("a b"), std::string(300, 'x')})
    EXPECT_EQ(open.load_inside(name, "a").error().code, Code::invalid);
}

TEST_F(AdapterTable, StandingScalesAreForRequestsThatNameNone) {
  Adapters adapters(engine_.runtime->config(), true, {});
  std::string names;
  EXPECT_EQ(adapters.standing(names).value(), nullptr);
  ASSERT_TRUE(adapters.load("a", in_ + "/a").ok());
  ASSERT_TRUE(adapters.load("b", in_ + "/b").ok());
  EXPECT_EQ(adapters.standing(names).value(), nullptr);
  const ScaledAdapter second[] = {{1, 0.5f}}, unknown[] = {{7, 1}};
  EXPECT_FALSE(adapters.set_standing(unknown).ok());
  ASSERT_TRUE(adapters.set_standing(second).ok());
  EXPECT_EQ(adapters.standing(names).value()->digest(),
            adapters.find(second, names).value()->digest());
  EXPECT_EQ(adapters.find(unknown, names).error().code, Code::not_found);
  ASSERT_TRUE(adapters.set_standing({}).ok());
  EXPECT_EQ(adapters.standing(names).value(), nullptr);
}

TEST_F(AdapterTable, ASessionGoesOnUnderItsAdapterAlone) {
  const KvPolicy base, a{.adapters = AdapterSet::named("a")}, b{.adapters = AdapterSet::named("b")};
  EXPECT_FALSE(same_state(base, a));
  EXPECT_FALSE(same_state(a, b));
  EXPECT_TRUE(same_state(a, KvPolicy{.adapters = AdapterSet::named("a")}));
}

}  // namespace
}  // namespace quire
