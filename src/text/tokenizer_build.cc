// Builds a Tokenizer from a VocabSpec: checks everything the file claims, then lays it out for
// encoding.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "text/byte_alphabet.h"
#include "text/tokenizer_tables.h"

namespace quire {
namespace {

constexpr std::size_t kTokensMax = std::size_t{1} << 22;
constexpr std::size_t kTokenBytesMax = std::size_t{1} << 14;

// Control tokens with these spellings end an answer in the models that have them, whatever the file
// calls eos.
constexpr std::string_view kEndNames[] = {"<|im_end|>",
                                          "<|eot_id|>",
                                          "<|eom_id|>",
                                          "<|endoftext|>",
                                          "<|end_of_text|>",
                                          "<end_of_turn>",
                                          "<|end|>",
                                          "</s>",
                                          "<eos>",
                                          "<|return|>",
                                          "<|END_OF_TURN_TOKEN|>",
                                          "<|end_of_turn|>",
                                          "<|eot|>",
                                          "<EOT>",
                                          "[EOS]",
                                          "<｜end▁of▁sentence｜>",
                                          "<|end_of_sentence|>"};

std::string with_spaces(std::string_view spelling) {
  std::string out;
  for (std::size_t i = 0; i < spelling.size();) {
    const bool symbol = spelling.substr(i).starts_with(kSpaceSymbol);
    out += symbol ? ' ' : spelling[i];
    i += symbol ? kSpaceSymbol.size() : 1;
  }
  return out;
}

// "<0x1F>" to 0x1F.
std::optional<unsigned char> byte_of(std::string_view spelling) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>')
    return std::nullopt;
  const int high = digit(spelling[3]), low = digit(spelling[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

Status check_spec(const VocabSpec& spec) {
  const std::size_t count = spec.tokens.size();
  const auto bad = [](std::string message) {
    return Error{Code::corrupt, "tokenizer: " + std::move(message)};
  };
  if (count == 0 || count > kTokensMax)
    return bad(fmt::format("{} tokens; between 1 and {} are possible", count, kTokensMax));
  if (!spec.types.empty() && spec.types.size() != count)
    return bad(fmt::format("{} token types for {} tokens", spec.types.size(), count));
  if (!spec.scores.empty() && spec.scores.size() != count)
    return bad(fmt::format("{} scores for {} tokens", spec.scores.size(), count));
  for (std::size_t i = 0; i < count; ++i)
    if (spec.tokens[i].size() > kTokenBytesMax)
      return bad(fmt::format("token {} has {} bytes; at most {} are allowed", i,
                             spec.tokens[i].size(), kTokenBytesMax));
  for (std::size_t i = 0; i < spec.types.size(); ++i)
    if (spec.types[i] < TokenType::normal || spec.types[i] > TokenType::byte)
      return bad(fmt::format("token {} has type {}; types are 1 to 6", i,
                             static_cast<int>(spec.types[i])));
  for (std::size_t i = 0; i < spec.scores.size(); ++i)
    if (std::isnan(spec.scores[i]))
      return bad(fmt::format("the score of token {} is not a number", i));
  const struct {
    const char* name;
    TokenId id;
  } ids[] = {{"bos", spec.bos},
             {"eos", spec.eos},
             {"eot", spec.eot},
             {"unknown", spec.unk},
             {"padding", spec.pad}};
  for (const auto& [name, id] : ids)
    if (id != kNoToken && id >= count)
      return bad(fmt::format("{} token id {} is not below {}", name, id, count));
  for (const TokenId id : spec.end_of_generation)
    if (id >= count)
      return bad(fmt::format("end-of-generation token id {} is not below {}", id, count));
  if (spec.model == VocabModel::sentencepiece && spec.scores.empty() && spec.merges.empty())
    return bad("a sentencepiece vocabulary needs scores or merges");
  return {};
}

// Ranks in the order of falling scores.
std::uint32_t rank_of_score(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // -0 is 0
  const std::uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~rising;
}

}  // namespace

Result<VocabModel> vocab_model(std::string_view name) {
  if (name == "gpt2") return VocabModel::byte_level;
  if (name == "llama") return VocabModel::sentencepiece;
  return Error{Code::unsupported, fmt::format("tokenizer.ggml.model is '{}'; Quire reads 'gpt2' "
                                              "(byte-level BPE) and 'llama' (sentencepiece)",
                                              name)};
}

namespace {

// Fills bytes, pieces, named tokens and the matcher.
void lay_out_tokens(TokenizerTables& t) {
  VocabSpec& spec = t.spec;
  const bool by_bytes = spec.model == VocabModel::byte_level;
  const auto count = static_cast<TokenId>(spec.tokens.size());
  t.byte_token.fill(kNoToken);
  for (TokenId id = 0; id < count; ++id) {
    const std::string& spelling = spec.tokens[static_cast<std::size_t>(id)];
    TokenType& type = spec.types[static_cast<std::size_t>(id)];
    const bool text = type == TokenType::normal || type == TokenType::unused ||
                      (!by_bytes && type == TokenType::user_defined);
    if (by_bytes && text) {
      t.bytes.add(byte_alphabet_decode(spelling).value_or(spelling));
    } else if (const auto byte = type == TokenType::byte ? byte_of(spelling) : std::nullopt;
               byte && !by_bytes) {
      t.byte_token[*byte] = id;
      t.bytes.add(std::string_view(reinterpret_cast<const char*>(&*byte), 1));
    } else {
      t.bytes.add(text ? with_spaces(spelling) : spelling);
    }
  }
  t.pieces = TokenMap(spec.tokens.size());
  for (TokenId id = 0; id < count; ++id) {
    const std::string& spelling = spec.tokens[static_cast<std::size_t>(id)];
    const TokenType type = spec.types[static_cast<std::size_t>(id)];
    if (spelling.empty()) continue;
    if (type == TokenType::normal || type == TokenType::user_defined) t.pieces.insert(t.bytes, id);
    if (type == TokenType::normal) continue;
    t.named.insert_or_assign(spelling, id);
    // A user-defined run of spaces (sentencepiece) is not matched as a special token: it merges
    // like other pieces, but before them. The tokenizers that transformers builds from such files
    // do this.
    const bool spaces = !by_bytes && spelling.find_first_not_of(' ') == std::string::npos;
    if (t.is_control(id) || (type == TokenType::user_defined && !spaces))
      t.special.add(spelling, id);
  }
  if (by_bytes)
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      t.byte_token[static_cast<std::size_t>(byte)] = t.pieces.find(t.bytes, {&c, 1});
    }
}

Status lay_out_merges(TokenizerTables& t) {
  const VocabSpec& spec = t.spec;
  t.merges = MergeMap(spec.merges.size());
  const auto bytes_of = [&](std::string_view spelling) {
    return spec.model == VocabModel::byte_level
               ? byte_alphabet_decode(spelling).value_or(std::string(spelling))
               : with_spaces(spelling);
  };
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view merge = spec.merges[rank];
    const std::size_t gap = merge.find(' ', 1);
    if (gap == merge.npos || gap + 1 == merge.size())
      return Error{Code::corrupt,
                   fmt::format("tokenizer: merge {} ('{}') is not a pair", rank, merge)};
    const std::string left = bytes_of(merge.substr(0, gap)),
                      right = bytes_of(merge.substr(gap + 1));
    const TokenId l = t.pieces.find(t.bytes, left), r = t.pieces.find(t.bytes, right),
                  both = t.pieces.find(t.bytes, left + right);
    if (l != kNoToken && r != kNoToken && both != kNoToken) {
      t.merges.insert(l, r, {static_cast<std::uint32_t>(rank), both});
      continue;
    }
    // A merge that makes a control or unused token is left out: text never becomes one of those.
    const auto spelled = [&](TokenId id, std::string_view spelling) {
      return id != kNoToken || t.named.contains(std::string(spelling));
    };
    const std::string joined =
        std::string(merge.substr(0, gap)) + std::string(merge.substr(gap + 1));
    if (!spelled(l, merge.substr(0, gap)) || !spelled(r, merge.substr(gap + 1)) ||
        !spelled(both, joined))
      return Error{Code::corrupt,
                   fmt::format("tokenizer: merge {} ('{}') names a token that the vocabulary lacks",
                               rank, merge)};
  }
  return {};
}

void lay_out_scores(TokenizerTables& t) {
  const VocabSpec& spec = t.spec;
  t.ranks.resize(spec.tokens.size());
  for (std::size_t i = 0; i < t.ranks.size(); ++i) {
    // A user-defined run of spaces merges before any scored piece: ranks of finite scores start at
    // 2^23.
    const bool first = spec.types[i] == TokenType::user_defined;
    t.ranks[i] = first ? static_cast<std::uint32_t>(i) : rank_of_score(spec.scores[i]);
  }
}

void find_crossings(TokenizerTables& t) {
  t.crosses.resize(256);
  for (TokenId id = 0; id < static_cast<TokenId>(t.bytes.size()); ++id) {
    const std::string_view bytes = t.bytes[id];
    const TokenType type = t.spec.types[static_cast<std::size_t>(id)];
    if (type != TokenType::normal && type != TokenType::user_defined) continue;
    for (std::size_t i = bytes.find(' ', 1); i < bytes.size(); i = bytes.find(' ', i + 1)) {
      auto& after = t.crosses[static_cast<unsigned char>(bytes[i - 1])];
      if (i + 1 == bytes.size())
        after.set();
      else
        after.set(static_cast<unsigned char>(bytes[i + 1]));
    }
  }
}

void find_ends(TokenizerTables& t) {
  VocabSpec& spec = t.spec;
  std::vector<TokenId>& ends = spec.end_of_generation;
  for (const TokenId id : {spec.eos, spec.eot})
    if (id != kNoToken) ends.push_back(id);
  for (const std::string_view name : kEndNames)
    if (const auto it = t.named.find(std::string(name));
        it != t.named.end() && t.is_control(it->second))
      ends.push_back(it->second);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

}  // namespace

Result<Tokenizer> Tokenizer::create(VocabSpec spec) {
  TRY_STATUS(check_spec(spec));
  auto tables = std::make_unique<TokenizerTables>();
  tables->spec = std::move(spec);
  TokenizerTables& t = *tables;
  if (t.spec.types.empty()) t.spec.types.assign(t.spec.tokens.size(), TokenType::normal);
  t.ignore_merges = t.spec.ignore_merges.value_or(false);
  t.add_bos = t.spec.add_bos.value_or(true);
  if (t.spec.model == VocabModel::byte_level) {
    TRY(const PreTokenizerEntry* entry, find_pre_tokenizer(t.spec.pre));
    t.ignore_merges = t.spec.ignore_merges.value_or(entry->defaults.ignore_merges);
    t.nfc = t.spec.nfc.value_or(entry->defaults.nfc);
    t.add_bos = t.spec.add_bos.value_or(entry->defaults.add_bos);
    TRY(t.pre, PreTokenizer::create(t.spec.pre));
  }
  lay_out_tokens(t);
  if (t.spec.model == VocabModel::sentencepiece) find_crossings(t);
  if (t.spec.model == VocabModel::sentencepiece && t.spec.merges.empty())
    lay_out_scores(t);
  else
    TRY_STATUS(lay_out_merges(t));
  for (TokenId id = 0; id < static_cast<TokenId>(t.bytes.size()); ++id)
    t.longest = std::max(t.longest, t.bytes[id].size());
  t.whole = std::make_unique<std::atomic<std::uint8_t>[]>(t.bytes.size());
  find_ends(t);
  t.spec.tokens = {};
  t.spec.merges = {};
  t.spec.scores = {};
  return Tokenizer(std::move(tables));
}

}  // namespace quire
