#include "kernels/cuda/pages.h"

#include <bit>
#include <cstring>

#include "format/codes.h"
#include "format/families.h"
#include "format/fp8.h"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/sealed.h"

namespace quire {
namespace {

constexpr std::pair<const Codec*, CudaKvFormat> kCudaFormats[] = {
    {&kBf16, CudaKvFormat::bf16},
    {&kFp8E4m3, CudaKvFormat::fp8},
    {&kInt8, CudaKvFormat::int8},
    {&kHadamardInt4Head, CudaKvFormat::int4},
    {&kHadamardInt2Head, CudaKvFormat::int2},
};

// One side of a page in the codec's order.
struct CodecSide {
  const Codec& codec;
  Side side;
  Rows rows;

  std::uint32_t code(const std::byte* page, std::uint32_t slot, std::uint32_t d) const {
    if (&codec == &kFp8E4m3)
      return std::to_integer<std::uint32_t>(page[element_index(side, rows, slot, d)]);
    return Codes(page, side, rows, codec.bits).get(slot, d);
  }
  void set_code(std::byte* page, std::uint32_t slot, std::uint32_t d, std::uint32_t code) const {
    if (&codec == &kFp8E4m3)
      page[element_index(side, rows, slot, d)] = std::byte(code);
    else
      Codes(page, side, rows, codec.bits).set(slot, d, code);
  }

  // Scales as f16, which holds every power of two that fp8 uses.
  std::uint16_t scale(const std::byte* page, std::uint32_t slot) const {
    if (&codec == &kFp8E4m3)
      return f32_to_f16(power_of_two(
          take<std::uint8_t>(page, column_offset(codec, side, rows, 1), rows, 0, slot)));
    return take<std::uint16_t>(page, column_offset(codec, side, rows, 0), rows, 0, slot);
  }
  void set_scale(std::byte* page, std::uint32_t slot, std::uint16_t scale) const {
    if (&codec == &kFp8E4m3)
      put(page, column_offset(codec, side, rows, 1), rows, 0, slot,
          static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(f16_to_f32(scale)) >> 23));
    else
      put(page, column_offset(codec, side, rows, 0), rows, 0, slot, scale);
  }
};

// A code may share its byte with others, which are set already or still zero.
void set_sealed_code(std::byte* page, SealedPlace at, std::uint32_t code) {
  page[at.byte] |= std::byte(code << at.shift);
}

template <class F>
void each_side(const Format& format, const PageShape& shape, F f) {
  f(CodecSide{*format.keys, Side::keys, shape.rows(Side::keys)}, std::size_t{0});
  f(CodecSide{*format.values, Side::values, shape.rows(Side::values)}, format.key_bytes(shape));
}

// Rows of bf16: f(offset in the codec's order, offset in the GPU's).
template <class F>
void each_row_element(const PageShape& shape, F f) {
  for (const Side side : {Side::keys, Side::values}) {
    const Rows rows = shape.rows(side);
    const std::size_t half = side == Side::values ? std::size_t{kCudaPage} * rows.dim * 2 : 0;
    for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
      for (std::uint32_t d = 0; d < rows.dim; ++d)
        f(half + 2 * element_index(side, rows, slot, d), half + page_at(slot, d));
  }
}

}  // namespace

std::optional<CudaKvFormat> cuda_kv_format(const Format& format) {
  for (const auto& [codec, known] : kCudaFormats)
    if (format.keys == codec && format.values == codec) return known;
  return {};
}

std::optional<CudaKvFormat> cuda_page_format(const Format& format, const PageShape& shape) {
  const std::uint32_t dim = shape.key_dim;
  if (shape.tokens != kCudaPage || shape.value_dim != dim) return {};
  if (dim != 64 && dim != 128 && dim != 256) return {};
  return cuda_kv_format(format);
}

void page_to_cuda(const Format& format, const PageShape& shape, const std::byte* from,
                  std::byte* to) {
  const CudaKvFormat known = cuda_page_format(format, shape).value();
  if (known == CudaKvFormat::bf16)
    return each_row_element(shape, [&](std::size_t plain, std::size_t cuda) {
      std::memcpy(to + cuda, from + plain, 2);
    });
  std::memset(to, 0, sealed_page_bytes(known, shape.key_dim));
  each_side(format, shape, [&](const CodecSide& s, std::size_t at) {
    const auto side = static_cast<std::uint32_t>(s.side);
    for (std::uint32_t slot = 0; slot < kCudaPage; ++slot) {
      const std::uint16_t scale = s.scale(from + at, slot);
      std::memcpy(to + sealed_scale_at(known, s.rows.dim, side, slot), &scale, 2);
      for (std::uint32_t d = 0; d < s.rows.dim; ++d)
        set_sealed_code(to, sealed_code_at(known, s.rows.dim, side, slot, d),
                        s.code(from + at, slot, d));
    }
  });
}

void page_from_cuda(const Format& format, const PageShape& shape, const std::byte* from,
                    std::byte* to) {
  const CudaKvFormat known = cuda_page_format(format, shape).value();
  if (known == CudaKvFormat::bf16)
    return each_row_element(shape, [&](std::size_t plain, std::size_t cuda) {
      std::memcpy(to + plain, from + cuda, 2);
    });
  std::memset(to, 0, format.key_bytes(shape) + format.value_bytes(shape));
  const std::uint32_t mask = (1u << sealed_bits(known)) - 1;
  each_side(format, shape, [&](const CodecSide& s, std::size_t at) {
    const auto side = static_cast<std::uint32_t>(s.side);
    for (std::uint32_t slot = 0; slot < kCudaPage; ++slot) {
      std::uint16_t scale;
      std::memcpy(&scale, from + sealed_scale_at(known, s.rows.dim, side, slot), 2);
      s.set_scale(to + at, slot, scale);
      for (std::uint32_t d = 0; d < s.rows.dim; ++d) {
        const SealedPlace place = sealed_code_at(known, s.rows.dim, side, slot, d);
        s.set_code(to + at, slot, d,
                   std::to_integer<std::uint32_t>(from[place.byte]) >> place.shift & mask);
      }
    }
  });
}

}  // namespace quire
