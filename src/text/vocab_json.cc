// tokenizer.json to VocabSpec. Everything the file asks for is either translated or refused by
// name.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "text/pre_tokenizer.h"
#include "text/vocab.h"
#include "text/vocab_json_reader.h"

namespace quire {
namespace {

using nlohmann::json;

constexpr std::size_t kHolesMax = 4096;  // ids without a token

Error unsupported_json(std::string what) {
  return {Code::unsupported, "tokenizer.json: " + std::move(what) + " is not supported"};
}
Error corrupt(std::string what) { return {Code::corrupt, "tokenizer.json: " + std::move(what)}; }

const json& member(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}
std::string text_of(const json& object, const char* key) {
  const json& v = member(object, key);
  return v.is_string() ? v.get<std::string>() : std::string();
}
bool flag(const json& object, const char* key, bool otherwise = false) {
  const json& v = member(object, key);
  return v.is_boolean() ? v.get<bool>() : otherwise;
}

// The steps of a component, which may be null, one step, or a Sequence of steps under `list`.
Result<std::vector<const json*>> steps(const json& component, const char* list) {
  std::vector<const json*> out;
  if (component.is_null()) return out;
  if (text_of(component, "type") != "Sequence") {
    out.push_back(&component);
    return out;
  }
  const json& parts = member(component, list);
  if (!parts.is_array()) return corrupt(fmt::format("a Sequence without '{}'", list));
  for (const json& part : parts) {
    if (text_of(part, "type") == "Sequence")
      return unsupported_json("a Sequence inside a Sequence");
    out.push_back(&part);
  }
  return out;
}

Result<json> read_settings(std::string_view text, const char* name) {
  if (text.empty()) return json();
  Result<TokenizerJson> read = read_tokenizer_json(text, name);
  if (!read.ok()) return read.error();
  return std::move(read.value().rest);
}

class Builder {
 public:
  explicit Builder(TokenizerJson file) : file_(std::move(file)) {}

  Result<VocabSpec> build(const json& config, const json& generation) {
    TRY_STATUS(model());
    TRY_STATUS(normalizer());
    TRY_STATUS(pre_tokenizer());
    TRY_STATUS(tokens());
    TRY_STATUS(post_processor(config));
    TRY_STATUS(named(config));
    ends(generation);
    return std::move(spec_);
  }

 private:
  Status model() {
    const json& m = member(file_.rest, "model");
    if (!m.is_object()) return corrupt("no 'model'");
    if (const std::string type = text_of(m, "type");
        type != "BPE" && !(type.empty() && !file_.merges.empty()))
      return unsupported_json(fmt::format("model type '{}' (BPE is)", type));
    if (const json& dropout = member(m, "dropout");
        dropout.is_number() && dropout.get<double>() != 0)
      return unsupported_json("model.dropout");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(m, key).empty())
        return unsupported_json(fmt::format("model.{} '{}'", key, text_of(m, key)));
    byte_fallback_ = flag(m, "byte_fallback");
    unk_ = text_of(m, "unk_token");
    spec_.ignore_merges = flag(m, "ignore_merges");
    spec_.nfc = false;
    spec_.merges = std::move(file_.merges);
    return {};
  }

  Status normalizer() {
    TRY(const auto parts, steps(member(file_.rest, "normalizer"), "normalizers"));
    for (const json* part : parts) {
      const std::string type = text_of(*part, "type");
      if (type == "NFC") {
        spec_.nfc = true;
      } else if (type == "Prepend" && text_of(*part, "prepend") == kSpaceSymbol) {
        spec_.space_prefix = SpacePrefix::always;
      } else if (type == "Replace" && text_of(member(*part, "pattern"), "String") == " " &&
                 text_of(*part, "content") == kSpaceSymbol) {
        spaces_spelled_ = true;
      } else {
        return unsupported_json(
            fmt::format("normalizer '{}'{}", type,
                        type == "Prepend" || type == "Replace" ? " with these settings" : ""));
      }
    }
    return {};
  }

  Status pre_tokenizer() {
    TRY(const auto parts, steps(member(file_.rest, "pre_tokenizer"), "pretokenizers"));
    bool byte_level = false;
    std::vector<std::string> patterns;
    for (const json* part : parts) {
      const std::string type = text_of(*part, "type");
      if (byte_level)
        return unsupported_json(fmt::format("pre_tokenizer '{}' after ByteLevel", type));
      if (type == "ByteLevel") {
        if (flag(*part, "add_prefix_space"))
          return unsupported_json("ByteLevel with add_prefix_space");
        byte_level = true;
        if (flag(*part, "use_regex", true)) patterns.emplace_back(kGpt2Pattern);
      } else if (type == "Digits") {
        patterns.emplace_back(flag(*part, "individual_digits") ? kDigitPattern : "\\p{N}+");
      } else if (type == "Split") {
        TRY_STATUS(split(*part, patterns));
      } else if (type == "Metaspace") {
        TRY_STATUS(metaspace(*part));
      } else {
        return unsupported_json(fmt::format("pre_tokenizer '{}'", type));
      }
    }
    if (byte_level) {
      if (spaces_spelled_ || spec_.space_prefix != SpacePrefix::never)
        return unsupported_json("ByteLevel after a normalizer that respells spaces");
      const std::vector<std::string_view> views(patterns.begin(), patterns.end());
      const PreTokenizerEntry* entry = find_pre_tokenizer(views);
      if (entry == nullptr)
        return unsupported_json(
            fmt::format("pre_tokenizer with the patterns {}", fmt::join(patterns, "  then  ")));
      spec_.pre = entry->name;
      return {};
    }
    if (!spaces_spelled_)
      return unsupported_json("BPE with neither ByteLevel nor U+2581 for spaces");
    if (!patterns.empty()) return unsupported_json("Split or Digits without ByteLevel");
    if (*spec_.nfc) return unsupported_json("NFC without ByteLevel");
    spec_.model = VocabModel::sentencepiece;
    return {};
  }

  Status split(const json& part, std::vector<std::string>& patterns) {
    const std::string behavior = text_of(part, "behavior"),
                      literal = text_of(member(part, "pattern"), "String");
    if (flag(part, "invert")) return unsupported_json("Split with invert");
    if (literal == " " && behavior == "MergedWithPrevious" && spaces_spelled_)
      return {};  // no space is left to split at
    const std::string pattern = text_of(member(part, "pattern"), "Regex");
    if (pattern.empty() || behavior != "Isolated")
      return unsupported_json(
          fmt::format("Split with behavior '{}' at '{}{}'", behavior, literal, pattern));
    patterns.push_back(pattern);
    return {};
  }

  Status metaspace(const json& part) {
    if (text_of(part, "replacement") != kSpaceSymbol)
      return unsupported_json("Metaspace with another replacement than U+2581");
    if (flag(part, "split", true)) return unsupported_json("Metaspace with split");
    const std::string scheme = member(part, "prepend_scheme").is_string()
                                   ? text_of(part, "prepend_scheme")
                               : flag(part, "add_prefix_space", true) ? "always"
                                                                      : "never";
    if (scheme == "always")
      spec_.space_prefix = SpacePrefix::missing;
    else if (scheme == "first")
      spec_.space_prefix = SpacePrefix::missing_at_start;
    else if (scheme != "never")
      return unsupported_json(fmt::format("Metaspace with prepend_scheme '{}'", scheme));
    spaces_spelled_ = true;
    return {};
  }

  Status tokens() {
    const json& added = member(file_.rest, "added_tokens");
    if (!added.is_array() && !added.is_null()) return corrupt("added_tokens is no array");
    const std::size_t limit = file_.vocab.size() + added.size() + kHolesMax;
    const auto place = [&](const std::string& token, std::int64_t id, TokenType type) -> Status {
      if (id < 0 || static_cast<std::uint64_t>(id) >= limit)
        return corrupt(fmt::format("token '{}' has id {} in a vocabulary of {}", token, id,
                                   file_.vocab.size()));
      const auto i = static_cast<std::size_t>(id);
      if (i >= spec_.tokens.size()) {
        spec_.tokens.resize(i + 1);
        spec_.types.resize(i + 1, TokenType::unused);
      }
      if (!spec_.tokens[i].empty() && spec_.tokens[i] != token)
        return corrupt(fmt::format("'{}' and '{}' share the id {}", spec_.tokens[i], token, id));
      spec_.tokens[i] = token;
      spec_.types[i] = type;
      ids_[token] = static_cast<TokenId>(id);
      return {};
    };
    for (const auto& [token, id] : file_.vocab) {
      const bool byte =
          byte_fallback_ && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
      TRY_STATUS(place(token, id, byte ? TokenType::byte : TokenType::normal));
    }
    for (const json& token : added) {
      const std::string content = text_of(token, "content");
      const json& id = member(token, "id");
      if (content.empty() || !id.is_number_integer())
        return corrupt("an entry of added_tokens lacks 'content' or 'id'");
      for (const char* key : {"lstrip", "rstrip", "single_word"})
        if (flag(token, key))
          return unsupported_json(fmt::format("added token '{}' with {}", content, key));
      const bool special = flag(token, "special");
      // Matched in the normalized text; in the raw text that is the same unless the normalizer
      // changes the token itself.
      const bool ascii =
          std::all_of(content.begin(), content.end(), [](char c) { return c > ' '; });
      const bool changes =
          spec_.space_prefix == SpacePrefix::always || ((spaces_spelled_ || *spec_.nfc) && !ascii);
      if (!special && flag(token, "normalized") && changes)
        return unsupported_json(fmt::format("added token '{}' with normalized", content));
      TRY_STATUS(place(content, id.get<std::int64_t>(),
                       special ? TokenType::control : TokenType::user_defined));
    }
    return {};
  }

  // Which tokens stand before and after the text.
  Status post_processor(const json& config) {
    TRY(const auto parts, steps(member(file_.rest, "post_processor"), "processors"));
    spec_.add_bos = flag(config, "add_bos_token");
    spec_.add_eos = flag(config, "add_eos_token");
    for (const json* part : parts) {
      const std::string type = text_of(*part, "type");
      if (type == "ByteLevel") continue;
      if (type != "TemplateProcessing")
        return unsupported_json(fmt::format("post_processor '{}'", type));
      bool before = false, after = false, text_seen = false;
      for (const json& piece : member(*part, "single")) {
        if (!member(piece, "Sequence").is_null()) {
          text_seen = true;
          continue;
        }
        bool& add = text_seen ? after : before;
        TokenId& id = text_seen ? spec_.eos : spec_.bos;
        if (add) return unsupported_json("a post_processor with two tokens on one side");
        add = true;
        TRY(id, find(text_of(member(piece, "SpecialToken"), "id"), "post_processor"));
      }
      spec_.add_bos = before;
      spec_.add_eos = after;
    }
    return {};
  }

  Status named(const json& config) {
    const auto content = [&](const char* key) {
      const json& v = member(config, key);
      return v.is_object() ? text_of(v, "content") : text_of(config, key);
    };
    if (!unk_.empty()) {
      TRY(spec_.unk, find(unk_, "model.unk_token"));
    }
    const std::pair<const char*, TokenId*> names[] = {{"bos_token", &spec_.bos},
                                                      {"eos_token", &spec_.eos},
                                                      {"pad_token", &spec_.pad},
                                                      {"unk_token", &spec_.unk}};
    for (const auto& [key, id] : names)
      if (const std::string token = content(key); !token.empty() && *id == kNoToken) {
        TRY(*id, find(token, key));
      }
    return {};
  }

  // eos_token_id: one id or several, all of which end an answer.
  void ends(const json& generation) {
    const json& eos = member(generation, "eos_token_id");
    for (const json& id : eos.is_array() ? eos : json::array({eos}))
      if (id.is_number_integer() && id.get<std::int64_t>() >= 0 &&
          id.get<std::uint64_t>() < spec_.tokens.size())
        spec_.end_of_generation.push_back(id.get<TokenId>());
  }

  Result<TokenId> find(const std::string& token, const char* who) const {
    const auto it = ids_.find(token);
    if (it == ids_.end())
      return corrupt(fmt::format("{} names '{}', which is no token", who, token));
    return it->second;
  }

  TokenizerJson file_;
  VocabSpec spec_;
  std::unordered_map<std::string, TokenId> ids_;
  std::string unk_;
  bool byte_fallback_ = false;
  bool spaces_spelled_ = false;  // a normalizer or Metaspace turns spaces into U+2581
};

}  // namespace

Result<VocabSpec> vocab_from_tokenizer_json(std::string_view tokenizer, std::string_view config,
                                            std::string_view generation_config) {
  TRY(TokenizerJson file, read_tokenizer_json(tokenizer));
  TRY(const json settings, read_settings(config, "tokenizer_config.json"));
  TRY(const json generation, read_settings(generation_config, "generation_config.json"));
  return Builder(std::move(file)).build(settings, generation);
}

}  // namespace quire
