#include "text/detokenizer.h"

#include "base/check.h"
#include "text/utf8.h"

namespace quire {

void Utf8Stream::add(std::string_view bytes, std::string& out) {
  // First the character begun earlier, a byte at a time: each byte either extends it, ends it or
  // spoils it.
  while (held_ > 0 && !bytes.empty()) {
    bytes_[held_] = bytes[0];
    const std::string_view begun(bytes_.data(), held_ + 1u);
    const Utf8Step step = utf8_step(begun);
    if (step.kind == Utf8Kind::invalid) {  // without the new byte, which may start something itself
      CHECK(step.length == held_);
      out += kReplacement;
      held_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    held_ = static_cast<std::uint8_t>(begun.size());
    if (step.kind == Utf8Kind::whole) {
      out += begun;
      held_ = 0;
    }
  }
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.kind == Utf8Kind::incomplete) {
      bytes.copy(bytes_.data(), step.length);
      held_ = step.length;
      return;
    }
    out += step.kind == Utf8Kind::whole ? bytes.substr(0, step.length) : kReplacement;
    bytes.remove_prefix(step.length);
  }
}

void Utf8Stream::finish(std::string& out) {
  if (held_ > 0) out += kReplacement;
  held_ = 0;
}

std::string Detokenizer::add(TokenId id, bool visible) {
  std::string out;
  if (visible || !options_.skip_special || !tokenizer_->is_special(id))
    stream_.add(tokenizer_->piece(id), out);
  return out;
}

std::string Detokenizer::finish() {
  std::string out;
  stream_.finish(out);
  return out;
}

}  // namespace quire
