#include "model/block_passes.h"

#include <algorithm>

namespace quire {

BlockPasses::BlockPasses(const StepPlan& whole)
    : whole_(whole),
      part_(whole),
      done_(whole.groups[0].sequence_count),
      sequences_(whole.groups.size()) {}

bool BlockPasses::next() {
  const std::uint32_t tokens = whole_.geometry->tokens_per_block;
  const KvView& first = whole_.groups[0];
  tokens_.clear();
  positions_.clear();
  adapters_.clear();
  wanted_.clear();
  wanted_from_.clear();
  for (auto& list : sequences_) list.clear();
  for (std::uint32_t s = 0; s < first.sequence_count; ++s) {
    const KvSequenceView& all = first.sequences[s];
    const std::uint32_t past = all.past + done_[s], left = all.row_count - done_[s],
                        count = std::min(left, tokens - past % tokens),
                        from = all.first_row + done_[s],
                        to = static_cast<std::uint32_t>(tokens_.size());
    // A sequence without rows in this pass stays in the list, because taps and reads are found by
    // index.
    for (std::size_t g = 0; g < sequences_.size(); ++g) {
      KvSequenceView view = whole_.groups[g].sequences[s];
      view.first_row = to;
      view.row_count = count;
      view.past = past;
      sequences_[g].push_back(view);
    }
    for (std::uint32_t i = from; i < from + count; ++i) {
      tokens_.push_back(whole_.tokens[i]);
      positions_.push_back(whole_.positions[i]);
      if (!whole_.adapters.empty()) adapters_.push_back(whole_.adapters[i]);
    }
    const auto begin = std::ranges::lower_bound(whole_.wanted, from);
    for (auto it = begin; it != whole_.wanted.end() && *it < from + count; ++it) {
      wanted_.push_back(to + *it - from);
      wanted_from_.push_back(static_cast<std::uint32_t>(it - whole_.wanted.begin()));
    }
    done_[s] += count;
  }
  if (tokens_.empty()) return false;
  views_.assign(whole_.groups.begin(), whole_.groups.end());
  for (std::size_t g = 0; g < views_.size(); ++g) views_[g].sequences = sequences_[g].data();
  part_.tokens = tokens_;
  part_.positions = positions_;
  part_.adapters = adapters_;
  part_.groups = views_;
  part_.wanted = wanted_;
  return true;
}

void BlockPasses::place(const float* from, std::size_t vocabulary, float* to) const {
  for (std::size_t i = 0; i < wanted_from_.size(); ++i)
    std::copy_n(from + i * vocabulary, vocabulary, to + wanted_from_[i] * vocabulary);
}

}  // namespace quire
