#include "engine/sampling_defaults.h"

#include <fmt/core.h>

#include "base/json.h"

namespace quire {
namespace {

float setting(const Json& settings, const char* name, float otherwise) {
  const auto found = settings.find(name);
  return found != settings.end() && found->is_number() ? found->get<float>() : otherwise;
}

}  // namespace

SamplingDefaults sampling_defaults(const Json& settings) {
  if (settings.empty()) return {};
  SamplingOptions s{.temperature = setting(settings, "temperature", 1),
                    .top_p = setting(settings, "top_p", 1),
                    .min_p = setting(settings, "min_p", 0),
                    .repetition_penalty = setting(settings, "repetition_penalty", 1)};
  if (const float k = setting(settings, "top_k", 0); k >= 1 && k < 1e9f)  // -1 and 0: all
    s.top_k = static_cast<std::uint32_t>(k);
  if (const auto sample = settings.find("do_sample"); sample != settings.end() && *sample == false)
    s.temperature = 0;
  // Alone, "do_sample": true says nothing of how.
  if (settings.size() == 1 && settings.contains("do_sample") && s.temperature > 0) return {};
  if (!s.check(1).ok()) return {};  // settings that make no sense are nobody's
  return {.options = s, .from_model = true};
}

SamplingDefaults sampling_defaults(const ModelSource& source) {
  return sampling_defaults(source.sampling_settings());
}

std::string SamplingDefaults::text() const {
  std::string all = fmt::format("temperature {:.3g}", options.temperature);
  if (options.top_k > 0) all += fmt::format(", top_k {}", options.top_k);
  if (options.top_p < 1) all += fmt::format(", top_p {:.3g}", options.top_p);
  if (options.min_p > 0) all += fmt::format(", min_p {:.3g}", options.min_p);
  if (options.repetition_penalty != 1)
    all += fmt::format(", repetition_penalty {:.3g}", options.repetition_penalty);
  return all + (from_model ? " (the model's)" : "");
}

}  // namespace quire
