#include "model/coded_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/coded_parts.h"
#include "tensor/printable.h"

namespace quire {
namespace {

NumberType number_type(std::string_view type) {
  return type == "F32"       ? NumberType::f32
         : type == "F16"     ? NumberType::f16
         : type == "BF16"    ? NumberType::bf16
         : type == "F8_E8M0" ? NumberType::e8m0
                             : NumberType::other;
}

// The same text with another end.
std::string ending(const std::string& name, std::string_view end, std::string_view other) {
  return name.substr(0, name.size() - end.size()).append(other);
}

}  // namespace

Error bad_part(const Part& part, std::string_view message) {
  return Error{Code::corrupt, fmt::format("tensor '{}' {}", part.name, message)};
}

Result<std::optional<Part>> find_part(const TensorLookup& look, const std::string& name,
                                      TypeNames types) {
  TRY(std::optional<FoundTensor> found, look(name));
  if (!found) return std::optional<Part>();
  RawTensor& t = found->tensor;
  if (std::ranges::find(types, t.type) == types.end())
    return Error{Code::unsupported, fmt::format("tensor '{}' is of type {}; {} is needed", name,
                                                printable(t.type), fmt::join(types, " or "))};
  return std::optional<Part>(
      Part{name, number_type(t.type), std::move(t.shape), t.data, std::move(found->owner)});
}

Result<Part> need(const TensorLookup& look, const std::string& name, TypeNames types) {
  TRY(std::optional<Part> part, find_part(look, name, types));
  if (!part) return Error{Code::not_found, fmt::format("tensor '{}' is missing", name)};
  if (part->data.empty()) return bad_part(*part, "is empty");
  return std::move(*part);
}

Result<Part> need(const TensorLookup& look, const std::string& name, TypeNames types,
                  const Shape& shape) {
  TRY(Part part, need(look, name, types));
  if (part.shape != shape)
    return bad_part(part, fmt::format("has shape [{}]; [{}] is needed", fmt::join(part.shape, ", "),
                                      fmt::join(shape, ", ")));
  return part;
}

Result<std::optional<CodedTensor>> find_coded(const TensorLookup& look, const Quantization& how,
                                              const std::string& name) {
  using Method = Quantization::Method;
  constexpr std::string_view kWeight = ".weight", kBlocks = "_blocks";
  if (how.method == Method::fp8) return find_fp8(look, how, name);
  if (how.method == Method::mxfp4 && name.ends_with(kBlocks))
    return find_mxfp4(look, name, ending(name, kBlocks, "_scales"));
  if (!name.ends_with(kWeight)) return std::optional<CodedTensor>();
  const std::string base = ending(name, kWeight, "");
  switch (how.method) {
    case Method::awq:
      return find_awq(look, base);
    case Method::gptq:
      return find_gptq(look, how, base);
    case Method::packed:
      return find_packed(look, base);
    case Method::mxfp4_packed:
      return find_mxfp4(look, base + ".weight_packed", base + ".weight_scale");
    case Method::nf4:
      return find_nf4(look, name);
    default:
      return std::optional<CodedTensor>();
  }
}

FoundCoded find_mxfp4(const TensorLookup& look, const std::string& codes_name,
                      const std::string& scales_name) {
  TRY(const std::optional<Part> found, find_part(look, codes_name, {"U8"}));
  if (!found) return std::optional<CodedTensor>();
  TRY(const Part codes, need(look, codes_name, {"U8"}));
  // [.., inputs / 32, 16], or [outputs, inputs / 2]
  Shape shape = codes.shape;
  const bool by_block = codes_name.ends_with("_blocks");
  if (shape.size() < 2 ||
      (by_block ? shape.size() < 3 || shape.back() != 16 : shape.back() % 16 != 0))
    return bad_part(codes, fmt::format("has shape [{}], which has no blocks of 16 bytes",
                                       fmt::join(shape, ", ")));
  if (by_block)
    shape.pop_back();
  else
    shape.back() /= 16;
  TRY(const Part scales, need(look, scales_name, {"U8", "F8_E8M0"}, shape));
  const std::uint64_t groups = shape.back();
  const auto encode = [codes, scales, groups](std::uint64_t first, std::uint64_t count,
                                              std::byte* to) {
    for (std::uint64_t b = first * groups; b < (first + count) * groups; ++b) {
      *to++ = scales.data[b];
      for (std::uint64_t j = 0; j < 16; ++j) {  // the file has neighbours in one byte
        const int low = codes.byte(b * 16 + j / 2), high = codes.byte(b * 16 + 8 + j / 2);
        const std::uint64_t shift = j % 2 * 4;
        *to++ = static_cast<std::byte>((low >> shift & 15) | (high >> shift & 15) << 4);
      }
    }
  };
  return std::optional(CodedTensor{.type = DType::mxfp4,
                                   .rows = scales.count() / groups,
                                   .columns = groups * 32,
                                   .encode = encode,
                                   .parts = {codes.data, scales.data}});
}

namespace {

// What scales of F8_E4M3 belong to: a tensor, an output, or a block.
struct ScaleGrid {
  std::uint64_t rows, columns;      // of inputs and outputs that share a scale
  std::uint64_t in_row, of_expert;  // scales
};

Result<ScaleGrid> scale_grid(const Quantization& how, const Part& scales, std::uint64_t experts,
                             std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t count = scales.count();
  if (how.block_rows != 0 && scales.shape.size() > 1) {
    if (how.block_columns % 128 != 0 && how.block_columns < columns)
      return Error{
          Code::unsupported,
          fmt::format("tensor '{}': blocks of {} inputs are not supported; multiples of 128 are",
                      scales.name, how.block_columns)};
    const std::uint64_t down = (rows + how.block_rows - 1) / how.block_rows,
                        across = (columns + how.block_columns - 1) / how.block_columns;
    if (count == experts * down * across && scales.shape.back() == across)
      return ScaleGrid{how.block_rows, how.block_columns, across, down * across};
  } else if (count == experts) {
    return ScaleGrid{rows, columns, 1, 1};
  } else if (count == experts * rows) {
    return ScaleGrid{1, columns, 1, rows};
  }
  return bad_part(scales, fmt::format("has shape [{}], which does not fit {} outputs of {} inputs",
                                      fmt::join(scales.shape, ", "), rows, columns));
}

}  // namespace

FoundCoded find_fp8(const TensorLookup& look, const Quantization& how, const std::string& name) {
  TRY(const std::optional<FoundTensor> found, look(name));
  if (!found || found->tensor.type != "F8_E4M3") return std::optional<CodedTensor>();
  TRY(const Part codes, need(look, name, {"F8_E4M3"}));
  std::optional<Part> scales;
  for (const char* end : {"_scale_inv", "_scale"}) {
    if (scales) break;
    TRY(scales, find_part(look, name + end, {"F32", "F16", "BF16", "F8_E8M0"}));
  }
  if (!scales || scales->data.empty())
    return Error{Code::not_found,
                 fmt::format("tensor '{0}' is of type F8_E4M3, and neither '{0}_scale_inv' "
                             "nor '{0}_scale' is there",
                             name)};
  const Shape& shape = codes.shape;
  if (shape.size() < 2 || shape.size() > 3)
    return bad_part(codes, fmt::format("has {} dimensions", shape.size()));
  const std::uint64_t columns = shape.back(), rows = shape[shape.size() - 2],
                      experts = shape.size() == 3 ? shape[0] : 1;
  if (columns % 32 != 0)
    return Error{
        Code::unsupported,
        fmt::format("tensor '{}' has rows of {} inputs, no multiple of 32", name, columns)};
  TRY(const ScaleGrid grid, scale_grid(how, *scales, experts, rows, columns));
  const auto encode = [codes, grid, rows, columns, scales = *scales](
                          std::uint64_t first, std::uint64_t count, std::byte* to) {
    for (std::uint64_t r = first; r < first + count; ++r)
      for (std::uint64_t k = 0; k < columns; k += 32, to += 36) {
        const float scale = scales.number(r / rows * grid.of_expert +
                                          r % rows / grid.rows * grid.in_row + k / grid.columns);
        std::memcpy(to, &scale, sizeof scale);
        std::memcpy(to + 4, codes.data.data() + r * columns + k, 32);
      }
  };
  return std::optional(CodedTensor{.type = DType::f8_e4m3,
                                   .rows = experts * rows,
                                   .columns = columns,
                                   .encode = encode,
                                   .parts = {codes.data, scales->data}});
}

}  // namespace quire
