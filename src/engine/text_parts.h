// engine/text_parts.h - tokenizer and chat template out of a model's files.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "model/weights_source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire {

struct TextParts {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;  // absent where the model has none
  std::string template_problem;               // why a template that is there cannot be used
};

Result<TextParts> read_text_parts(const ModelSource& source);

}  // namespace quire
