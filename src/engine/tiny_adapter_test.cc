// Adapters on tiny models against PEFT in fp32: tests/tiny/adapters.json, which tests/tiny/make_adapters.py
// made of what model/tiny_adapter.h writes.
#include "model/tiny_adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "engine/job.h"
#include "engine/testing.h"
#include "model/adapter/adapter.h"
#include "model/tiny_cases.h"

namespace quire {

void PrintTo(const TinyAdapterCase& c, std::ostream* out) { *out << c.name; }

namespace {

constexpr double kPlain = 1e-5;

class TinyAdapters : public ::testing::TestWithParam<TinyAdapterCase> {
 protected:
  static TinyOptions model() {
    for (const TinyCase& c : tiny_cases())
      if (c.name == GetParam().model) return c.options;
    ADD_FAILURE() << "no model " << GetParam().model;
    return {};
  }

  // The largest difference, relative to the largest logit. Reads `chunk` tokens at once.
  double error(const std::string& path, std::uint32_t chunk) {
    const Json expected = reference_["cases"][GetParam().name];
    EXPECT_FALSE(expected.is_null());
    const auto adapter = Adapter::load(path, runtime_->config(), true, 1 << 26);
    EXPECT_TRUE(adapter.ok()) << adapter.error().message;
    const auto set = AdapterSet::make({{adapter.value()}}).value();
    const auto prompt = reference_["prompt"].get<std::vector<TokenId>>();
    Sequence s = std::move(runtime_->cache()
                               .open({.root = runtime_->tenant_root("").value(),
                                      .token_capacity = 128,
                                      .reuse = false,
                                      .publish = false,
                                      .adapters = set,
                                      .adapted_from = set->begins_at(prompt)})
                               .value());
    runtime_->cache().attach(s, {});
    const std::uint32_t vocabulary = runtime_->config().vocabulary;
    std::vector<float> logits;
    for (std::size_t at = 0; at < prompt.size(); at += chunk) {
      const auto part =
          std::span(prompt).subspan(at, std::min<std::size_t>(chunk, prompt.size() - at));
      const StepItem item{&s, part, Logits::all};
      const auto got = Stepper(*runtime_).run({&item, 1});
      EXPECT_TRUE(got.ok());
      logits.insert(logits.end(), got.value().begin(), got.value().end());
    }
    double difference = 0, scale = 0;
    const Json& positions = reference_["positions"];
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto row = expected[i].get<std::vector<double>>();
      for (std::size_t t = 0; t < vocabulary; ++t) {
        const double d =
            std::abs(row[t] - logits[positions[i].get<std::size_t>() * vocabulary + t]);
        difference = d <= difference ? difference : d;  // a NaN stays
        scale = std::max(scale, std::abs(row[t]));
      }
    }
    return difference / scale;
  }

  const Json reference_ = parse_json(read_file("tests/tiny/adapters.json").value()).value();
  TinyRuntime runtime_{model(), {.kv_format = "f32"}};
};

TEST_P(TinyAdapters, LogitsAreThoseOfPeft) {
  const std::string folder = ::testing::TempDir() + "quire_peft_" + std::to_string(::getpid());
  ASSERT_TRUE(write_tiny_adapter(folder, GetParam().options, runtime_->config()).ok());
  for (const std::uint32_t chunk : {512u, 33u, 3u})
    EXPECT_LE(error(folder, chunk), kPlain) << chunk;
  // A GGUF file has one alpha for all, and its converter multiplied rslora away.
  const TinyAdapterOptions& o = GetParam().options;
  if (!o.rslora && o.ranks.empty() && o.alphas.empty()) {
    ASSERT_TRUE(write_file(folder + "/a.gguf", tiny_gguf_adapter(o, runtime_->config())).ok());
    EXPECT_LE(error(folder + "/a.gguf", 512), kPlain);
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Cases, TinyAdapters, ::testing::ValuesIn(tiny_adapter_cases()),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire
