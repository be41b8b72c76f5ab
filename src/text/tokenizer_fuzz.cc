// Any bytes through the tiny vocabularies: nothing crashes, text comes back, and text never becomes
// a control token.
#include <cstdint>

#include "base/check.h"
#include "text/tiny_vocab.h"
#include "text/tokenizer.h"

using namespace quire;

namespace {

struct Subject {
  Tokenizer tokenizer;
  bool lossless;
};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> kSubjects = [] {
    std::vector<Subject> out;
    const auto add = [&](VocabSpec spec, bool lossless) {
      out.push_back({std::move(Tokenizer::create(std::move(spec)).value()), lossless});
    };
    for (const char* pre :
         {"gpt-2", "smollm", "llama-bpe", "tekken", "deepseek-llm", "deepseek-v3", "default"}) {
      VocabSpec spec = tiny_byte_level();
      spec.pre = pre;
      add(std::move(spec), true);
    }
    VocabSpec spec = tiny_byte_level();
    spec.pre = "qwen2";  // NFC
    add(std::move(spec), false);
    add(tiny_sentencepiece(), true);  // but for U+2581, which comes back as a space
    spec = tiny_sentencepiece();
    spec.space_prefix = SpacePrefix::missing;
    spec.remove_extra_whitespaces = true;
    add(std::move(spec), false);
    return out;
  }();
  return kSubjects;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const Subject& subject = subjects()[data[0] % subjects().size()];
  const Tokenizer& t = subject.tokenizer;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const bool lossless = subject.lossless && text.find("\u2581") == text.npos;

  const std::vector<TokenId> as_text = t.encode(text);
  for (const TokenId id : as_text) {
    CHECK(static_cast<std::size_t>(id) < t.size());
    CHECK(!t.is_special(id));
  }
  if (lossless) CHECK(t.decode(as_text) == text);

  const std::vector<TokenId> parsed = t.encode(text, {.parse_special = true});
  if (lossless) CHECK(t.decode(parsed) == text);

  // Three spans with the middle one not trusted: no control token touches it.
  const std::size_t a = text.size() * (data[1] & 15) / 32,
                    b = a + (text.size() - a) * (data[1] >> 4) / 15;
  const std::vector<TextSpan> spans = {
      {text.substr(0, a), true}, {text.substr(a, b - a), false}, {text.substr(b), true}};
  const std::vector<TokenId> mixed = t.encode(spans);
  if (lossless) {
    CHECK(t.decode(mixed) == text);
    std::size_t at = 0;
    for (const TokenId id : mixed) {
      const std::size_t end = at + t.piece(id).size();
      CHECK(!t.is_special(id) || end <= a || at >= b);
      at = end;
    }
  }
  return 0;
}
