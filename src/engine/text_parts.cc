#include "engine/text_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "text/control_tokens.h"

namespace quire {
namespace {

VocabSpec spec_from_gguf(const GgufTokenizer& g, VocabModel model) {
  VocabSpec spec;
  spec.model = model;
  if (!g.pre.empty()) spec.pre = g.pre;
  for (const std::string_view t : g.tokens) spec.tokens.emplace_back(t);
  for (const std::string_view m : g.merges) spec.merges.emplace_back(m);
  for (std::uint64_t i = 0; i < g.scores.size(); ++i) spec.scores.push_back(g.scores[i]);
  for (std::uint64_t i = 0; i < g.types.size(); ++i) {
    const std::int64_t type = g.types[i];
    spec.types.push_back(static_cast<TokenType>(type >= 1 && type <= 6 ? type : 1));
  }
  spec.bos = g.bos.value_or(kNoToken);
  spec.eos = g.eos.value_or(kNoToken);
  spec.eot = g.eot.value_or(kNoToken);
  if (g.eom) spec.end_of_generation.push_back(*g.eom);  // a tool call ends with it
  spec.unk = g.unknown.value_or(kNoToken);
  spec.pad = g.padding.value_or(kNoToken);
  const bool pieces = model == VocabModel::sentencepiece;
  spec.add_bos = g.add_bos;
  spec.add_eos = g.add_eos.value_or(false);
  spec.space_prefix =
      g.add_space_prefix.value_or(pieces) ? SpacePrefix::always : SpacePrefix::never;
  spec.remove_extra_whitespaces = g.remove_extra_whitespaces.value_or(false);
  return spec;
}

// The vocabulary of a model with random weights: the 256 bytes, and made-up names for all other
// ids.
VocabSpec spec_of_bytes(std::uint32_t vocabulary) {
  VocabSpec spec;
  spec.model = VocabModel::sentencepiece;
  for (std::uint32_t id = 0; id < std::max(vocabulary, 257u); ++id) {
    spec.tokens.push_back(id == 0     ? "<unk>"
                          : id <= 256 ? fmt::format("<0x{:02X}>", id - 1)
                                      : fmt::format("<{}>", id));
    spec.types.push_back(id == 0     ? TokenType::unknown
                         : id <= 256 ? TokenType::byte
                                     : TokenType::normal);
    spec.scores.push_back(0);
  }
  spec.unk = 0;
  return spec;
}

// The template of a Hugging Face folder: a file of its own, or a field that is a string or a list
// of named ones.
std::string template_from_hf(const HfTokenizer& hf) {
  if (!hf.chat_template.empty()) return hf.chat_template;
  const Result<Json> config = parse_json(hf.tokenizer_config_json);
  if (!config.ok() || !config.value().is_object() || !config.value().contains("chat_template"))
    return {};
  const Json& field = config.value()["chat_template"];
  if (field.is_string()) return field.get<std::string>();
  if (field.is_array())
    for (const Json& entry : field)
      if (entry.value("name", "") == "default") return entry.value("template", "");
  return {};
}

}  // namespace

Result<TextParts> read_text_parts(const ModelSource& source) {
  VocabSpec spec;
  std::string chat_template;
  if (source.is_gguf()) {
    TRY(const GgufTokenizer g, source.gguf_tokenizer());
    TRY(const VocabModel model, vocab_model(g.model));
    spec = spec_from_gguf(g, model);
    chat_template = g.chat_template;
  } else if (source.is_random()) {
    spec = spec_of_bytes(source.config().vocabulary);
  } else {
    TRY(const HfTokenizer hf, source.hf_tokenizer());
    TRY(spec, vocab_from_tokenizer_json(hf.tokenizer_json, hf.tokenizer_config_json,
                                        hf.generation_config_json));
    chat_template = template_from_hf(hf);
  }
  type_turn_markers_as_control(spec, chat_template);
  TRY(Tokenizer tokenizer, Tokenizer::create(std::move(spec)));
  TextParts parts{std::move(tokenizer), std::nullopt, {}};
  if (!chat_template.empty()) {
    Result<ChatTemplate> parsed = ChatTemplate::parse(std::move(chat_template));
    if (parsed.ok())
      parts.chat_template = std::move(parsed.value());
    else
      parts.template_problem = parsed.error().message;
  }
  return parts;
}

}  // namespace quire
