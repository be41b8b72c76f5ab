// Codes of four bits with a zero: AWQ, GPTQ and compressed-tensors' pack-quantized.
#include <fmt/format.h>

#include <cmath>

#include "model/coded_parts.h"

namespace quire {
namespace {

// How a file keeps one matrix. `codes` and `zeros` are words of eight codes.
struct FourBits {
  Part codes, zeros, scales;  // `zeros` may be empty: 8
  std::uint64_t rows = 0, columns = 0, groups = 0;
  std::uint32_t add_to_zeros = 0;
  std::vector<std::uint32_t> group_of;  // by input; empty: groups are neighbours

  std::uint64_t group() const { return columns / groups; }
};

constexpr std::uint32_t kAwqShift[8] = {0, 16, 4, 20, 8, 24, 12, 28};

// Each gives code (row, column), zero (row, group), and the place of scale (row, group).
struct Awq : FourBits {
  std::uint32_t code(std::uint64_t r, std::uint64_t k) const {
    return codes.word(k * (rows / 8) + r / 8) >> kAwqShift[r % 8] & 15;
  }
  std::uint32_t zero(std::uint64_t r, std::uint64_t g) const {
    return zeros.word(g * (rows / 8) + r / 8) >> kAwqShift[r % 8] & 15;
  }
  std::uint64_t scale(std::uint64_t r, std::uint64_t g) const { return g * rows + r; }
};

struct Gptq : FourBits {
  std::uint32_t code(std::uint64_t r, std::uint64_t k) const {
    return codes.word(k / 8 * rows + r) >> k % 8 * 4 & 15;
  }
  std::uint32_t zero(std::uint64_t r, std::uint64_t g) const {
    return (zeros.word(g * (rows / 8) + r / 8) >> r % 8 * 4 & 15) + add_to_zeros;
  }
  std::uint64_t scale(std::uint64_t r, std::uint64_t g) const { return g * rows + r; }
};

struct Packed : FourBits {
  std::uint32_t code(std::uint64_t r, std::uint64_t k) const {
    return codes.word(r * (columns / 8) + k / 8) >> k % 8 * 4 & 15;
  }
  std::uint32_t zero(std::uint64_t r, std::uint64_t g) const {
    if (zeros.data.empty()) return 8;
    return zeros.word(r / 8 * groups + g) >> r % 8 * 4 & 15;
  }
  std::uint64_t scale(std::uint64_t r, std::uint64_t g) const {
    return scales.count() == 1 ? 0 : r * groups + g;
  }
};

// The type whose scales hold these: f16 or bf16, f32 where all of them happen to be one of the two.
Result<DType> type_of(const Part& scales) {
  if (scales.type == NumberType::f16) return DType::u4;
  if (scales.type == NumberType::bf16) return DType::u4_bf16;
  bool half = true, brain = true;
  for (std::uint64_t i = 0; i < scales.count() && (half || brain); ++i) {
    const float x = scales.number(i);
    half = half && f16_to_f32(f32_to_f16(x)) == x;
    brain = brain && bf16_to_f32(f32_to_bf16(x)) == x;
  }
  if (half || brain) return half ? DType::u4 : DType::u4_bf16;
  return Error{Code::unsupported,
               fmt::format("tensor '{}' has scales of type F32 that neither F16 nor BF16 can hold",
                           scales.name)};
}

std::uint16_t scale_bits(const Part& scales, DType type, std::uint64_t i) {
  if (scales.type != NumberType::f32) return scales.half(i);
  return type == DType::u4 ? f32_to_f16(scales.number(i)) : f32_to_bf16(scales.number(i));
}

// Rows of blocks. Words are shared by neighbouring rows or inputs, so a block of all rows comes first.
template <class Form>
void encode_blocks(const Form& of, DType type, std::uint64_t first, std::uint64_t count,
                   std::byte* to) {
  constexpr std::size_t kBytes = 19;
  const std::uint64_t blocks = of.columns / 32;
  for (std::uint64_t b = 0; b < blocks; ++b)
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t r = first + i, g = b * 32 / of.group();
      std::byte* block = to + (i * blocks + b) * kBytes;
      const std::uint16_t scale = scale_bits(of.scales, type, of.scale(r, g));
      std::memcpy(block, &scale, sizeof scale);
      block[2] = static_cast<std::byte>(of.zero(r, g));
      for (std::uint64_t j = 0; j < 16; ++j)
        block[3 + j] =
            static_cast<std::byte>(of.code(r, b * 32 + j) | of.code(r, b * 32 + 16 + j) << 4);
    }
}

// Inputs whose groups are not neighbours become plain bf16.
template <class Form>
void encode_plain(const Form& of, std::uint64_t first, std::uint64_t count, std::byte* to) {
  for (std::uint64_t k = 0; k < of.columns; ++k)
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t r = first + i, g = of.group_of[k];
      const int code = static_cast<int>(of.code(r, k)) - static_cast<int>(of.zero(r, g));
      const std::uint16_t bits =
          f32_to_bf16(of.scales.number(of.scale(r, g)) * static_cast<float>(code));
      std::memcpy(to + (i * of.columns + k) * 2, &bits, 2);
    }
}

// Neighbours of input k in its group, or an error if a group is none of those that have scales.
template <class Form>
Status read_order(const TensorLookup& look, const std::string& name, Form& of) {
  TRY(const std::optional<Part> order, find_part(look, name, {"I32"}));
  if (!order || order->data.empty() || of.groups > of.columns) return {};
  if (order->shape != Shape{of.columns})
    return bad_part(*order, fmt::format("has shape [{}]; [{}] is needed",
                                        fmt::join(order->shape, ", "), of.columns));
  bool in_order = true;
  for (std::uint64_t k = 0; k < of.columns; ++k) {
    const std::uint32_t g = order->word(k);
    if (g >= of.groups)
      return bad_part(*order, fmt::format("puts input {} into group {} of {}", k,
                                          static_cast<std::int32_t>(g), of.groups));
    of.group_of.push_back(g);
    in_order = in_order && g == k / of.group();
  }
  if (in_order) of.group_of.clear();
  return {};
}

template <class Form>
FoundCoded finish(Form of) {
  if (of.rows % 8 != 0 || of.columns % 32 != 0)
    return Error{
        Code::unsupported,
        fmt::format("tensor '{}' has {} outputs of {} inputs; multiples of 8 and 32 are supported",
                    of.codes.name, of.rows, of.columns)};
  if (of.columns % of.groups != 0 || (of.group_of.empty() && of.group() % 32 != 0))
    return Error{
        Code::unsupported,
        fmt::format(
            "tensor '{}' has {} groups of {} inputs; groups of a multiple of 32 are supported",
            of.codes.name, of.groups, of.columns)};
  CodedTensor coded{.type = DType::bf16,
                    .rows = of.rows,
                    .columns = of.columns,
                    .encode = {},
                    .parts = {of.codes.data, of.zeros.data, of.scales.data}};
  if (!of.group_of.empty()) {
    coded.encode = [of](std::uint64_t first, std::uint64_t count, std::byte* to) {
      encode_plain(of, first, count, to);
    };
    return std::optional(std::move(coded));
  }
  TRY(coded.type, type_of(of.scales));
  coded.encode = [of, type = coded.type](std::uint64_t first, std::uint64_t count, std::byte* to) {
    encode_blocks(of, type, first, count, to);
  };
  return std::optional(std::move(coded));
}

// [inputs / per_word, outputs], or [inputs, outputs / 8]: a matrix of words.
Result<std::optional<Part>> find_words(const TensorLookup& look, const std::string& name) {
  TRY(std::optional<Part> words, find_part(look, name, {"I32", "U32"}));
  if (words && (words->shape.size() != 2 || words->data.empty()))
    return bad_part(
        *words, fmt::format("has shape [{}]; a matrix is needed", fmt::join(words->shape, ", ")));
  return words;
}

// Zeros and scales of AWQ and GPTQ.
template <class Form>
Status read_groups(const TensorLookup& look, const std::string& base, Form& of) {
  TRY(of.zeros, need(look, base + ".qzeros", {"I32", "U32"}));
  if (of.zeros.shape.size() != 2 || of.zeros.shape[1] != of.rows / 8 || of.rows % 8 != 0)
    return bad_part(of.zeros, fmt::format("has shape [{}]; [groups, {}] is needed",
                                          fmt::join(of.zeros.shape, ", "), of.rows / 8));
  of.groups = of.zeros.shape[0];
  TRY(of.scales, need(look, base + ".scales", {"F32", "F16", "BF16"}, {of.groups, of.rows}));
  return {};
}

}  // namespace

FoundCoded find_awq(const TensorLookup& look, const std::string& base) {
  TRY(std::optional<Part> words, find_words(look, base + ".qweight"));
  if (!words) return std::optional<CodedTensor>();
  Awq of;
  of.codes = std::move(*words);
  of.columns = of.codes.shape[0];
  of.rows = of.codes.shape[1] * 8;
  TRY_STATUS(read_groups(look, base, of));
  return finish(std::move(of));
}

FoundCoded find_gptq(const TensorLookup& look, const Quantization& how, const std::string& base) {
  TRY(std::optional<Part> words, find_words(look, base + ".qweight"));
  if (!words) return std::optional<CodedTensor>();
  Gptq of;
  of.codes = std::move(*words);
  of.columns = of.codes.shape[0] * 8;
  of.rows = of.codes.shape[1];
  of.add_to_zeros = how.zeros_less_one ? 1 : 0;
  TRY_STATUS(read_groups(look, base, of));
  TRY_STATUS(read_order(look, base + ".g_idx", of));
  return finish(std::move(of));
}

FoundCoded find_packed(const TensorLookup& look, const std::string& base) {
  TRY(std::optional<Part> words, find_words(look, base + ".weight_packed"));
  if (!words) return std::optional<CodedTensor>();
  Packed of;
  of.codes = std::move(*words);
  of.rows = of.codes.shape[0];
  of.columns = of.codes.shape[1] * 8;
  TRY(const std::optional<Part> shape, find_part(look, base + ".weight_shape", {"I64", "I32"}));
  if (shape && shape->data.size() == 16) {
    std::uint64_t told[2];
    std::memcpy(told, shape->data.data(), sizeof told);
    if (told[0] != of.rows || told[1] != of.columns)
      return bad_part(*shape, fmt::format("says [{}, {}], and '{}' has {} outputs of {} inputs",
                                          told[0], told[1], of.codes.name, of.rows, of.columns));
  }
  TRY(of.scales, need(look, base + ".weight_scale", {"F32", "F16", "BF16"}));
  of.groups = of.scales.shape.size() == 2 ? of.scales.shape[1] : 1;
  if (of.scales.count() != 1 && of.scales.shape != Shape{of.rows, of.groups})
    return bad_part(of.scales, fmt::format("has shape [{}]; [{}, groups] is needed",
                                           fmt::join(of.scales.shape, ", "), of.rows));
  TRY(std::optional<Part> zeros, find_part(look, base + ".weight_zero_point", {"I32", "U32"}));
  if (zeros) {
    if (zeros->shape != Shape{of.rows / 8, of.groups} || of.rows % 8 != 0)
      return bad_part(*zeros, fmt::format("has shape [{}]; [{}, {}] is needed",
                                          fmt::join(zeros->shape, ", "), of.rows / 8, of.groups));
    of.zeros = std::move(*zeros);
  }
  TRY_STATUS(read_order(look, base + ".weight_g_idx", of));
  return finish(std::move(of));
}

}  // namespace quire
