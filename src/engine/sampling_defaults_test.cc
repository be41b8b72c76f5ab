#include "engine/sampling_defaults.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace quire {
namespace {

TEST(SamplingDefaults, AModelWithoutSettingsIsDrawnByTheHouse) {
  for (const Json& none : {Json::object(), Json{{"do_sample", true}}}) {
    const SamplingDefaults d = sampling_defaults(none);
    EXPECT_FALSE(d.from_model);
    EXPECT_EQ(d.text(), "temperature 0.7, top_p 0.9");
  }
}

TEST(SamplingDefaults, TheModelsSettingsCount) {
  const SamplingDefaults d = sampling_defaults(
      Json{{"do_sample", true}, {"temperature", 0.6}, {"top_k", 20}, {"top_p", 0.95}});
  EXPECT_TRUE(d.from_model);
  EXPECT_EQ(d.text(), "temperature 0.6, top_k 20, top_p 0.95 (the model's)");
  // What it leaves out is off, not the house's.
  EXPECT_EQ(sampling_defaults(Json{{"temperature", 1.0}, {"top_k", -1}}).text(),
            "temperature 1 (the model's)");
  EXPECT_EQ(sampling_defaults(Json{{"do_sample", false}, {"temperature", 0.6}}).text(),
            "temperature 0 (the model's)");
  EXPECT_EQ(sampling_defaults(Json{{"repetition_penalty", 1.1}}).text(),
            "temperature 1, repetition_penalty 1.1 (the model's)");
}

TEST(SamplingDefaults, SettingsThatMakeNoSenseAreNobodys) {
  EXPECT_FALSE(sampling_defaults(Json{{"temperature", -3}}).from_model);
  EXPECT_FALSE(sampling_defaults(Json{{"top_p", 7}}).from_model);
  EXPECT_EQ(sampling_defaults(Json{{"temperature", 0.5}, {"top_k", 1e30}}).options.top_k, 0u);
}

}  // namespace
}  // namespace quire
