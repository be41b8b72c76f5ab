// model/adapter/adapted_rows.h - the rows of a pass that adapters change, set by set, and the
// scratch that computing them takes. Private to model/.
//
// Rows of one set lie together in *slots*, so that each small matrix is read once for all of them.
// Rows without an adapter have no slot. Where a row's slot is changes no sum.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/adapter/adapter.h"

namespace quire {

struct AdaptedRows {
  struct Group {
    const AdapterSet* set;
    std::uint32_t begin, end;  // slots
  };
  static constexpr std::uint32_t kNone = 0xffffffffu;

  std::vector<Group> groups;
  std::vector<std::uint32_t> slots;  // by row of the pass, from `first_row` on; kNone: not adapted
  std::vector<std::uint32_t> rows;   // by slot, from `first_row` on
  std::uint32_t first_row = 0;

  bool empty() const { return groups.empty(); }
  std::uint32_t slot(std::uint32_t row) const { return slots[row - first_row]; }
  std::uint32_t row(std::uint32_t slot) const { return rows[slot - first_row]; }

  // Of rows [begin, end) of a pass, whose rows have the sets set_of(row): 0 or 1 + an index.
  template <class SetOf>
  void make(std::uint32_t begin, std::uint32_t end, std::span<const AdapterSet* const> sets,
            SetOf set_of) {
    first_row = begin;
    groups.clear();
    slots.assign(end - begin, kNone);
    rows.clear();
    for (std::uint32_t s = 1; s <= sets.size(); ++s) {
      const auto at = begin + static_cast<std::uint32_t>(rows.size());
      for (std::uint32_t r = begin; r < end; ++r) {
        if (set_of(r) != s) continue;
        slots[r - begin] = begin + static_cast<std::uint32_t>(rows.size());
        rows.push_back(r);
      }
      const auto until = begin + static_cast<std::uint32_t>(rows.size());
      if (until > at) groups.push_back({sets[s - 1], at, until});
    }
  }
};

// Shared by the workers of a pass; by slot. A slot's place is the same for all linear layers: with many
// rows one worker may be at another layer than the next.
struct AdapterScratch {
  std::vector<float> inputs;  // of a linear layer, in f32
  std::vector<float> inner;   // of the down projection
  std::vector<float> t;       // A h of all adapters of the linear layers at hand
  std::uint32_t input_width = 0, inner_width = 0, t_stride = 0;

  // What a step needs that has these sets.
  void size(const ModelConfig& config, std::uint32_t rows, std::span<const AdapterSet* const> sets);
};

}  // namespace quire
