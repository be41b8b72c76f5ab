// Compares with what `tokenizers` says, as recorded by tests/text/make_tokenizer_cases.py (which
// explains the files).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "text/gguf_vocab_testing.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

constexpr char kFolder[] = "tests/text/";  // tests run in the root of the source tree

std::string file(const std::string& name) {
  auto text = read_file(kFolder + name);
  CHECK(text.ok());
  return std::move(text.value());
}

std::string unescape(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out += line[i];
    } else if (line[i + 1] == '\\') {
      out += line[++i];
    } else {  // \xNN
      out += static_cast<char>(std::stoi(std::string(line.substr(i + 2, 2)), nullptr, 16));
      i += 3;
    }
  }
  return out;
}

const std::vector<std::string>& fragments() {
  static const std::vector<std::string> kFragments = [] {
    std::vector<std::string> out;
    const std::string text = file("fragments.txt");
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      out.push_back(unescape(std::string_view(text).substr(at, end - at)));
      at = end + 1;
    }
    return out;
  }();
  return kFragments;
}

std::string compose(std::uint64_t i) {
  Random random(i);
  std::string out;
  for (auto n = 1 + random.below(6); n > 0; --n) {
    if (random.below(4) == 0) out += ' ';
    out += fragments()[random.below(fragments().size())];
  }
  return out;
}

const std::vector<std::uint32_t>& expected(const std::string& section) {
  static const std::map<std::string, std::vector<std::uint32_t>> kSections = [] {
    std::map<std::string, std::vector<std::uint32_t>> out;
    const std::string bytes = file("expected.bin");
    for (std::size_t at = 0; at < bytes.size();) {
      const std::string name = bytes.substr(at, strnlen(&bytes[at], 24));
      std::uint32_t count;
      std::memcpy(&count, &bytes[at + 24], 4);
      std::vector<std::uint32_t>& hashes = out[name];
      hashes.resize(count);
      std::memcpy(hashes.data(), &bytes[at + 28], std::size_t{4} * count);
      at += 28 + std::size_t{4} * count;
    }
    return out;
  }();
  return kSections.at(section);
}

std::uint32_t hash_ids(const std::vector<TokenId>& ids) {
  std::uint64_t h = ids.size();
  for (const TokenId id : ids) h = mix64(h ^ static_cast<std::uint32_t>(id));
  const auto low = static_cast<std::uint32_t>(h);
  return low == 0 ? 1 : low;  // 0: the oracle has no answer
}

// `string(i)` for both modes against sections name.text and name.parse.
template <class String>
void compare(const std::string& name, const Tokenizer& t, const String& string) {
  for (const bool parse : {false, true}) {
    const std::vector<std::uint32_t>& hashes = expected(name + (parse ? ".parse" : ".text"));
    std::size_t compared = 0, wrong = 0;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (hashes[i] == 0) continue;
      const std::string text = string(i);
      const std::vector<TokenId> ids = t.encode(text, {.parse_special = parse});
      ++compared;
      const auto special =
          std::find_if(ids.begin(), ids.end(), [&](TokenId id) { return t.is_special(id); });
      ASSERT_TRUE(parse || special == ids.end()) << text;
      if (hash_ids(ids) == hashes[i] || ++wrong > 5) continue;
      std::string pieces;
      for (const TokenId id : ids) pieces += fmt::format(" {}'{}'", id, t.piece(id));
      ADD_FAILURE() << name << (parse ? ".parse:" : ".text:") << i << " '" << text << "' became"
                    << pieces;
    }
    EXPECT_EQ(wrong, 0u) << name << " of " << compared;
    std::printf("%s, %s: %zu strings compared\n", name.c_str(),
                parse ? "special tokens parsed" : "all as text", compared);
  }
}

void compare_model(const char* name, const char* variable, const char* model) {
  const std::string path = test_model_path(variable, model);
  if (path.empty())
    GTEST_SKIP() << model << " is not in the cache folder (and " << variable << " is not set)";
  auto spec = read_gguf_vocab(path);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  std::vector<std::string> special;
  for (std::size_t i = 0; i < spec.value().tokens.size(); ++i) {
    const TokenType type = spec.value().types[i];
    if (type == TokenType::control || type == TokenType::unknown || type == TokenType::user_defined)
      special.push_back(spec.value().tokens[i]);
  }
  auto made = Tokenizer::create(std::move(spec.value()));
  ASSERT_TRUE(made.ok()) << made.error().message;
  compare(name, made.value(), compose);
  compare(std::string(name) + ".special", made.value(), [&](std::size_t i) { return special[i]; });
}

TEST(TokenizerCases, SmolLm2) {
  compare_model("smollm2", "QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf");
}
TEST(TokenizerCases, Gemma3) {
  compare_model("gemma3", "QUIRE_TEST_GEMMA", "gemma-3-270m-q4_k_m.gguf");
}

TEST(TokenizerCases, TokenizerJson) {
  const Json variants = parse_json(file("variants.json")).value();
  ASSERT_GE(variants.size(), 15u);
  for (const Json& variant : variants) {
    // Text is replaced rather than parsed: ordered JSON of thousands of keys is slow.
    std::string text = file(variant["base"].get<std::string>() + ".json");
    const auto put = [&](const std::string& key, const std::string& old, const Json& value) {
      const std::size_t at = text.find("\"" + key + "\":" + old);
      ASSERT_NE(at, text.npos);
      text.replace(at, key.size() + 3 + old.size(), "\"" + key + "\":" + value.dump());
    };
    if (variant.contains("normalizer")) put("normalizer", "null", variant["normalizer"]);
    if (variant.contains("pre_tokenizer")) put("pre_tokenizer", "null", variant["pre_tokenizer"]);
    if (variant.contains("ignore_merges")) put("ignore_merges", "false", variant["ignore_merges"]);
    auto spec = vocab_from_tokenizer_json(text);
    ASSERT_TRUE(spec.ok()) << variant["name"] << ": " << spec.error().message;
    auto made = Tokenizer::create(std::move(spec.value()));
    ASSERT_TRUE(made.ok()) << variant["name"] << ": " << made.error().message;
    compare(variant["name"], made.value(), compose);
  }
}

}  // namespace
}  // namespace quire
