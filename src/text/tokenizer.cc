#include "text/tokenizer.h"

#include <algorithm>

#include "base/stop.h"
#include "text/nfc.h"
#include "text/tokenizer_tables.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr std::size_t kWordBytesMax = std::size_t{1} << 30;  // positions in a word are 32 bits

std::size_t character_length(std::string_view text) {
  const Utf8Step step = utf8_step(text);
  return step.kind == Utf8Kind::whole ? step.length : 1;
}

// One call of encode: the output and what is reused from word to word.
class Encoder {
 public:
  Encoder(const TokenizerTables& t, std::vector<TokenId>& out) : t_(t), out_(out) {}

  // Text between special tokens. `start`: nothing stands before it.
  void stretch(std::string_view text, bool start) {
    if (text.empty()) return;
    if (t_.spec.model == VocabModel::byte_level)
      byte_level(text);
    else
      sentencepiece(text, start);
  }

 private:
  void byte_level(std::string_view text) {
    if (t_.nfc) {
      normalized_.clear();
      append_nfc(text, normalized_);
      text = normalized_;
    }
    t_.pre->split(text, [this](std::string_view one) {
      if (!stop_asked()) word(one);
    });
  }

  // Pieces are stored with plain spaces, so U+2581 in text becomes one (sentencepiece cannot tell
  // them apart either).
  void sentencepiece(std::string_view text, bool start) {
    if (t_.spec.space_prefix != SpacePrefix::never || t_.spec.remove_extra_whitespaces ||
        text.find(kSpaceSymbol) != text.npos) {
      normalize(text, start);
      text = normalized_;
    }
    std::size_t begin = 0;
    for (std::size_t space = text.find(' ', 1); space < text.size();
         space = text.find(' ', space + 1)) {
      const auto before = static_cast<unsigned char>(text[space - 1]);
      if (before == ' ') continue;
      if (space + 1 < text.size() &&
          t_.crosses[before].test(static_cast<unsigned char>(text[space + 1])))
        continue;
      if (stop_asked()) return;
      word(text.substr(begin, space - begin));
      begin = space;
    }
    word(text.substr(begin));
  }

  void normalize(std::string_view text, bool start) {
    std::string spaced;
    for (std::size_t i = 0; i < text.size();) {
      const bool symbol = text.substr(i).starts_with(kSpaceSymbol);
      const char c = symbol ? ' ' : text[i];
      i += symbol ? kSpaceSymbol.size() : 1;
      if (c == ' ' && t_.spec.remove_extra_whitespaces && (spaced.empty() || spaced.back() == ' '))
        continue;
      spaced += c;
    }
    if (t_.spec.remove_extra_whitespaces && spaced.ends_with(' ')) spaced.pop_back();
    const bool missing = !spaced.starts_with(' ');
    const SpacePrefix prefix = t_.spec.space_prefix;
    const bool add = prefix == SpacePrefix::always || (prefix == SpacePrefix::missing && missing) ||
                     (prefix == SpacePrefix::missing_at_start && missing && start);
    normalized_ = add && !spaced.empty() ? ' ' + spaced : std::move(spaced);
  }

  void word(std::string_view text) {
    while (text.size() > kWordBytesMax) {
      merged(text.substr(0, kWordBytesMax));
      text.remove_prefix(kWordBytesMax);
    }
    if (text.empty()) return;
    const TokenId id = t_.pieces.find(t_.bytes, text);
    if (id == kNoToken) return merged(text);
    std::atomic<std::uint8_t>& whole = t_.whole[static_cast<std::size_t>(id)];
    const std::uint8_t known = t_.ignore_merges ? std::uint8_t{TokenizerTables::kWhole}
                                                : whole.load(std::memory_order_relaxed);
    if (known == TokenizerTables::kWhole) {
      out_.push_back(id);
      return;
    }
    const std::size_t before = out_.size();
    merged(text);
    if (known == TokenizerTables::kUntried) {
      const bool same = out_.size() == before + 1 && out_.back() == id;
      whole.store(same ? TokenizerTables::kWhole : TokenizerTables::kInParts,
                  std::memory_order_relaxed);
    }
  }

  void merged(std::string_view text) {
    std::vector<BpeSymbol>& symbols = scratch_.symbols;
    symbols.clear();
    symbols.reserve(text.size());  // a word may be all of a long text: no spare room for it
    const bool by_bytes = t_.spec.model == VocabModel::byte_level;
    for (std::uint32_t i = 0; i < text.size();) {
      if (by_bytes) {
        const TokenId id = t_.byte_token[static_cast<unsigned char>(text[i])];
        if (id != kNoToken) symbols.push_back({id, i, 1});
        ++i;
      } else {
        const auto length = static_cast<std::uint32_t>(character_length(text.substr(i)));
        symbols.push_back({t_.pieces.find(t_.bytes, text.substr(i, length)), i, length});
        i += length;
      }
    }
    if (t_.ranks.empty()) {
      bpe_merge(scratch_, [&](const BpeSymbol& l, const BpeSymbol& r) {
        return l.id == kNoToken || r.id == kNoToken ? Merge{} : t_.merges.find(l.id, r.id);
      });
    } else {
      bpe_merge(scratch_, [&](const BpeSymbol& l, const BpeSymbol& r) {
        if (l.id == kNoToken || r.id == kNoToken) return Merge{};
        const TokenId id = t_.pieces.find(t_.bytes, text.substr(l.begin, l.length + r.length));
        return id == kNoToken ? Merge{} : Merge{t_.ranks[static_cast<std::size_t>(id)], id};
      });
    }
    bool unknown = false;
    for (const BpeSymbol& symbol : symbols) {
      if (symbol.id != kNoToken) out_.push_back(symbol.id);
      unknown =
          symbol.id == kNoToken && fall_back(text.substr(symbol.begin, symbol.length), unknown);
    }
  }

  // A character without a token: its bytes, or one <unk> for a run of such characters. Returns
  // whether it was the latter.
  bool fall_back(std::string_view character, bool after_unknown) {
    const auto token = [&](char c) { return t_.byte_token[static_cast<unsigned char>(c)]; };
    if (std::all_of(character.begin(), character.end(),
                    [&](char c) { return token(c) != kNoToken; })) {
      for (const char c : character) out_.push_back(token(c));
      return false;
    }
    if (!after_unknown && t_.spec.unk != kNoToken) out_.push_back(t_.spec.unk);
    return true;
  }

  const TokenizerTables& t_;
  std::vector<TokenId>& out_;
  std::string normalized_;
  BpeScratch scratch_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<TokenizerTables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const TextSpan span{text, options.parse_special};
  return encode(std::span(&span, 1), options.add_special);
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextSpan> spans, bool add_special) const {
  std::string joined;
  if (spans.size() > 1)
    for (const TextSpan& span : spans) joined += span.text;
  const std::string_view text = spans.size() == 1 ? spans[0].text : std::string_view(joined);

  std::vector<TokenId> out;
  if (add_special && tables_->add_bos && tables_->spec.bos != kNoToken)
    out.push_back(tables_->spec.bos);
  Encoder encoder(*tables_, out);
  std::size_t done = 0, span = 0, span_begin = 0;
  const auto allowed = [&](TokenId id, std::size_t begin, std::size_t end) {
    if (!tables_->is_control(id)) return true;
    while (begin >= span_begin + spans[span].text.size()) span_begin += spans[span++].text.size();
    return spans[span].trusted && end <= span_begin + spans[span].text.size();
  };
  while (done < text.size() && !stop_asked()) {
    const SpecialMatch match = tables_->special.next(text, done, allowed);
    const std::size_t end = match.id == kNoToken ? text.size() : match.begin;
    encoder.stretch(text.substr(done, end - done), done == 0);
    if (match.id == kNoToken) break;
    out.push_back(match.id);
    done = match.end;
  }
  if (add_special && tables_->spec.add_eos && tables_->spec.eos != kNoToken)
    out.push_back(tables_->spec.eos);
  return out;
}

std::string_view Tokenizer::piece(TokenId id) const {
  return id < size() ? tables_->bytes[id] : std::string_view();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string out;
  bool strip = tables_->spec.model == VocabModel::sentencepiece &&
               tables_->spec.space_prefix != SpacePrefix::never;
  for (const TokenId id : ids) {
    if (is_special(id)) {
      if (!options.skip_special) out += piece(id);
      continue;
    }
    std::string_view bytes = piece(id);
    if (strip && bytes.starts_with(' ')) bytes.remove_prefix(1);  // the space that encode put there
    if (!bytes.empty() || !piece(id).empty()) strip = false;
    out += bytes;
  }
  return out;
}

TokenId Tokenizer::find(std::string_view spelling) const {
  const auto it = tables_->named.find(std::string(spelling));
  return it == tables_->named.end() ? kNoToken : it->second;
}

bool Tokenizer::is_special(TokenId id) const { return id < size() && tables_->is_control(id); }

bool Tokenizer::is_end_of_generation(TokenId id) const {
  return std::binary_search(tables_->spec.end_of_generation.begin(),
                            tables_->spec.end_of_generation.end(), id);
}

std::size_t Tokenizer::size() const { return tables_->bytes.size(); }
std::size_t Tokenizer::longest_piece() const { return tables_->longest; }
TokenId Tokenizer::bos() const { return tables_->spec.bos; }
TokenId Tokenizer::eos() const { return tables_->spec.eos; }
TokenId Tokenizer::pad() const { return tables_->spec.pad; }
TokenId Tokenizer::unk() const { return tables_->spec.unk; }
bool Tokenizer::add_bos() const { return tables_->add_bos; }
const std::vector<TokenId>& Tokenizer::end_of_generation() const {
  return tables_->spec.end_of_generation;
}

}  // namespace quire
