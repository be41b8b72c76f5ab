// Attention where the blocks before a row's own are sealed: a warp for one row, or for several rows of a
// block with up to eight query heads together.
//
// Codes lie in the order of the tensor cores' fragments, so that a lane reads its operands with wide
// loads and unpacks two values at a time to f16. Scales are not applied to elements: a key's scale
// multiplies its score, a value's scale multiplies its weight.
//   keys    [slot][D]: lane t of a group of four has 16 bytes of it at a time (one row of int4
//           codes of D = 128, a quarter of 64 codes of 8 bits; 8 bytes of int2). k is permuted alike
//           in query and keys.
//   values  lane g * 4 + t has dimensions g and g + 8 of each sixteen, slots {2t, 2t+1, 2t+8, 2t+9}
//           of both halves: 16 bytes at a time.
// An integer code is masked in its word and not shifted: as the mantissa of a subnormal f16 it stands
// for code * 2^-24, or, some bits higher, for that times a power of two, which the other operand is
// divided by. So two int4 or int2 values take one instruction. The centre of the codes is subtracted
// once, from sums: of a query for the scores, of a split's weights for the outputs.
// Rows that are not sealed come last, block by block of bf16, with the arithmetic of attend_page.cuh.
#include <cuda_fp16.h>

#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/sealed.h"

namespace quire::cuda {
namespace {

// Two codes of a word as f16: bytes 2 * pair and 2 * pair + 1.
template <CudaKvFormat kFormat>
__device__ __forceinline__ std::uint32_t unpack_bytes(std::uint32_t word, int pair) {
  std::uint32_t r;
  if constexpr (kFormat == CudaKvFormat::fp8) {
    if constexpr (kHopper) {
      const std::uint16_t two = static_cast<std::uint16_t>(word >> (16 * pair));
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
    } else {  // f16 has an exponent of one bit more, which begins 8 lower: exact, for subnormals too
      const std::uint32_t two = __byte_perm(word, 0, pair == 0 ? 0x4140 : 0x4342);
      r = (two & 0x00800080u) << 8 | (two & 0x007f007fu) << 7;
      asm("mul.f16x2 %0, %0, %1;" : "+r"(r) : "r"(0x5c005c00u));
    }
  } else {
    r = __byte_perm(word, 0, pair == 0 ? 0x4140 : 0x4342);
  }
  return r;
}
// Codes smaller than a byte, where they lie in their half word: pair p of a word, which stays at its
// place among the lowest eight bits.
template <int kBits>
__device__ __forceinline__ std::uint32_t unpack(std::uint32_t word, int pair) {
  constexpr int kInByte = 8 / kBits;
  constexpr std::uint32_t kOnes = (1u << kBits) - 1, kMask = kOnes << 16 | kOnes;
  return (pair < kInByte ? word : word >> 8) & (kMask << (pair % kInByte * kBits));
}

// What the codes' centre, or twice it, looks like as an operand, and how often it was counted.
template <CudaKvFormat kFormat>
struct Codes {
  static constexpr int kBits = sealed_bits(kFormat);
  static constexpr bool kSmall = kBits < 8, kCentred = kFormat == CudaKvFormat::fp8;
  static constexpr float kCounted = kSmall ? 0.5f : 1.0f;
  static constexpr float kUnit = kCentred ? 1.0f : 0x1p24f;
  // Place within eight bits of the pair that operand i of step k is.
  __device__ static constexpr int place(int k, int i) {
    return kBits == 4 ? i : kBits == 2 ? k % 2 * 2 + i : 0;
  }
  __device__ static constexpr std::uint32_t centre(int k, int i) {
    constexpr std::uint32_t kAll = kSmall ? (1u << kBits) - 1 : 0x80;
    return (kAll << 16 | kAll) << (place(k, i) * kBits);
  }
  __device__ static constexpr float partner(int k, int i) {  // of the other operand
    return 1.0f / static_cast<float>(1 << (place(k, i) * kBits));
  }
};

// A split in the making, heads across: lane g * 4 + t has slots, or dimensions, g and g + 8 of each
// sixteen, for heads 2t and 2t + 1. Codes are the larger operand of every product, so that none of
// its sixteen rows is wasted on heads that are not there.
template <int D, CudaKvFormat kFormat>
struct Sealed {
  using C = Codes<kFormat>;
  static constexpr std::uint32_t kCodes = sealed_code_bytes(kFormat, D);
  std::uint32_t lane;
  std::uint32_t q[D / 16][2];  // f16, of head g
  float start[2];              // of a score: less the centre
  float out[D / 16][4];
  float max[2], sum[2];  // sum: of this lane's slots
  float weight[4];       // of the split so far, times the centre; the first two

  // Dimension of the first of four that lane t multiplies in step k; two of them are a pair.
  __device__ static constexpr int dimension(int k, int t) {
    return C::kSmall ? t * (D / 4) + k * 4 : k / 4 * 64 + t * 16 + k % 4 * 4;
  }

  __device__ __forceinline__ void load_query(const bf16* query, bool real) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t two =
            real ? *reinterpret_cast<const std::uint32_t*>(query + dimension(k, lane % 4) + 2 * i)
                 : 0;
        const float by = C::partner(k, i);
        q[k][i] = pack_f16(low_bf16(two) * by, high_bf16(two) * by);
      }
    float c[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; !C::kCentred && k < D / 16; ++k) {
      const std::uint32_t a[4] = {C::centre(k, 0), C::centre(k, 0), C::centre(k, 1),
                                  C::centre(k, 1)};
      mma_f16(c, a, q[k][0], q[k][1]);
    }
    start[0] = -c[0] * C::kCounted, start[1] = -c[1] * C::kCounted;
  }
  __device__ __forceinline__ void begin_split() {
#pragma unroll
    for (int n = 0; n < D / 16; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) max[j] = kLowest, sum[j] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) weight[j] = 0;
  }
  // Heads down again, as rows have them: lane g * 4 + t has dimensions 8n + 2t and 8n + 2t + 1 of
  // head g.
  __device__ __forceinline__ void end_split(Softmax<D, 8>& state) {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int apart = 4; apart < 32; apart *= 2) sum[j] += __shfl_xor_sync(~0u, sum[j], apart);
    const std::uint32_t g = lane / 4, t = lane % 4;
    const auto mine = [&](const float& even, const float& odd, std::uint32_t from) {
      const float a = __shfl_sync(~0u, even, from), b = __shfl_sync(~0u, odd, from);
      return g % 2 == 0 ? a : b;
    };
    state.max[0] = mine(max[0], max[1], g / 2);
    state.sum[0] = mine(sum[0], sum[1], g / 2);
    if (t != 0) state.sum[0] = 0;  // lanes of a row add theirs
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
#pragma unroll
      for (int j = 0; !C::kCentred && j < 4; ++j)
        out[n][j] = (out[n][j] - weight[j % 2] * C::kCounted) * C::kUnit;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          state.out[2 * n + half][i] =
              mine(out[n][2 * half], out[n][2 * half + 1], (2 * t + i) * 4 + g / 2);
    }
    begin_split();
  }

  // Scales of slots g, g + 8, g + 16 and g + 24.
  __device__ __forceinline__ void scales(std::uint32_t page, int side, float (&to)[4]) const {
    const uint2 four = load_shared2(page + 2 * kCodes + side * kCudaPage * 2 + lane / 4 * 8);
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&four.x)),
                 b = __half22float2(*reinterpret_cast<const __half2*>(&four.y));
    to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
  }

  // Of slots 16m + g, and 16m + 8 + g.
  __device__ __forceinline__ void scores(std::uint32_t page, float (&s)[2][4]) const {
    const std::uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m) s[m][0] = s[m][2] = start[0], s[m][1] = s[m][3] = start[1];
    // Up to four words of codes of each of four groups of slots at a time.
    constexpr int kWordSteps = 8 / C::kBits, kWords = D / 16 / kWordSteps;
    constexpr int kPart = kWords < 4 ? kWords : 4;
#pragma unroll
    for (int part = 0; part < kWords / kPart; ++part) {
      std::uint32_t words[4][kPart];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t slot = n * 8 + g;
        if constexpr (kPart == 1) {  // int2, heads of 64
          words[n][0] = load_shared1(page + slot * (D / 4) + t * 4);
        } else if constexpr (kPart == 2) {  // int4, heads of 64; int2
          const uint2 v = load_shared2(page + slot * (D * C::kBits / 8) + t * 8);
          words[n][0] = v.x, words[n][1] = v.y;
        } else {
          const uint4 v = load_shared(
              C::kSmall ? page + slot * (D / 2) + t * 16
                        : page + slot * D + ((part ^ (slot & (D / 64 - 1))) * 64) + t * 16);
          words[n][0] = v.x, words[n][1] = v.y, words[n][2] = v.z, words[n][3] = v.w;
        }
      }
#pragma unroll
      for (int k = 0; k < kPart * kWordSteps; ++k) {
        const int step = part * kPart * kWordSteps + k, pair = k % kWordSteps * 2;
        const auto codes = [&](int n, int i) {
          const std::uint32_t word = words[n][k / kWordSteps];
          if constexpr (C::kSmall)
            return unpack<C::kBits>(word, pair + i);
          else
            return unpack_bytes<kFormat>(word, i);
        };
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const std::uint32_t a[4] = {codes(2 * m, 0), codes(2 * m + 1, 0), codes(2 * m, 1),
                                      codes(2 * m + 1, 1)};
          mma_f16(s[m], a, q[step][0], q[step][1]);
        }
      }
    }
    float scale[4];
    scales(page, 0, scale);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[m][j] *= scale[2 * m + j / 2] * C::kUnit;
  }

  // Scores become weights: as weigh_pages (attend_page.cuh), for slots from `begin` on. Whether any
  // reference moves is asked first, as it rarely does.
  __device__ __forceinline__ void weigh(float (&s)[2][4], std::uint32_t slot, std::uint32_t begin) {
    if (slot < begin)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (slot + n * 8 + lane / 4 < begin)
          s[n / 2][n % 2 * 2] = s[n / 2][n % 2 * 2 + 1] = kLowest;
    float most[2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
      most[j] = fmaxf(fmaxf(s[0][j], s[0][2 + j]), fmaxf(s[1][j], s[1][2 + j]));
    float decay[2] = {1, 1};
    if (__any_sync(~0u, most[0] > max[0] + kSlack || most[1] > max[1] + kSlack)) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2)
          most[j] = fmaxf(most[j], __shfl_xor_sync(~0u, most[j], apart));
        const float before = max[j];
        if (!(most[j] > before + kSlack)) continue;
        max[j] = most[j];
        if (before != kLowest) decay[j] = exp2_approx(before - most[j]);
      }
#pragma unroll
      for (int n = 0; n < D / 16; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) out[n][j] *= decay[j % 2];
      weight[0] *= decay[0], weight[1] *= decay[1];
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float base = max[j] == kLowest ? 0 : max[j];
      float here = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float& x = s[n / 2][n % 2 * 2 + j];
        x = exp2_approx(x - base);
        here += x;
      }
      sum[j] = __fmaf_rn(sum[j], decay[j], here);
    }
  }

  // `s`: weights.
  __device__ __forceinline__ void add_values(const float (&s)[2][4], std::uint32_t page) {
    float scale[4];
    scales(page, 1, scale);
    std::uint32_t w[4];  // of slots 8n + 2t and 8n + 2t + 1, head g; times the values' scales
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float by = scale[n] * C::partner(n / 2, n % 2);
      w[n] = transpose(pack_f16(s[n / 2][n % 2 * 2] * by, s[n / 2][n % 2 * 2 + 1] * by));
    }
#pragma unroll
    for (int h = 0; !C::kCentred && h < 2; ++h) {
      const std::uint32_t a[4] = {C::centre(h, 0), C::centre(h, 0), C::centre(h, 1),
                                  C::centre(h, 1)};
      mma_f16(weight, a, w[2 * h], w[2 * h + 1]);
    }
    // Sixteen bytes of a lane are the codes of so many sixteens of dimensions.
    constexpr int kSixteens = 8 / C::kBits;
#pragma unroll
    for (int n = 0; n < D / 16; n += kSixteens) {
      const uint4 v = load_shared(page + kCodes + n / kSixteens * 512 + lane * 16);
      const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kSixteens; ++i) {
          const auto codes = [&](int half, int j) {
            if constexpr (C::kBits == 8)
              return unpack_bytes<kFormat>(words[2 * half + h], j);
            else if constexpr (C::kBits == 4)
              return unpack<4>(words[2 * i + half], 2 * h + j);
            else
              return unpack<2>(words[i], 4 * half + 2 * h + j);
          };
          const std::uint32_t a[4] = {codes(0, 0), codes(1, 0), codes(0, 1), codes(1, 1)};
          mma_f16(out[n + i], a, w[2 * h], w[2 * h + 1]);
        }
    }
  }
};

// Sealed pages, then blocks of 64 dimensions of row pages.
template <int D, CudaKvFormat kFormat>
struct SealedPieces {
  static constexpr std::uint32_t kPage = sealed_page_bytes(kFormat, D), kRow = Page<D>::kBlock;
  static constexpr std::uint32_t kBytes = kPage > kRow ? kPage : kRow;
  static constexpr std::uint32_t kPerPage = 1, kPerRowPage = 2 * Page<D>::kBlocks;

  __device__ static __forceinline__ std::uint32_t count(const Work& w) {
    return w.pages + w.item.row_pages() * kPerRowPage;
  }
  __device__ static __forceinline__ std::uint32_t row_block(const AttendArgs& a, const Work& w,
                                                            std::uint32_t i) {
    return i < w.item.row_pages()
               ? cuda_row_pages(w.item.position, a.window, a.recent_blocks, a.sink_blocks).at(i)
               : kNoPartial;
  }
  __device__ static __forceinline__ const std::byte* find(const AttendArgs& a, const Work& w,
                                                          std::uint32_t piece,
                                                          std::uint32_t& bytes) {
    const bool sealed = piece < w.pages;
    const std::uint32_t row_piece = piece - w.pages;
    const std::uint32_t entry = __shfl_sync(~0u, sealed ? w.entry : w.row_entry,
                                            sealed ? piece % 32 : row_piece / kPerRowPage);
    const std::byte* block = a.arena + std::size_t{entry} * 256;
    bytes = sealed ? kPage : kRow;
    return sealed ? block + a.layer_offset + w.head * a.page_bytes
                  : block + a.row_layer_offset + w.head * a.row_page_bytes +
                        row_piece % kPerRowPage * kRow;
  }
};

template <int D, CudaKvFormat kFormat, int kWarps, int kStages>
__device__ __forceinline__ void decode_items(const AttendArgs& a) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[kWarps * kStages];
  constexpr std::uint32_t kSplit = cuda_split(D);
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t heads = a.query_heads / a.kv_heads;
  allow_next();
  PageRing<SealedPieces<D, kFormat>, kStages> ring(a, shared, barriers, kWarps);
  float2* row_room =
      reinterpret_cast<float2*>(shared + kWarps * kStages * SealedPieces<D, kFormat>::kBytes) +
      threadIdx.x / 32 * (D / 8 * 32) + lane;
  Work now = ring.ahead;
  ring.start();
  while (now.pieces != 0) {
    const AttendItem item = now.item;
    Work upcoming;
    ring.find(upcoming, now.index + ring.stride);
    const std::uint32_t row_count = item.sealed_rows(), of = g / heads;
    const bool real = of < row_count;
    const bf16* query =
        static_cast<const bf16*>(a.queries) +
        (std::size_t{item.row + of} * a.query_heads + now.head * heads + g % heads) * D;
    const std::uint32_t end = item.position + row_count,
                        mine = item.position + (real ? of : 0) + 1;  // where this row's slots end
    const Visible rows[1] = {{a.window != 0 ? mine - min(mine, a.window) : 0, mine}};
    Softmax<D, 8> state;
    Row<D> row{row_room};
    state.clear();
    if (now.pages != 0) {
      Sealed<D, kFormat> pages;
      pages.lane = lane;
      pages.load_query(query, real);
      pages.begin_split();
      for (std::uint32_t p = 0; p < now.pages; ++p) {
        const std::uint32_t slot = (now.first_page() + p) * kCudaPage;
        if (p != 0 && slot % kSplit == 0) {
          pages.end_split(state);
          row.take(state);
        }
        float s[2][4];
        const std::uint32_t at = ring.arrived();
        pages.scores(at, s);
        pages.weigh(s, slot, rows[0].begin);
        pages.add_values(s, at);
        ring.done();
      }
      pages.end_split(state);
      if (item.row_pages() != 0) row.take(state);
    }
    if (item.row_pages() != 0) {
      float s[4][4], decay;
      std::uint32_t weights[2][4];
      std::uint32_t q[D / 16][4];
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const bf16* at = query + k * 16 + 2 * t;
        q[k][0] = real ? *reinterpret_cast<const std::uint32_t*>(at) : 0;
        q[k][2] = real ? *reinterpret_cast<const std::uint32_t*>(at + 8) : 0;
        q[k][1] = q[k][3] = 0;
      }
      const RowPages blocks =
          cuda_row_pages(item.position, a.window, a.recent_blocks, a.sink_blocks);
      for (std::uint32_t p = 0; p < item.row_pages(); ++p) {
        const std::uint32_t slot = blocks.at(p) * kCudaPage;
#pragma unroll
        for (int i = 0; i < Page<D>::kBlocks; ++i) {
          score_block<D>(q, i, ring.arrived(), lane, s);
          ring.done();
        }
        weigh_page<D>(s, rows, slot, lane, state, decay, weights);
#pragma unroll
        for (int i = 0; i < Page<D>::kBlocks; ++i) {
          add_values_block<D>(weights, i, ring.arrived(), lane, min(end - slot, kCudaPage), state);
          ring.done();
        }
      }
    }
    row.store(a, now, lane, state, row_count);
    now = upcoming;
  }
}

template <int D, CudaKvFormat kFormat, class Shape, bool kForHopper>
__global__ void __launch_bounds__(Shape::kWarps * 32, 1)
    decode_sealed(const __grid_constant__ AttendArgs a) {
  if constexpr (kForHopper == kHopper)
    decode_items<D, kFormat, Shape::kWarps, Shape::kStages>(a);
  else
    __trap();
}

template <int D, CudaKvFormat kFormat, bool kForHopper, int kWarps, int kStages>
int run_for(const AttendArgs& a, CudaStream stream) {
  using Shape = DecodeShape<SealedPieces<D, kFormat>, D, kForHopper, kWarps, kStages>;
  constexpr auto kernel = decode_sealed<D, kFormat, Shape, kForHopper>;
  static const int allowed = allow_shared(kernel, Shape::kBytes);
  if (allowed != 0) return allowed;
  return launch(kernel, multiprocessors(), Shape::kWarps * 32, Shape::kBytes, stream, a);
}
template <int D, CudaKvFormat kFormat, int kWarps, int kStages>  // on Hopper
int run(const AttendArgs& a, CudaStream stream) {
  return hopper() ? run_for<D, kFormat, true, kWarps, kStages>(a, stream)
                  : run_for<D, kFormat, false, kWarps, kStages>(a, stream);
}

}  // namespace

int attend_decode_sealed(const AttendArgs& a, CudaStream stream) {
  if (a.query_heads / a.kv_heads > 8) return cudaErrorInvalidValue;
  if (a.head_dim == 128) {
    switch (a.format) {
      case CudaKvFormat::fp8:
        return run<128, CudaKvFormat::fp8, 8, 2>(a, stream);
      case CudaKvFormat::int8:
        return run<128, CudaKvFormat::int8, 8, 2>(a, stream);
      case CudaKvFormat::int4:
        return run<128, CudaKvFormat::int4, 8, 3>(a, stream);
      case CudaKvFormat::int2:
        return run<128, CudaKvFormat::int2, 16, 2>(a, stream);
      default:
        break;
    }
  }
  if (a.head_dim == 64) {
    switch (a.format) {
      case CudaKvFormat::fp8:
        return run<64, CudaKvFormat::fp8, 12, 3>(a, stream);
      case CudaKvFormat::int8:
        return run<64, CudaKvFormat::int8, 12, 3>(a, stream);
      case CudaKvFormat::int4:
        return run<64, CudaKvFormat::int4, 12, 3>(a, stream);
      case CudaKvFormat::int2:
        return run<64, CudaKvFormat::int2, 12, 3>(a, stream);
      default:
        break;
    }
  }
  return cudaErrorInvalidValue;
}

}  // namespace quire::cuda
