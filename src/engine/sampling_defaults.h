// engine/sampling_defaults.h - how answers are drawn if the request does not say: one rule for the
// command line, the page and the API.
//
// The model's own settings (generation_config.json, or general.sampling.* of a GGUF file) come
// first. A model without settings gets temperature 0.7 and top_p 0.9.
//
//   const SamplingDefaults defaults = sampling_defaults(runtime.source());
//   defaults.options.temperature;    // 0.6
//   defaults.text();                 // "temperature 0.6, top_p 0.95 (the model's)"
#pragma once

#include <string>

#include "engine/sampler.h"
#include "model/weights_source.h"

namespace quire {

struct SamplingDefaults {
  SamplingOptions options = {.temperature = 0.7f, .top_p = 0.9f};
  bool from_model = false;

  std::string text() const;
};

SamplingDefaults sampling_defaults(const ModelSource& source);
SamplingDefaults sampling_defaults(const Json& settings);  // of ModelSource::sampling_settings()

}  // namespace quire
