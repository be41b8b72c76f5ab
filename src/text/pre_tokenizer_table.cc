// The patterns, as the models' own tokenizer.json files state them, and the names GGUF gives them.
#include <algorithm>

#include "text/pre_tokenizer.h"

namespace quire {

extern const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
extern const std::string_view kDigitPattern = R"(\p{N})";

namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// U+FF01-FF5E without letters and digits, quotation marks, ideographic space to full stop.
constexpr std::string_view kDeepseekPunctuation = "\\s?[!-/:-~！-／：-～‘-‟　-。]+";
constexpr std::string_view kDeepseekCjk = "[一-龥ࠀ-一가-퟿]+";
constexpr std::string_view kDeepseekV3Cjk = "[一-龥぀-ゟ゠-ヿ]+";
constexpr std::string_view kDeepseekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLetters = R"(\s?\p{L}+)";
constexpr std::string_view kPunctuation = R"(\s?\p{P}+)";
// clang-format off
// DeepSeek LLM lists the letters of scripts with case instead of naming a property.
constexpr std::string_view kDeepseekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
// clang-format on

const std::vector<PreTokenizerEntry>& entries() {
  static const std::vector<PreTokenizerEntry> kEntries = [] {
    std::vector<PreTokenizerEntry> entries;
    const auto add = [&](std::initializer_list<std::string_view> names,
                         const std::vector<std::string_view>& patterns,
                         PreTokenizerDefaults defaults = {}) {
      for (const std::string_view name : names) entries.push_back({name, patterns, defaults});
    };
    constexpr PreTokenizerDefaults kLikeLlama3{.ignore_merges = true, .add_bos = true};
    add({"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"}, {kGpt2Pattern});
    add({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
        {kDigitPattern, kGpt2Pattern});
    add({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"}, {kLlama3},
        kLikeLlama3);
    add({"smaug-bpe", "dbrx"}, {kLlama3});
    add({"qwen2", "deepseek-r1-qwen"}, {kQwen2}, {.nfc = true});
    add({"tekken"}, {kTekken}, kLikeLlama3);
    add({"gpt-4o", "llama4"}, {kGpt4o});
    add({"deepseek-llm"},
        {"[\r\n]", kDeepseekLetters, kDeepseekPunctuation, "\\s+$", kDeepseekCjk, "\\p{N}+"});
    add({"deepseek-coder"}, {"[\r\n]", kLetters, kPunctuation, kDeepseekCjk, kDigitPattern});
    add({"deepseek-v3", "hunyuan-dense"}, {"\\p{N}{1,3}", kDeepseekV3Cjk, kDeepseekV3});
    // What llama.cpp does with a file that names none.
    add({"default", ""}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"});
    return entries;
  }();
  return kEntries;
}

}  // namespace

std::span<const PreTokenizerEntry> pre_tokenizers() { return entries(); }

Result<const PreTokenizerEntry*> find_pre_tokenizer(std::string_view name) {
  std::string known;
  for (const PreTokenizerEntry& entry : entries()) {
    if (entry.name == name) return &entry;
    known += ' ' + std::string(entry.name);
  }
  return Error{Code::unsupported, "tokenizer.ggml.pre: no pre-tokenizer '" + std::string(name) +
                                      "'; there are:" + known};
}

const PreTokenizerEntry* find_pre_tokenizer(std::span<const std::string_view> patterns) {
  for (const PreTokenizerEntry& entry : entries())
    if (std::equal(entry.patterns.begin(), entry.patterns.end(), patterns.begin(), patterns.end()))
      return &entry;
  return nullptr;
}

}  // namespace quire
