// The scalar reference: linear.h's definition, written down. Every other instruction set gives
// these bits.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/e4m3.h"
#include "base/half.h"
#include "kernels/linear.h"
#include "kernels/linear_layout.h"
#include "tensor/dequantize.h"

namespace quire {
namespace {

template <class T>
T load(const std::byte* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

// The largest magnitude by its bits, so that Inf and NaN come out on top.
std::uint32_t max_magnitude_bits(const float* x) {
  std::uint32_t top = 0;
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu;
    if (bits > top) top = bits;
  }
  return top;
}

template <class T>
void store(std::byte* at, T v) {
  std::memcpy(at, &v, sizeof v);
}

// `slot` is the row's place in its cell.
void quantize_block(const float* x, Activations mode, std::uint32_t slot, std::byte* cell) {
  const bool wide = mode == Activations::int16;
  const float top = wide ? kInt16Max : kInt8Max;
  const float amax = std::bit_cast<float>(max_magnitude_bits(x));
  const bool finite = std::isfinite(amax), coded = finite && amax >= kActivationMin;
  const float inverse = top / amax;
  const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : coded ? amax / top : 0;
  std::int32_t sums[2] = {0, 0};
  for (std::size_t i = 0; i < 32; ++i) {
    const auto q = coded ? static_cast<std::int32_t>(std::nearbyint(x[i] * inverse)) : 0;
    const std::int32_t coarse = wide ? (q + 64) >> 7 : q;
    store(cell + kCellCodes + slot * 32 + i, static_cast<std::int8_t>(coarse));
    if (wide) store(cell + kCellFine + slot * 32 + i, static_cast<std::int8_t>(q - 128 * coarse));
    sums[i / 16] += q;
  }
  const std::int32_t sum = sums[0] + sums[1];
  store(cell + kCellScales + slot * 4, scale);
  store(cell + kCellSums + slot * 4, sum);
  store(cell + kCellScaledSums + slot * 4, scale * static_cast<float>(sum));
  for (std::size_t half = 0; half < 2; ++half) {
    store(cell + kCellHalfSums + half * 32 + slot * 4, sums[half]);
    store(cell + kCellScaledHalfSums + half * 32 + slot * 4,
          scale * static_cast<float>(sums[half]));
  }
}

void quantize(const float* x, std::uint32_t row, std::uint32_t first, std::uint32_t count,
              const ActivationRows& into) {
  DCHECK(first % 32 == 0 && count % 32 == 0 && first + count <= into.inputs && row < into.rows);
  for (std::uint32_t i = 0; i < count; i += 32)
    quantize_block(x + i, into.mode, row % kRowGroup, activation_cell(into, row, (first + i) / 32));
}

// The code of input k, 0..31, of one record.
std::int32_t code_at(const LinearLayout& layout, const std::byte* record, std::uint32_t column,
                     std::uint32_t k) {
  const std::size_t step = k / 4, at = column * 4 + k % 4;
  const auto plane = [&](std::size_t vector) {
    return load<std::uint8_t>(record + vector * 64 + at);
  };
  const int bits = layout.code_bits;
  if (bits == 8) return plane(step);
  int code = 0, have = 0;
  if (bits >= 4) {
    code = plane(step / 2) >> (step % 2 * 4) & 15;
    have = 4;
  }
  if (bits == 6 || bits < 4) {
    code |= (plane(pair_plane(bits) / 64 + step / 4) >> (step % 4 * 2) & 3) << have;
    have += 2;
  }
  if (bits == 5 || bits == 3) code |= (plane(bit_plane(bits) / 64) >> step & 1) << have;
  return layout.table ? layout.table[code] : code;
}

// A scale or minimum: `which` counts the head's numbers, 0 for d and 1 for the minimum's.
float scale_at(const LinearLayout& layout, const std::byte* head, int which,
               const std::byte* scales, std::uint32_t column, std::uint32_t group) {
  const std::size_t at = std::size_t{group} * kPanelOutputs + column;
  if (layout.brain) return bf16_to_f32(load<std::uint16_t>(scales + at * 2));
  if (!layout.heads()) return f16_to_f32(load<std::uint16_t>(scales + at * 2));
  const std::byte* number = head + (which * kPanelOutputs + column) * layout.head_bytes;
  const float d =
      layout.head_bytes == 4 ? load<float>(number) : f16_to_f32(load<std::uint16_t>(number));
  return d * static_cast<float>(load<std::int8_t>(scales + at));
}

float quantized_output(const PackedMatrix& w, const ActivationRows& x, std::uint32_t r,
                       std::uint32_t o) {
  const LinearLayout layout = linear_layout(w.type);
  const RecordParts parts = record_parts(w.type);
  const std::byte* panel = w.data + o / kPanelOutputs * panel_stride(w.type, w.inputs);
  const std::uint32_t column = o % kPanelOutputs, slot = r % kRowGroup;
  float acc = 0, low = 0;
  for (std::uint32_t b = 0; b < w.inputs / 32; ++b) {
    const std::byte *head = panel + head_at(parts, b), *record = panel + record_at(parts, b);
    const std::byte* cell = activation_cell(x, r, b);
    const float s = load<float>(cell + kCellScales + slot * 4);
    const int offset =
        layout.zeros ? load<std::uint8_t>(record + parts.zeros + column) : layout.offset;
    for (std::uint32_t g = 0; g < 32u / layout.group; ++g) {
      std::int32_t dot = 0, sum = 0;
      for (std::uint32_t k = g * layout.group; k < (g + 1) * layout.group; ++k) {
        std::int32_t a = load<std::int8_t>(cell + kCellCodes + slot * 32 + k);
        if (x.mode == Activations::int16)
          a = 128 * a + load<std::int8_t>(cell + kCellFine + slot * 32 + k);
        dot += (code_at(layout, record, column, k) - offset) * a;
        sum += a;
      }
      const float d = scale_at(layout, head, 0, record + parts.scales, column, g);
      acc = std::fma(static_cast<float>(dot), d * s, acc);
      if (!layout.minimum) continue;
      const float m = scale_at(layout, head, 1, record + parts.minima, column, g);
      low = std::fma(m, s * static_cast<float>(sum), low);
    }
  }
  return layout.minimum ? acc + low : acc;
}

// The weight of input k of a plain type.
float plain_weight(DType type, const std::byte* panel, std::uint32_t column, std::size_t k) {
  const std::size_t at = k * kPanelOutputs + column;
  if (type == DType::f32) return load<float>(panel + at * 4);
  if (type == DType::f16) return f16_to_f32(load<std::uint16_t>(panel + at * 2));
  if (type == DType::bf16) return bf16_to_f32(load<std::uint16_t>(panel + at * 2));
  const std::size_t run = coded_run(type), in_run = k % run;
  const std::byte* record = panel + k / run * run_bytes(type, run);
  const float scale = load<float>(record + column * sizeof(float));
  const auto code = [&](std::size_t i) {
    return load<std::uint8_t>(record + kRunScales + i * kPanelOutputs + column);
  };
  if (type == DType::f8_e4m3) return e4m3_to_f32(code(in_run)) * scale;
  return kLevelsNf4[code(in_run / 2) >> in_run % 2 * 4 & 15] * scale;
}

float plain_output(const PackedMatrix& w, const float* x, std::uint32_t o) {
  const std::byte* panel = w.data + o / kPanelOutputs * panel_stride(w.type, w.inputs);
  float acc = 0;
  for (std::size_t k = 0; k < w.inputs; ++k)
    acc = std::fma(plain_weight(w.type, panel, o % kPanelOutputs, k), x[k], acc);
  return acc;
}

void multiply(const PackedMatrix& w, const ActivationRows& x, std::uint32_t row_begin,
              std::uint32_t row_end, std::uint32_t column_begin, std::uint32_t column_end,
              float* out, std::size_t out_stride, Fetch*) {
  const bool quantized = uses_quantized_activations(w.type);
  for (std::uint32_t r = row_begin; r < row_end; ++r)
    for (std::uint32_t o = column_begin; o < column_end && o < w.outputs; ++o)
      out[r * out_stride + o] = quantized ? quantized_output(w, x, r, o)
                                          : plain_output(w, x.plain + std::size_t{r} * x.inputs, o);
}

}  // namespace

const LinearKernels kLinearScalar = {quantize, multiply};

}  // namespace quire
