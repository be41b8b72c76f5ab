// Few rows times a big matrix of 4 or 8 bits (coded.h): codes are read once, as fast as memory gives
// them, and become bf16 in the registers of the warp that multiplies.
//
// The chain over K and its operands are those of linear_stream.cu, and so are the bits. A chain has 16
// outputs. Decoding to bf16 takes a warp longer than multiplying. So if there are fewer chains than
// warps, several warps take turns at one chain, each with a stage of K, and hand on the sums: while one
// multiplies, the others decode. One more warp asks the copy engine for codes and activations in a ring;
// it asks for codes before the previous kernel has ended.
#include <algorithm>

#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/packed.h"

namespace quire::cuda {
namespace {

constexpr std::uint32_t kWarpsMax = 11, kTurnsMax = 4, kStagesMax = 12;
constexpr std::uint32_t kRing = 96 << 10;  // bytes: the next kernel starts beside this one
constexpr int kGroups = kCodedInputs / kCodedGroup, kSteps = kCodedInputs / 16;  // of a unit

template <int kBits, CodeForm kForm, int kTiles>
struct Stage {
  static constexpr int kUnits = kTiles == 1 ? 2 : 1;  // of K: what registers hold
  static constexpr std::uint32_t kInputs = kUnits * kCodedInputs;
  static constexpr std::uint32_t kUnit = coded_unit_bytes(kBits, kForm);
  static constexpr std::uint32_t kCodes = kUnits * kUnit;  // of a chain
  static constexpr std::uint32_t kActivations = kInputs / 32 * kTiles * 512;
};

template <int kCount>
__device__ __forceinline__ void take(std::uint32_t (&to)[kCount], std::uint32_t at,
                                     std::uint32_t apart) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const uint4 v = load_shared(at + i * apart);
    to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
  }
}

// What 32 weights of an output have in common, in registers.
template <int kBits, CodeForm kForm>
struct Meaning {
  static constexpr int kWords = coded_pair_bytes(kForm) / 4;
  float scale, offset;

  __device__ __forceinline__ explicit Meaning(const std::uint32_t* words) {
    if constexpr (kForm == CodeForm::wide) {
      scale = __uint_as_float(words[0]), offset = __uint_as_float(words[1]);
    } else {
      const float2 pair = unpack_f16(words[0]);
      scale = kBits == 4 ? pair.x * 0x1p127f : pair.x;  // and 8 from coded_scale_factor
      offset = pair.y;
    }
  }
  // Four weights, of the codes of output g or g + 8 that are in these words: two operands.
  __device__ __forceinline__ void decode(const std::uint32_t* words, int second, std::uint32_t& low,
                                         std::uint32_t& high) const {
    std::uint32_t bytes;
    if constexpr (kBits == 8)
      bytes = words[second];
    else if constexpr (kForm == CodeForm::wide)
      bytes = words[0] >> 4 * second & 0x0f0f0f0fu;
    else
      bytes = (second ? words[0] >> 1 : words[0] << 3) & 0x78787878u;
    low = pack_bf16(number(bytes, 0), number(bytes, 2));
    high = pack_bf16(number(bytes, 1), number(bytes, 3));
  }

 private:
  __device__ __forceinline__ float number(std::uint32_t bytes, int i) const {
    float code;
    if constexpr (kBits == 8)
      code = __uint_as_float(__byte_perm(bytes, 0x47000000u, 0x7404 | i << 4)) - 32768.0f;
    else if constexpr (kForm == CodeForm::wide)
      code = __uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044 | i << 8)) - 128.0f;
    else  // bits 3 to 6: code * 2^-130, and the scale is times 2^130
      code = __uint_as_float(__byte_perm(bytes, 0, 0x4044 | i << 8));
    return __fmaf_rn(scale, code, offset);
  }
};

// Two at a time: the parts of the scale have 8 and 3 bits, so the product with the lesser one is a
// bf16, and the sum of both is rounded once.
template <>
struct Meaning<4, CodeForm::symmetric> {
  static constexpr int kWords = 1;
  std::uint32_t greater, lesser;  // twice each

  __device__ __forceinline__ explicit Meaning(const std::uint32_t* words) {
    greater = __byte_perm(words[0], 0, 0x1010);
    lesser = __byte_perm(words[0], 0, 0x3232);
  }
  __device__ __forceinline__ void decode(const std::uint32_t* words, int second, std::uint32_t& low,
                                         std::uint32_t& high) const {
    low = number(words[0] >> 4 * second);
    high = number(words[0] >> (8 + 4 * second));
  }

 private:
  __device__ __forceinline__ std::uint32_t number(std::uint32_t codes) const {
    std::uint32_t code, n, product, sum;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // codes & 15 | 128.0, in each half
        : "=r"(code)
        : "r"(codes), "r"(0x000f000fu), "r"(0x43004300u));
    // Sums and products by themselves, of bf16, came with Hopper: 1 * code - 136, n * lesser - 0.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(n) : "r"(code), "r"(0x3f803f80u), "r"(0xc308c308u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(n), "r"(lesser), "r"(0x80008000u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(n), "r"(greater), "r"(product));
    return sum;
  }
};

// A unit as operands: a lane has outputs g and g + 8.
template <int kBits, CodeForm kForm>
__device__ __forceinline__ void decode(std::uint32_t unit, std::uint32_t lane,
                                       std::uint32_t (*to)[4]) {
  using M = Meaning<kBits, kForm>;
  std::uint32_t words[kSteps * kBits / 4], pairs[2][kGroups * M::kWords];
  take(words, unit + lane * 16, 512);
#pragma unroll
  for (int second = 0; second < 2; ++second)
    take(pairs[second],
         unit + coded_unit_codes(kBits) + (second * 8 + lane / 4) * kGroups * M::kWords * 4, 16);
#pragma unroll
  for (int j = 0; j < kGroups; ++j)
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const M meaning(pairs[second] + j * M::kWords);
#pragma unroll
      for (int step = 2 * j; step < 2 * j + 2; ++step)
        meaning.decode(words + step * kBits / 4, second, to[step][second], to[step][2 + second]);
    }
}

// kTiles: of 8 rows. Chain `warp % chains` of the block, turn `warp / chains`.
template <int kBits, CodeForm kForm, int kTiles>
__global__ void __launch_bounds__(kWarpsMax * 32 + 32, 1)
    multiply(const LinearArgs a, const std::uint32_t chains, const std::uint32_t stages) {
  using S = Stage<kBits, kForm, kTiles>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  // Of stages: full, then empty; of warps: whose turn it is.
  __shared__ __align__(8) std::uint64_t barriers[2 * kStagesMax + kWarpsMax];
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t warps = blockDim.x / 32 - 1, first = blockIdx.x * chains * kCodedOutputs;
  const std::uint32_t active = min(chains, (a.outputs - first) / kCodedOutputs);
  const std::uint32_t units = coded_units(a.inputs), chunks = (units + S::kUnits - 1) / S::kUnits;
  const std::uint32_t inputs_at = chains * S::kCodes, stage_bytes = inputs_at + S::kActivations;
  const std::uint32_t ring = shared_address(shared), bars = shared_address(barriers);
  allow_next();
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < warps; ++i) barrier_init(bars + 8 * (2 * stages + i), 1);
    init_ring(bars, stages, active);
  }
  __syncthreads();

  if (warp == warps) {
    const auto input_bytes = [&](std::uint32_t c) {
      return min(a.inputs - c * S::kInputs, S::kInputs) / 32 * kTiles * 512;
    };
    const auto ask_codes = [&](std::uint32_t c, std::uint32_t stage) {
      const std::uint32_t bytes = min(units - c * S::kUnits, std::uint32_t{S::kUnits}) * S::kUnit;
      if (lane == 0) begin_copies(bars + 8 * stage, active * bytes + input_bytes(c));
      __syncwarp();
      lane_copies(
          lane < active, ring + stage * stage_bytes + lane * S::kCodes,
          static_cast<const std::byte*>(a.codes.data) +
              (std::size_t{first / kCodedOutputs + lane} * units + c * S::kUnits) * S::kUnit,
          bytes, bars + 8 * stage, lane);
    };
    const auto ask_inputs = [&](std::uint32_t c, std::uint32_t stage) {
      if (copies(lane))
        warp_copy(ring + stage * stage_bytes + inputs_at,
                  static_cast<const std::byte*>(a.activations) + std::size_t{c} * S::kActivations,
                  input_bytes(c), bars + 8 * stage, lane);
      end_copies(bars + 8 * stage);
    };
    const std::uint32_t early = min(chunks, stages);
    for (std::uint32_t c = 0; c < early; ++c) ask_codes(c, c);
    wait_for_previous();
    for (std::uint32_t c = 0; c < early; ++c) ask_inputs(c, c);
    for (std::uint32_t c = early, stage = 0, parity = 0; c < chunks; ++c) {
      barrier_wait(bars + 8 * (stages + stage), parity);
      ask_codes(c, stage);
      ask_inputs(c, stage);
      if (++stage == stages) stage = 0, parity ^= 1;
    }
    return;
  }

  const std::uint32_t chain = warp % chains, mine = warp / chains, turns = warps / chains;
  if (chain >= active) return;
  const std::uint32_t next = mine + 1 == turns ? chain : warp + chains;
  std::uint32_t handed = ring + stages * stage_bytes + chain * (kTiles * 512) + lane * 16;
  constexpr int kGroupsOf = S::kUnits * kGroups, kEarly = kTiles == 1 ? kGroupsOf : 1;
  std::uint32_t my_turn = bars + 8 * (2 * stages + warp),
                next_turn = bars + 8 * (2 * stages + next);
  // To be kept in registers: the others wait while a turn computes an address.
  asm volatile("" : "+r"(handed), "+r"(my_turn), "+r"(next_turn));
  float sums[kTiles][4] = {};
  std::uint32_t stage = mine % stages, parity = mine / stages & 1, turn_parity = 0;
  for (std::uint32_t c = mine; c < chunks; c += turns) {
    const std::uint32_t at = ring + stage * stage_bytes, inputs = at + inputs_at + lane * 16;
    std::uint32_t w[S::kUnits * kSteps][4];
    barrier_wait(bars + 8 * stage, parity);
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u)
      decode<kBits, kForm>(at + chain * S::kCodes + u * S::kUnit, lane, w + u * kSteps);
    uint4 x[kGroupsOf][kTiles];
    const auto load_inputs = [&](int j) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) x[j][n] = load_shared(inputs + (j * kTiles + n) * 512);
    };
#pragma unroll
    for (int j = 0; j < kEarly; ++j) load_inputs(j);
    if (turns > 1 && c > 0) {
      barrier_wait(my_turn, turn_parity);
      turn_parity ^= 1;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 v = load_shared(handed + n * 512);
        sums[n][0] = __uint_as_float(v.x), sums[n][1] = __uint_as_float(v.y);
        sums[n][2] = __uint_as_float(v.z), sums[n][3] = __uint_as_float(v.w);
      }
    }
    const auto multiply_group = [&](int j) {
      if (j + 1 >= kEarly && j + 1 < kGroupsOf) load_inputs(j + 1);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma_bf16(sums[n], w[2 * j], x[j][n].x, x[j][n].y);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma_bf16(sums[n], w[2 * j + 1], x[j][n].z, x[j][n].w);
    };
    const std::uint32_t left = a.inputs - c * S::kInputs;
    if (left >= S::kInputs) {
#pragma unroll
      for (int j = 0; j < kGroupsOf; ++j) multiply_group(j);
    } else {
#pragma unroll
      for (int j = 0; j < kGroupsOf; ++j)
        if (j * kCodedGroup < left) multiply_group(j);
    }
    const bool last = c + 1 == chunks;
    if (turns > 1 && !last)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        store_shared(handed + n * 512, {__float_as_uint(sums[n][0]), __float_as_uint(sums[n][1]),
                                        __float_as_uint(sums[n][2]), __float_as_uint(sums[n][3])});
    __syncwarp();
    if (lane == 0) {
      if (turns > 1 && !last) barrier_arrive(next_turn);
      barrier_arrive(bars + 8 * (stages + stage));
    }
    for (stage += turns; stage >= stages; stage -= stages) parity ^= 1;
  }
  wait_for_previous();  // long over: but this kernel's end must mean that its predecessor's is, too
  if (mine != (chunks - 1) % turns) return;
  const std::uint32_t output = first + chain * kCodedOutputs;
  switch (a.kind) {
    case LinearOutput::rows_bf16:
      return store_outputs<LinearOutput::rows_bf16>(a, sums, output, 0, lane);
    case LinearOutput::rows_f32:
      return store_outputs<LinearOutput::rows_f32>(a, sums, output, 0, lane);
    case LinearOutput::gated:
      return store_outputs<LinearOutput::gated>(a, sums, output, 0, lane);
    case LinearOutput::gated_gelu:
      return store_outputs<LinearOutput::gated_gelu>(a, sums, output, 0, lane);
  }
}

constexpr std::uint32_t over(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

template <int kBits, CodeForm kForm, int kTiles>
int run(const LinearArgs& a, CudaStream stream) {
  using S = Stage<kBits, kForm, kTiles>;
  constexpr auto kernel = multiply<kBits, kForm, kTiles>;
  constexpr std::uint32_t kHanded = kWarpsMax * kTiles * 512,
                          kMost = std::max(kRing, 2 * (kWarpsMax * S::kCodes + S::kActivations));
  static const std::uint32_t room =
      std::min(kMost, static_cast<std::uint32_t>(shared_bytes_max()) - kHanded - 1024);
  static const std::uint32_t chains_max =
      std::min(kWarpsMax, (room / 2 - S::kActivations) / S::kCodes);
  const std::uint32_t all = a.outputs / kCodedOutputs,
                      of_each = over(all, static_cast<std::uint32_t>(multiprocessors()));
  const std::uint32_t chains = over(of_each, over(of_each, chains_max)),
                      turns = std::min(kWarpsMax / chains, kTurnsMax);
  const std::uint32_t stage = chains * S::kCodes + S::kActivations;
  const std::uint32_t stages = std::clamp(std::min(room, kRing) / stage, 2u, kStagesMax);
  static const int allowed = allow_shared(kernel, room + kHanded);
  if (allowed != 0) return allowed;
  return launch(kernel, over(all, chains), (chains * turns + 1) * 32,
                stages * stage + chains * kTiles * 512, stream, a, chains, stages);
}

}  // namespace

int linear_coded(const LinearArgs& a, CudaStream stream) {
  if (a.rows > kPackedRowsMax || a.inputs % kCodedGroup != 0 || a.outputs % kCodedOutputs != 0)
    return cudaErrorInvalidValue;
  return by_coding(a.codes, [&](auto bits, auto form) {
    switch (row_tiles(a.rows)) {
      case 1:
        return run<bits, form, 1>(a, stream);
      case 2:
        return run<bits, form, 2>(a, stream);
      default:
        return run<bits, form, 4>(a, stream);
    }
  });
}

}  // namespace quire::cuda
