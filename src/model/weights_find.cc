// How ModelSource finds a tensor: as it is, as codes, or as a piece of another one.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "model/adapter/merged_adapter.h"
#include "model/arch/arch.h"
#include "model/made_tensors.h"
#include "model/weights_source.h"

namespace quire {
namespace {

// A matrix of one row may be stored as a vector.
bool same_shape(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  if (a.size() < b.size() && b[0] == 1) b = b.subspan(1);
  return std::ranges::equal(a, b);
}

// As the file spells it; null: not there.
const TensorView* find_stored(const std::optional<GgufFile>& gguf,
                              const std::optional<SafetensorsFolder>& folder,
                              const std::string& stored) {
  if (gguf) return gguf->find(stored);
  const auto found = folder->tensor(stored);
  return found.ok() ? found.value() : nullptr;
}

}  // namespace

Result<std::optional<CodedTensor>> ModelSource::coded(const std::string& stored) const {
  if (!folder_ || quantization_.method == Quantization::Method::none)
    return std::optional<CodedTensor>();
  const auto look = [&](const std::string& of) -> Result<std::optional<FoundTensor>> {
    std::optional<RawTensor> raw = folder_->raw(of);
    if (!raw) return std::optional<FoundTensor>();
    FoundTensor found{std::move(*raw)};
    if (detached_ && !found.tensor.data.empty()) {
      TRY(std::vector<std::byte> bytes, read_bytes(found.tensor.data));
      const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
      found.tensor.data = *kept;
      found.owner = kept;
    }
    return std::optional(std::move(found));
  };
  Result<std::optional<CodedTensor>> result = find_coded(look, quantization_, stored);
  if (!result.ok()) return Error{result.error().code, path_ + ": " + result.error().message};
  return result;
}

// All rows of a coded tensor, as the tensor `name`.
Result<TensorView> ModelSource::encoded(const CodedTensor& coded, const std::string& stored,
                                        std::string_view name, bool with_bytes) const {
  TRY(const std::vector<std::uint64_t> wanted, shape(name));
  if (wanted != std::vector{coded.rows, coded.columns})
    return Error{Code::corrupt,
                 fmt::format("{}: tensor '{}' has shape [{}, {}], the configuration needs [{}]",
                             path_, stored, coded.rows, coded.columns, fmt::join(wanted, ", "))};
  return made_->make(with_bytes, [&](MadeTensors::Bytes* copy) -> Result<TensorView> {
    TensorView view{std::string(name), coded.type, wanted, {}};
    if (copy == nullptr) return view;
    copy->resize(coded.rows * row_bytes(coded.type, coded.columns));
    coded.encode(0, coded.rows, copy->data());
    for (const auto& part : coded.parts) folder_->drop_pages(part);
    view.data = *copy;
    return view;
  });
}

// A piece of a tensor, of which one of the two is there.
Result<TensorView> ModelSource::take(const TensorView* whole, const CodedTensor* coded,
                                     std::string_view name, const TensorPiece& piece,
                                     NamedTensor named, bool with_bytes) const {
  TRY(const std::vector<std::uint64_t> wanted, shape(name));
  TensorView outline;
  if (coded) outline = {std::string(name), coded->type, {coded->rows, coded->columns}, {}};
  return made_->make(with_bytes, [&](MadeTensors::Bytes* copy) {
    auto taken = take_piece(coded ? outline : *whole, path_, name, wanted, piece, config_, named,
                            coded, copy);
    if (coded && copy)
      for (const auto& part : coded->parts) folder_->drop_pages(part);
    return taken;
  });
}

Result<TensorView> ModelSource::tensor(std::string_view name) const {
  TRY(TensorView view, find_tensor_of(name, true));
  if (!merged_ || !merged_->changes(name)) return view;
  const TensorView stored = view;
  view.type = MergedAdapter::type_of(stored.type);
  view.data = {};
  if (detached_) return view;
  std::vector<std::byte> merged = merged_->merge(stored);
  drop_pages(stored);  // a copy of it would have the same name
  return made_->make(true, [&](MadeTensors::Bytes* copy) -> Result<TensorView> {
    if (copy != nullptr) *copy = std::move(merged);
    return view;
  });
}

Result<TensorView> ModelSource::outline(std::string_view name) const {
  TRY(TensorView view, find_tensor_of(name, false));
  if (!merged_ || !merged_->changes(name)) return view;
  view.type = MergedAdapter::type_of(view.type);
  view.data = {};
  return view;
}

Result<TensorView> ModelSource::find_tensor_of(std::string_view name, bool with_bytes) const {
  if (random_) return random_tensor(name);
  TRY(const std::vector<std::uint64_t> wanted, shape(name));
  const NamedTensor named = *find_tensor(config_, name);
  const std::string stored = with_prefix(stored_name(named, is_gguf()));
  const TensorView* const found = find_stored(gguf_, folder_, stored);
  const bool plain = found && same_shape(found->shape, wanted);
  if (!plain) {
    TRY(const std::optional<CodedTensor> codes, coded(stored));
    if (codes) return encoded(*codes, stored, name, with_bytes);
  }
  for (const NamedPiece& part : find_pieces(config_, named, is_gguf())) {
    if (part.is_common && plain) break;
    const std::string whole_name = with_prefix(part.whole);
    const TensorView* const whole = find_stored(gguf_, folder_, whole_name);
    std::optional<CodedTensor> codes;
    if (!whole) {
      TRY(codes, coded(whole_name));
    }
    if (!whole && !codes) continue;
    Result<TensorView> made =
        take(whole, codes ? &*codes : nullptr, name, *part.piece, named, with_bytes);
    if (made.ok() || codes || whole != found) return made;
  }
  if (plain) {
    TensorView view = *found;
    view.name = name;
    view.shape = wanted;
    return view;
  }
  if (found)
    return Error{Code::corrupt,
                 fmt::format("{}: tensor '{}' has shape [{}], the configuration needs [{}]", path_,
                             stored, fmt::join(found->shape, ", "), fmt::join(wanted, ", "))};
  if (folder_) return folder_->tensor(stored).error();
  return Error{Code::not_found, fmt::format("{}: tensor '{}' is missing", path_, stored)};
}

std::vector<std::pair<DType, std::uint64_t>> ModelSource::weight_types() const {
  std::map<DType, std::uint64_t> bytes;
  for (const std::string& name : tensor_names(config_))
    if (const auto t = outline(name); t.ok())
      bytes[t.value().type] += row_bytes(t.value().type, t.value().columns()) * t.value().rows();
  std::vector<std::pair<DType, std::uint64_t>> sorted(bytes.begin(), bytes.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(), [](const auto& p) { return p.second; });
  return sorted;
}

// A tensor whose rows must be gathered or encoded: out of what the files have.
Result<std::vector<std::byte>> ModelSource::read_made(std::string_view name) const {
  TRY(const std::vector<std::uint64_t> wanted, shape(name));
  const NamedTensor named = *find_tensor(config_, name);
  TRY(const std::optional<CodedTensor> codes, coded(with_prefix(stored_name(named, is_gguf()))));
  std::vector<std::byte> all(codes ? codes->rows * row_bytes(codes->type, codes->columns) : 0);
  if (codes) {
    codes->encode(0, codes->rows, all.data());
    return all;
  }
  for (const NamedPiece& part : find_pieces(config_, named, is_gguf())) {
    TRY(const std::optional<CodedTensor> coded_whole, coded(with_prefix(part.whole)));
    if (coded_whole) {
      const TensorView outline{
          part.whole, coded_whole->type, {coded_whole->rows, coded_whole->columns}, {}};
      TRY([[maybe_unused]] const TensorView view,
          take_piece(outline, path_, name, wanted, *part.piece, config_, named, &*coded_whole,
                     &all));
      return all;
    }
    if (const TensorView* found = find_stored(gguf_, folder_, with_prefix(part.whole))) {
      TRY(const std::vector<std::byte> bytes, read_stored(*found));
      TensorView whole = *found;
      whole.data = bytes;
      std::vector<std::byte> copy;
      const auto taken =
          take_piece(whole, path_, name, wanted, *part.piece, config_, named, nullptr, &copy);
      if (!taken.ok()) return taken.error();
      return copy;
    }
  }
  return Error{Code::not_found, fmt::format("{}: has no tensor '{}'", path_, name)};
}

}  // namespace quire
