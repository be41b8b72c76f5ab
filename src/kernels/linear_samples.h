// kernels/linear_samples.h - made-up weights and activations for the tests, the fuzzer and the
// benchmark.
//
//   SampleMatrix w(DType::q4_1, 100, 64, random);
//   SampleRows x(Activations::int8, 3, 64, linear_kernels(isa), floats);
//   linear_kernels(isa).multiply(w.packed, x.rows, 0, 3, 0, w.packed.padded_outputs(), out, 100, nullptr);
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "kernels/linear.h"
#include "tensor/dtype.h"

namespace quire {

inline constexpr DType kLinearTypes[] = {
    DType::f32,   DType::f16,     DType::bf16,   DType::q4_0,    DType::q4_1,
    DType::q5_0,  DType::q5_1,    DType::q8_0,   DType::q2_k,    DType::q3_k,
    DType::q4_k,  DType::q5_k,    DType::q6_k,   DType::iq4_nl,  DType::iq4_xs,
    DType::mxfp4, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s,   DType::iq3_xxs,
    DType::iq3_s, DType::f8_e4m3, DType::u4,     DType::u4_bf16, DType::nf4};

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeMemory>;

inline AlignedBytes aligned_bytes(std::size_t n) {
  return AlignedBytes(static_cast<std::byte*>(std::aligned_alloc(64, (n + 63) / 64 * 64 + 64)));
}

// Where the f16 numbers of an encoded block are.
inline std::vector<std::size_t> half_fields(DType type) {
  switch (type) {
    case DType::q4_0:
    case DType::q5_0:
    case DType::q8_0:
    case DType::iq4_nl:
    case DType::iq4_xs:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s:
    case DType::iq3_xxs:
    case DType::iq3_s:
    case DType::u4:
      return {0};
    case DType::q4_1:
    case DType::q5_1:
    case DType::q4_k:
    case DType::q5_k:
      return {0, 2};
    case DType::q2_k:
      return {80, 82};
    case DType::q3_k:
      return {108};
    case DType::q6_k:
      return {208};
    default:
      return {};
  }
}

struct SampleMatrix {
  // Codes are any bytes; scales are what `random` gives, about 2^-10 to 2^-6 with a sign.
  SampleMatrix(DType type, std::uint32_t outputs, std::uint32_t inputs, Random& random)
      : source(outputs * row_bytes(type, inputs)),
        memory(aligned_bytes(packed_bytes(type, outputs, inputs))) {
    for (std::byte& b : source) b = static_cast<std::byte>(random.next());
    const DTypeInfo& info = dtype_info(type);
    float shared = 0;
    for (std::size_t at = 0; at < source.size(); at += info.block_bytes) {
      if (type == DType::f32) put(at, static_cast<float>(random.unit() - 0.5));
      if (type == DType::bf16) put(at, f32_to_bf16(static_cast<float>(random.unit() - 0.5)));
      if (type == DType::f16) put(at, f32_to_f16(static_cast<float>(random.unit() - 0.5)));
      for (const std::size_t field : half_fields(type))
        put(at + field, f32_to_f16(static_cast<float>((random.unit() - 0.5) * 0.03)));
      if (type == DType::u4_bf16)
        put(at, f32_to_bf16(static_cast<float>((random.unit() - 0.5) * 0.03)));
      if (type == DType::mxfp4) source[at] = static_cast<std::byte>(117 + random.below(5));
      if (type == DType::nf4) put(at, static_cast<float>(random.unit() - 0.5));
      if (type == DType::f8_e4m3) {  // four blocks share a scale, and NaN is not among the codes
        const std::size_t block = at / info.block_bytes % (inputs / info.block_elements);
        if (block % 4 == 0) shared = static_cast<float>((random.unit() - 0.5) * 0.03);
        put(at, shared);
        for (std::size_t i = 4; i < info.block_bytes; ++i)
          if ((source[at + i] & std::byte{0x7f}) == std::byte{0x7f}) source[at + i] ^= std::byte{1};
      }
    }
    pack(type, outputs, inputs);
  }
  // From bytes of the caller, taken as they are and repeated.
  SampleMatrix(DType type, std::uint32_t outputs, std::uint32_t inputs,
               const std::vector<std::byte>& bytes)
      : source(outputs * row_bytes(type, inputs)),
        memory(aligned_bytes(packed_bytes(type, outputs, inputs))) {
    for (std::size_t i = 0; i < source.size() && !bytes.empty(); ++i)
      source[i] = bytes[i % bytes.size()];
    pack(type, outputs, inputs);
  }

  const std::byte* row(std::uint32_t o) const {
    return source.data() + o * row_bytes(packed.type, packed.inputs);
  }

  std::vector<std::byte> source;
  AlignedBytes memory;
  PackedMatrix packed;

 private:
  template <class T>
  void put(std::size_t at, T v) {
    std::memcpy(&source[at], &v, sizeof v);
  }
  void pack(DType type, std::uint32_t outputs, std::uint32_t inputs) {
    const std::size_t stride = row_bytes(type, inputs);
    packed = pack_matrix(type, outputs, inputs,
                         [&](std::uint32_t o) { return source.data() + o * stride; },
                         {memory.get(), packed_bytes(type, outputs, inputs)});
  }
};

// Rows of x, [rows][inputs], as plain floats and (where inputs allow it) as codes.
struct SampleRows {
  SampleRows(Activations mode, std::uint32_t count, std::uint32_t inputs,
             const LinearKernels& kernels, std::vector<float> x)
      : plain(std::move(x)) {
    rows = {.mode = mode, .rows = count, .inputs = inputs, .data = nullptr, .plain = plain.data()};
    if (inputs % kActivationBlock != 0) return;
    memory = aligned_bytes(activation_bytes(mode, count, inputs));
    std::memset(memory.get(), 0, activation_bytes(mode, count, inputs));
    rows.data = memory.get();
    for (std::uint32_t r = 0; r < count; ++r)
      kernels.quantize(&plain[std::size_t{r} * inputs], r, 0, inputs, rows);
  }

  std::vector<float> plain;
  AlignedBytes memory;
  ActivationRows rows;
};

inline std::vector<float> sample_floats(std::size_t n, Random& random) {
  std::vector<float> x(n);
  for (float& v : x)
    v = static_cast<float>((random.unit() + random.unit() + random.unit() - 1.5) * 4);
  return x;
}

}  // namespace quire
