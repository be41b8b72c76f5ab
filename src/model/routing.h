// model/routing.h - which experts take a row, and with which weights.
//
// Nothing here depends on other rows: a row's choice is that of its scores. Sums and choices go by
// expert in ascending order, ties to the lower one, so that every machine chooses alike.
//
//   route(spec, scores, bias, choices);          // choices of one row, ascending by expert
//   const ExpertLists lists(spec, rows, choices);  // rows by expert, for the products
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layer_spec.h"

namespace quire {

struct ExpertChoice {
  std::uint32_t expert;
  float weight;
};

// `scores` are the router's, one for each expert, and are overwritten; `bias` (may be empty) counts
// where experts are chosen, not in their weights. Fills spec.used choices.
void route(const Experts& spec, std::span<float> scores, std::span<const float> bias,
           ExpertChoice* choices);

// The rows of each expert side by side. An expert's rows begin at a multiple of kExpertAlign.
inline constexpr std::uint32_t kExpertAlign = 8;
struct ExpertLists {
  struct Item {
    std::uint32_t row;
    float weight;
  };
  struct List {
    std::uint32_t expert, begin, end;  // of items
  };
  std::vector<Item> items;  // with gaps, which are rows of 0xffffffff
  std::vector<List> lists;  // of experts that have rows, ascending

  // `choices` has spec.used for each row.
  void make(const Experts& spec, std::uint32_t rows, std::span<const ExpertChoice> choices);
  // How many items so many rows can make.
  static std::uint32_t items_max(const Experts& spec, std::uint32_t rows);

 private:
  std::vector<std::uint32_t> ends_;
};

}  // namespace quire
