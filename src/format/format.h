// format/format.h - how the keys and values of one lane page are laid out in bytes.
//
// A lane page holds P tokens of one (layer, KV head). In the exact formats keys lie transposed,
// [head_dim][P], so that one vector holds the same dimension of consecutive tokens and scores need
// no horizontal sums; values lie [P][head_dim]. Rows are rounded once, when written, to the
// format's row type; an exact format stores them unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace quire {

enum class RowType : std::uint8_t { f32, f16, bf16 };

struct PageShape {
  std::uint32_t tokens;  // P
  std::uint32_t key_dim;
  std::uint32_t value_dim;  // 0: values are read from the keys (latent attention)
};

struct Format {
  std::string_view name;  // as on the command line
  RowType rows;
  bool exact;
  std::size_t (*key_bytes)(const PageShape&);
  std::size_t (*value_bytes)(const PageShape&);
};

std::span<const Format* const> formats();
Result<const Format*> find_format(std::string_view name);

}  // namespace quire
