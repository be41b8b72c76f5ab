// Whole matrices of codes: decodes them to bf16 for products of many rows, or fills them with random
// codes.
#include <cmath>
#include <cstring>

#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/random.cuh"

namespace quire::cuda {
namespace {

// Eight weights of outputs g and g + 8 for each thread: all are in the same bytes, if of 4 bits.
template <int kBits, CodeForm kForm>
__global__ void unpack_kernel(const LinearArgs a) {
  allow_next();
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, eights = a.inputs / 8;
  const std::uint32_t k = i % eights * 8, row = i / eights, first = row / 8 * 16 + row % 8;
  wait_for_previous();  // whose weights may lie there
  if (first >= a.outputs) return;
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    const std::uint32_t output = first + 8 * second;
    const float2 pair = coded_pair<kBits, kForm>(a.codes.data, a.inputs, output, k);
    std::uint32_t twos[4];
#pragma unroll
    for (int t = 0; t < 4; ++t)
      twos[t] = coded_two<kBits, kForm>(a.codes.data, a.inputs, output, k + 2 * t, pair);
    static_cast<uint4*>(const_cast<void*>(a.weights))[std::size_t{output} * eights + k / 8] =
        make_uint4(twos[0], twos[1], twos[2], twos[3]);
  }
}

__global__ void random_kernel(const RandomCodesArgs a, std::uint32_t first, std::uint32_t second) {
  const std::uint32_t words = coded_unit_bytes(a.codes.bits, a.codes.form) / 4,
                      codes = coded_unit_codes(a.codes.bits) / 4;
  const std::size_t count = coded_bytes(a.codes, a.outputs, a.inputs) / 4;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const std::uint32_t of_unit = i % words;
    static_cast<std::uint32_t*>(a.to)[i] = of_unit < codes
                                               ? static_cast<std::uint32_t>(mix(a.seed ^ mix(i)))
                                               : (of_unit % 2 == 0 ? first : second);
  }
}

}  // namespace

int unpack_codes(const LinearArgs& a, CudaStream stream) {
  const std::size_t threads = std::size_t{a.outputs} * a.inputs / 16;
  return by_coding(a.codes, [&](auto bits, auto form) {
    return launch(unpack_kernel<bits, form>, static_cast<std::uint32_t>((threads + 255) / 256), 256,
                  0, stream, a);
  });
}

int random_codes(const RandomCodesArgs& a, CudaStream stream) {
  const float levels = static_cast<float>(1u << a.codes.bits),
              scale = a.spread * std::sqrt(12.0f) / levels, offset = -scale * (levels - 1) / 2;
  std::uint32_t words[2];
  const auto put = [&](auto x, auto y) {
    static_assert(sizeof x == sizeof y);
    std::memcpy(words, &x, sizeof x);
    std::memcpy(reinterpret_cast<std::byte*>(words) + sizeof x, &y, sizeof y);
    if (sizeof x == 2) words[1] = words[0];
  };
  const float eleven_bits = __half2float(__float2half(scale));
  const bf16 greater = __float2bfloat16(eleven_bits);
  if (a.codes.form == CodeForm::wide)
    put(scale, offset);
  else if (a.codes.form == CodeForm::symmetric)
    put(greater, __float2bfloat16(eleven_bits - __bfloat162float(greater)));
  else
    put(__float2half(scale * coded_scale_factor(a.codes.bits, a.codes.form)), __float2half(offset));
  random_kernel<<<multiprocessors() * 8, 256, 0, native(stream)>>>(a, words[0], words[1]);
  return cudaGetLastError();
}

}  // namespace quire::cuda
