// engine/sampling_defaults.h - how answers are drawn where nobody says: one rule for the command
// line, the page and the API.
//
// A model that comes with settings (generation_config.json, or general.sampling.* of a GGUF file)
// is drawn as they say; every other one with temperature 0.7 and top_p 0.9.
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
