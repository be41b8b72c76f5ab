// kernels/cuda/random.cuh - numbers that look random, the same on any machine.
#pragma once

#include <cstdint>

namespace quire::cuda {

__device__ __forceinline__ std::uint64_t mix(std::uint64_t x) {  // as base/random.h's mix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace quire::cuda
