#include "model/weights.h"

namespace quire {

std::uint64_t HeadRows::stored(std::uint64_t row, HeadWidth width) const {
  if (dim == 0) return row;
  const std::uint64_t wide = before == 0 ? width(dim) : dim, parts = rotated ? 2 : 1,
                      d = row % wide;
  const std::uint64_t room = wide / parts, kept = dim / parts, within = d % room;
  if (within >= kept) return kPadding;
  const std::uint64_t head = row / wide * dim, half = d / room;
  if (interleaved == dim) return head + 2 * within + half;
  const std::uint64_t at = half * kept + within, pairs = interleaved / 2;
  if (at < before || at >= before + interleaved) return head + at;
  return head + before + 2 * ((at - before) % pairs) + (at - before) / pairs;
}

Result<StackedRows> StackedRows::make(const ModelSource& source, std::vector<TensorPart> parts,
                                      std::uint32_t turn, HeadWidth width) {
  StackedRows made{.parts = std::move(parts), .ends = {}, .turn = turn, .width = width};
  std::uint64_t end = 0;
  for (const TensorPart& part : made.parts) {
    TRY(const std::vector<std::uint64_t> shape, source.shape(part.name));
    made.ends.push_back(end += part.heads.padded(shape[0], width));
    made.columns = static_cast<std::uint32_t>(shape[1]);
  }
  made.rows = static_cast<std::uint32_t>(end);
  return made;
}

StackedRows::Row StackedRows::at(std::uint64_t row) const {
  if (turn > 0) return {row / turn % parts.size(), row / (turn * parts.size()) * turn + row % turn};
  std::size_t part = 0;
  while (row >= ends[part]) ++part;
  return {part, parts[part].heads.stored(row - (part ? ends[part - 1] : 0), width)};
}

Result<std::vector<TensorView>> tensors_of(const ModelSource& source,
                                           const std::vector<TensorPart>& parts) {
  std::vector<TensorView> views;
  for (const TensorPart& part : parts) {
    TRY(TensorView view, source.tensor(part.name));
    views.push_back(std::move(view));
  }
  return views;
}

Result<std::vector<float>> read_vectors(const ModelSource& source,
                                        const std::vector<TensorPart>& parts, bool plus_one,
                                        HeadWidth width) {
  std::vector<float> all;
  for (const TensorPart& part : parts) {
    TRY(const TensorView t, source.tensor(part.name));
    std::vector<float> values(t.columns());
    dequantize_row(t.type, t.row(0), values.size(), values.data());
    for (std::uint64_t i = 0; i < part.heads.padded(values.size(), width); ++i) {
      const std::uint64_t from = part.heads.stored(i, width);
      all.push_back(from == kPadding ? 0.0f : plus_one ? values[from] + 1 : values[from]);
    }
  }
  return all;
}

}  // namespace quire
