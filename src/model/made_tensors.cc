#include "model/made_tensors.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <utility>

namespace quire {
namespace {

// Row `r` of a piece, in the whole tensor.
struct PieceRows {
  const TensorPiece& piece;
  const LayerSpec& spec;
  std::uint64_t first, base;  // within an expert's part, and where that begins

  std::uint64_t at(std::uint64_t r) const {
    return piece.stored ? piece.stored(spec, first + r) : first + r;
  }
};

// A plain type's element at (r, c) is the stored one at (c, r), of an expert with so many columns.
void turn(const TensorView& whole, const PieceRows& from, std::uint64_t expert, std::uint64_t rows,
          std::uint64_t columns, std::byte* to) {
  const std::size_t bytes = row_bytes(whole.type, 1);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t c = 0; c < columns; ++c, to += bytes)
      std::memcpy(to, whole.row(expert * columns + c) + from.at(r) * bytes, bytes);
}

}  // namespace

Result<TensorView> take_piece(const TensorView& whole, const std::string& file,
                              std::string_view name, const std::vector<std::uint64_t>& shape,
                              const TensorPiece& piece, const ModelConfig& config,
                              NamedTensor named, std::vector<std::byte>* copy) {
  const LayerSpec& spec = config.per_layer[named.layer];
  const bool is_vector = shape.size() == 1, turned = piece.transposed && !is_vector;
  const std::uint64_t rows = shape[0], columns = is_vector ? 1 : shape[1];
  const PieceRows from{piece, spec, piece.first(config, spec),
                       piece.each ? named.expert * piece.each(config, spec) : 0};
  const std::uint64_t wanted_rows = piece.whole(config, spec),
                      parts = piece.each ? spec.ffn.experts.count : 1;
  const bool fits = is_vector ? whole.rows() * whole.columns() == wanted_rows
                    : turned  ? whole.rows() == parts * columns && whole.columns() == wanted_rows
                              : whole.rows() == wanted_rows && whole.columns() == columns;
  if (!fits)
    return Error{
        Code::corrupt,
        fmt::format("{}: tensor '{}' has shape [{}], the configuration needs {} rows of {}", file,
                    whole.name, fmt::join(whole.shape, ", "),
                    turned ? parts * columns : wanted_rows, turned ? wanted_rows : columns)};
  if ((turned || is_vector) && dtype_info(whole.type).block_elements != 1)
    return Error{Code::unsupported,
                 fmt::format("{}: tensor '{}' is of type {}, which cannot be taken apart", file,
                             whole.name, dtype_info(whole.type).name)};
  TensorView view{std::string(name), whole.type, shape, {}};
  const std::size_t bytes = row_bytes(whole.type, columns);
  if (!turned && piece.stored == nullptr) {
    view.data = whole.data.subspan((from.base + from.first) * bytes, rows * bytes);
    return view;
  }
  if (copy == nullptr) return view;
  copy->resize(rows * bytes);
  if (turned)
    turn(whole, from, named.expert, rows, columns, copy->data());
  else
    for (std::uint64_t r = 0; r < rows; ++r)
      std::memcpy(copy->data() + r * bytes, whole.data.data() + (from.base + from.at(r)) * bytes,
                  bytes);
  view.data = *copy;
  return view;
}

Result<TensorView> MadeTensors::piece(const TensorView& whole, const std::string& file,
                                      std::string_view name,
                                      const std::vector<std::uint64_t>& shape,
                                      const TensorPiece& piece, const ModelConfig& config,
                                      NamedTensor named) {
  Bytes copy;
  TRY(TensorView view,
      take_piece(whole, file, name, shape, piece, config, named, detached_ ? nullptr : &copy));
  if (copy.empty()) return view;
  const std::lock_guard lock(mutex_);
  Bytes& kept = copies_[view.name];
  if (kept.empty()) kept = std::move(copy);  // another view of it may be in use
  view.data = kept;
  return view;
}

TensorView MadeTensors::keep(TensorView view, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  Bytes& kept = copies_[view.name];
  if (kept.empty()) kept = std::move(bytes);
  view.data = kept;
  return view;
}

void MadeTensors::detach() {
  const std::lock_guard lock(mutex_);
  detached_ = true;
  copies_.clear();
}

bool MadeTensors::drop(const TensorView& tensor) {
  const std::lock_guard lock(mutex_);
  const auto found = copies_.find(tensor.name);
  if (found == copies_.end()) return false;
  const Bytes& copy = found->second;
  const std::less_equal<const std::byte*> not_after;
  const std::byte* const end = copy.data() + copy.size();
  if (!not_after(copy.data(), tensor.data.data()) || !not_after(tensor.data.data(), end))
    return false;
  if (tensor.data.size() == copy.size()) copies_.erase(found);
  return true;
}

}  // namespace quire
