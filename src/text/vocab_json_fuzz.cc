// Any bytes as tokenizer.json: an error or a vocabulary whose tokenizer works.
#include <cstdint>

#include "base/check.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = text.find('\0');  // what follows a zero byte is tokenizer_config.json
  const std::string_view config = cut == text.npos ? std::string_view() : text.substr(cut + 1);
  auto spec = vocab_from_tokenizer_json(text.substr(0, cut), config);
  if (!spec.ok()) {
    CHECK(!spec.error().message.empty());
    return 0;
  }
  auto made = Tokenizer::create(std::move(spec.value()));
  if (!made.ok()) return 0;
  const Tokenizer& t = made.value();
  for (const TokenId id : t.encode(text, {.add_special = true}))
    CHECK(static_cast<std::size_t>(id) < t.size());
  for (const TokenId id : t.encode("hello <|end|> \u2581low \xFF"))
    CHECK(!t.is_special(id) || id == t.unk());
  return 0;
}
