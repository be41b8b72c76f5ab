// text/token_map.h - the two look-ups in a tokenizer's inner loop: from bytes to a token, and from
// a pair of tokens to their merge.
//
// Both are open-addressing tables sized once for a known number of entries. TokenMap keeps no bytes
// of its own: it asks its owner for the bytes of a token, so a vocabulary is stored once.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "text/vocab.h"

namespace quire {

// The bytes of every token in one string, by id.
class TokenBytes {
 public:
  void add(std::string_view bytes) {
    bytes_.append(bytes);
    ends_.push_back(bytes_.size());
  }
  std::string_view operator[](TokenId id) const {
    const auto i = static_cast<std::size_t>(id);
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  std::size_t size() const { return ends_.size(); }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

class TokenMap {
 public:
  explicit TokenMap(std::size_t count = 0) : slots_(std::bit_ceil(2 * count + 2)) {}

  void insert(const TokenBytes& bytes,
              TokenId id) {  // a later token of the same bytes replaces the earlier one
    const std::uint32_t hash = hash_of(bytes[id]);
    slots_[slot_of(bytes, bytes[id], hash)] = {hash, id};
    length_max_ = std::max(length_max_, bytes[id].size());
  }
  TokenId find(const TokenBytes& bytes, std::string_view text) const {
    if (text.size() > length_max_) return kNoToken;
    return slots_[slot_of(bytes, text, hash_of(text))].id;
  }
  std::size_t length_max() const { return length_max_; }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    TokenId id = kNoToken;
  };

  static std::uint32_t hash_of(std::string_view text) {
    std::uint64_t h = text.size();
    while (text.size() >= 8) {
      std::uint64_t word;
      std::memcpy(&word, text.data(), 8);
      h = mix64(h ^ word);
      text.remove_prefix(8);
    }
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < text.size(); ++i)
      word |= static_cast<std::uint64_t>(static_cast<unsigned char>(text[i])) << (8 * i);
    return static_cast<std::uint32_t>(mix64(h ^ word));
  }
  std::size_t slot_of(const TokenBytes& bytes, std::string_view text, std::uint32_t hash) const {
    std::size_t i = hash & (slots_.size() - 1);
    while (slots_[i].id != kNoToken && (slots_[i].hash != hash || bytes[slots_[i].id] != text))
      i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<Slot> slots_;
  std::size_t length_max_ = 0;
};

// What two neighbouring tokens become, and how early: lower ranks merge first.
struct Merge {
  std::uint32_t rank = UINT32_MAX;
  TokenId id = kNoToken;
};

class MergeMap {
 public:
  explicit MergeMap(std::size_t count = 0) : slots_(std::bit_ceil(2 * count + 2)) {}

  void insert(TokenId left, TokenId right, Merge merge) {  // the first of two equal pairs stays
    Slot& slot = slots_[slot_of(key_of(left, right))];
    if (slot.key == kFree) slot = {key_of(left, right), merge};
  }
  Merge find(TokenId left, TokenId right) const {
    return slots_[slot_of(key_of(left, right))].merge;
  }

 private:
  static constexpr std::uint64_t kFree = UINT64_MAX;
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge;
  };
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    std::size_t i = mix64(key) & (slots_.size() - 1);
    while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<Slot> slots_;
};

}  // namespace quire
