// Few rows times a big matrix: the matrix is read once, as fast as memory gives it.
//
// A block owns 32 outputs for all rows (up to 32) and the whole of K: no sum is ever split, so any
// number of rows gives the bits of the one chain. One warp asks the copy engine for boxes of
// weights and chunks of activations in a ring; two warps multiply (four, with more than 16 rows, to
// keep all of the tensor cores busy) and load the next chunk's fragments while the chain of the last
// one runs. Weights do not depend on the previous kernel, so the first ones are requested while that
// kernel is still running.
#include <cuda.h>

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/packed.h"

namespace quire::cuda {
namespace {

constexpr int kOutputs = 32;
// Of K: a column of 128 bytes, four of which come in one copy, and what registers hold at a time.
constexpr int kColumn = 64, kChunk = 4 * kColumn, kHalf = kChunk / 2;
constexpr int kColumnBytes = kOutputs * kColumn * 2;

template <int kTiles>
struct Stage {
  static constexpr int kWeights = kChunk / kColumn * kColumnBytes;
  static constexpr int kActivations = kChunk / 32 * kTiles * 512;
  static constexpr int kBytes = kWeights + kActivations;
  // Warps share the outputs, and the rows, if there are many.
  static constexpr int kMine = kTiles <= 2 ? kTiles : 2;
  static constexpr int kWarps = kOutputs / 16 * (kTiles / kMine);
};

// Half a chunk's operands in registers: of 16 outputs and some of the tiles of rows.
template <int kTiles>
struct Fragments {
  static constexpr int kMine = Stage<kTiles>::kMine;
  std::uint32_t w[kHalf / 16][4];
  uint4 x[kHalf / 32][kMine];

  __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t half, std::uint32_t warp,
                                       std::uint32_t first_tile, std::uint32_t lane) {
    const std::uint32_t row = warp * 16 + (lane & 15), side = lane >> 4;
    const std::uint32_t weights = stage + half * (kHalf / kColumn) * kColumnBytes + row * 128;
    const std::uint32_t inputs = stage + Stage<kTiles>::kWeights +
                                 half * (kHalf / 32 * kTiles * 512) + first_tile * 512 + lane * 16;
#pragma unroll
    for (int k = 0; k < kHalf / 16; ++k)  // the copy engine permutes 16-byte pieces by row
      load_matrices(w[k], weights + k / 4 * kColumnBytes + ((k % 4 * 2 + side) ^ (row & 7)) * 16);
#pragma unroll
    for (int k = 0; k < kHalf / 32; ++k)
#pragma unroll
      for (int n = 0; n < kMine; ++n) x[k][n] = load_shared(inputs + (k * kTiles + n) * 512);
  }
  // Steps of 32; `left` is how much of K there still is.
  __device__ __forceinline__ void multiply(float (&sums)[kMine][4], std::uint32_t left) const {
#pragma unroll
    for (int k = 0; k < kHalf / 32; ++k) {
      if (k * 32 >= left) break;
#pragma unroll
      for (int n = 0; n < kMine; ++n) mma_bf16(sums[n], w[2 * k], x[k][n].x, x[k][n].y);
#pragma unroll
      for (int n = 0; n < kMine; ++n) mma_bf16(sums[n], w[2 * k + 1], x[k][n].z, x[k][n].w);
    }
  }
};

// A box as Hopper's copy engine would bring it, but for what the matrix does not have: whoever reads
// that does not use it.
__device__ __forceinline__ void copy_weights(const LinearArgs& a, std::uint32_t output,
                                             std::uint32_t input, std::uint32_t to,
                                             std::uint32_t lane) {
  for (std::uint32_t i = lane; i < kChunk / 8 * kOutputs; i += 32) {
    const std::uint32_t column = i / (8 * kOutputs), row = i / 8 % kOutputs, piece = i % 8;
    const std::uint32_t k = input + column * kColumn + piece * 8;
    if (output + row < a.outputs && k < a.inputs)
      copy_16(to + column * kColumnBytes + row * 128 + ((piece ^ (row & 7)) << 4),
              static_cast<const bf16*>(a.weights) + std::size_t{output + row} * a.inputs + k);
  }
}

template <int kTiles, int kStages, LinearOutput kKind>
__global__ void __launch_bounds__(Stage<kTiles>::kWarps * 32 + 32)
    multiply(const LinearArgs a, const __grid_constant__ CUtensorMap map) {
  using S = Stage<kTiles>;
  constexpr int kWarps = S::kWarps, kMine = S::kMine;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[2 * kStages];  // full, then empty
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
  const std::uint32_t bars = shared_address(barriers);
  const std::uint32_t first = blockIdx.x * kOutputs;
  const std::uint32_t chunks = (a.inputs + kChunk - 1) / kChunk;
  allow_next();
  if (threadIdx.x == 0) init_ring(bars, kStages, kWarps);
  __syncthreads();

  if (warp == kWarps) {
    if (!copies(lane)) return;
    const auto input_bytes = [&](std::uint32_t c) {
      return min(a.inputs - c * kChunk, std::uint32_t{kChunk}) / 32 * kTiles * 512;
    };
    const auto ask_weights = [&](std::uint32_t c) {
      const std::uint32_t stage = c % kStages, full = bars + 8 * stage,
                          to = ring + stage * S::kBytes;
      begin_copies(full, S::kWeights + input_bytes(c));
      if constexpr (kHopper)
        copy_box(to, &map, first, c * (kChunk / kColumn), full);
      else
        copy_weights(a, first, c * kChunk, to, lane);
    };
    const auto ask_inputs = [&](std::uint32_t c) {
      const std::uint32_t stage = c % kStages;
      warp_copy(ring + stage * S::kBytes + S::kWeights,
                static_cast<const std::byte*>(a.activations) + std::size_t{c} * S::kActivations,
                input_bytes(c), bars + 8 * stage, lane);
      end_copies(bars + 8 * stage);
    };
    const std::uint32_t early = min(chunks, std::uint32_t{kStages});
    for (std::uint32_t c = 0; c < early; ++c) ask_weights(c);
    wait_for_previous();
    for (std::uint32_t c = 0; c < early; ++c) ask_inputs(c);
    for (std::uint32_t c = early; c < chunks; ++c) {
      barrier_wait(bars + 8 * (kStages + c % kStages), (c / kStages - 1) & 1);
      ask_weights(c);
      ask_inputs(c);
    }
    return;
  }

  const std::uint32_t sixteen = warp % (kOutputs / 16), first_tile = warp / (kOutputs / 16) * kMine;
  float sums[kMine][4];
#pragma unroll
  for (int n = 0; n < kMine; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  Fragments<kTiles> even, odd;  // halves of a chunk
  const auto stage_of = [&](std::uint32_t c) { return ring + c % kStages * S::kBytes; };
  barrier_wait(bars, 0);
  even.load(stage_of(0), 0, sixteen, first_tile, lane);
  for (std::uint32_t c = 0; c < chunks; ++c) {
    odd.load(stage_of(c), 1, sixteen, first_tile, lane);  // past the end of K: never used
    const std::uint32_t left = a.inputs - c * kChunk;
    even.multiply(sums, left);
    if (c + 1 < chunks) {
      barrier_wait(bars + 8 * ((c + 1) % kStages), ((c + 1) / kStages) & 1);
      even.load(stage_of(c + 1), 0, sixteen, first_tile, lane);
    }
    odd.multiply(sums, left > kHalf ? left - kHalf : 0);
    __syncwarp();
    if (lane == 0) barrier_arrive(bars + 8 * (kStages + c % kStages));
  }
  wait_for_previous();  // long over: but this kernel's end must mean that its predecessor's is, too

  store_outputs<kKind>(a, sums, first + sixteen * 16, first_tile, lane);
}

// How the copy engine sees a weight matrix; made once for each.
int tensor_map(const LinearArgs& a, CUtensorMap& out) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, std::uint32_t, std::uint32_t>, CUtensorMap> all;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(a.weights, a.outputs, a.inputs);
  if (const auto found = all.find(key); found != all.end()) {
    out = found->second;
    return 0;
  }
  void* at = nullptr;
  cudaDriverEntryPointQueryResult query;
  if (const int e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000,
                                                     cudaEnableDefault, &query))
    return e;
  // Columns of 128 bytes are a dimension of their own, so that one copy brings several.
  const cuuint64_t sizes[3] = {kColumn, a.outputs, a.inputs / kColumn};
  const cuuint64_t strides[2] = {std::uint64_t{a.inputs} * 2, kColumn * 2};
  const cuuint32_t box[3] = {kColumn, kOutputs, kChunk / kColumn}, steps[3] = {1, 1, 1};
  if (reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(at)(
          &out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(a.weights), sizes, strides,
          box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    return cudaErrorInvalidValue;
  all.emplace(key, out);
  return 0;
}

template <int kTiles, int kStages, LinearOutput kKind>
int run_with(const LinearArgs& a, CudaStream stream) {
  constexpr int kBytes = kStages * Stage<kTiles>::kBytes + 1024;
  static const int allowed = allow_shared(multiply<kTiles, kStages, kKind>, kBytes);
  if (allowed != 0) return allowed;
  CUtensorMap map{};
  if (hopper())
    if (const int e = tensor_map(a, map)) return e;
  return launch(multiply<kTiles, kStages, kKind>, (a.outputs + kOutputs - 1) / kOutputs,
                Stage<kTiles>::kWarps * 32 + 32, kBytes, stream, a, map);
}

// Two blocks share a multiprocessor, and the next kernel's first ones start beside the last of this;
// many rows of a matrix with few outputs are better off with one that has more bytes on their way.
template <int kTiles, LinearOutput kKind>
int run(const LinearArgs& a, CudaStream stream) {
  if constexpr (kTiles > 2)
    if (a.outputs > static_cast<std::uint32_t>(multiprocessors()) * kOutputs ||
        shared_bytes_max() < 4 * Stage<kTiles>::kBytes + 2048)
      return run_with<kTiles, 3, kKind>(a, stream);
  return run_with<kTiles, 4, kKind>(a, stream);
}

template <int kTiles>
int by_kind(const LinearArgs& a, CudaStream stream) {
  switch (a.kind) {
    case LinearOutput::rows_bf16:
      return run<kTiles, LinearOutput::rows_bf16>(a, stream);
    case LinearOutput::rows_f32:
      return run<kTiles, LinearOutput::rows_f32>(a, stream);
    case LinearOutput::gated:
      return run<kTiles, LinearOutput::gated>(a, stream);
    case LinearOutput::gated_gelu:
      return run<kTiles, LinearOutput::gated_gelu>(a, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int linear_stream(const LinearArgs& a, CudaStream stream) {
  if (a.rows > kPackedRowsMax || a.inputs % kColumn != 0 || a.outputs % 16 != 0)
    return cudaErrorInvalidValue;
  switch (row_tiles(a.rows)) {
    case 1:
      return by_kind<1>(a, stream);
    case 2:
      return by_kind<2>(a, stream);
    default:
      return by_kind<4>(a, stream);
  }
}

}  // namespace quire::cuda
