// format/format.h - how the keys and values of one lane page are stored: a pair of codecs.
//
// A lane page holds P tokens of one (layer, KV head): the bytes of the key codec, then those of the
// value codec (codec.h has the layouts). Rows are rounded once, when written, to the row type of
// the open tail; an exact format stores them unchanged.
//
//   const Format* f = find_format("hadamard-int4").value();
//   const Format* mixed = find_format("int8/hadamard-int4").value();   // keys / values
//   f->encode(shape, keys, values, page);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "format/codec.h"

namespace quire {

struct PageShape {
  std::uint32_t tokens;  // P
  std::uint32_t key_dim;
  std::uint32_t value_dim;  // 0: values are read from the keys (latent attention)

  Rows rows(Side side) const { return {tokens, side == Side::keys ? key_dim : value_dim}; }
};

struct Format {
  std::string_view name;  // as on the command line
  RowType rows;
  bool exact;  // both codecs are
  const Codec* keys;
  const Codec* values;

  std::size_t key_bytes(const PageShape& s) const {
    return codec_bytes(*keys, Side::keys, s.rows(Side::keys));
  }
  std::size_t value_bytes(const PageShape& s) const {
    return codec_bytes(*values, Side::values, s.rows(Side::values));
  }
  double effective_bits(const PageShape& s) const;  // of an element, keys and values together
  bool research() const { return keys->research || values->research; }

  Status check(const PageShape& s) const;  // can it hold pages of this shape?

  // Rows are [P][dim]. Encoding overwrites the whole page, padding included: equal rows, equal
  // bytes.
  void encode(const PageShape& s, const float* key_rows, const float* value_rows,
              std::byte* page) const;
  void decode(const PageShape& s, const std::byte* page, float* key_rows, float* value_rows) const;

  // Class A: a slot's bytes depend on its own token alone, so copy_slot may move them. Otherwise
  // class B: they depend on the whole block (KIVI's keys), which is kept or dropped as a whole.
  bool slots_stand_alone(const PageShape& s) const;
  void copy_slot(const PageShape& s, const std::byte* from, std::uint32_t from_slot, std::byte* to,
                 std::uint32_t to_slot) const;
};

// The formats with a name of their own: the same codec for keys and values.
std::span<const Format* const> formats();

// Finds a format by its name, by another server's name for it, or as "KEYS/VALUES".
Result<const Format*> find_format(std::string_view name);
Result<const Format*> find_format(std::string_view keys, std::string_view values);

}  // namespace quire
