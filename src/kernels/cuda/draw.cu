// Sampling as far as a device does it (kernels/draw.h): a block of threads per row of logits.
//
// Every number that decides is computed as on a CPU: exp is its polynomial, sums have 16 partial sums in
// order (kernels/vector.h), a draw walks parts of 256 in order. A sum over the vocabulary is thus a
// chain of additions; 16 threads add while the others prepare the next numbers.
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/terms.h"

namespace quire::cuda {
namespace {

constexpr std::uint32_t kThreads = 1024, kTile = 4 * kThreads, kLanes = 16, kPart = 256;
constexpr std::uint32_t kBins = 2 * kThreads, kReaches = 5;  // 8, 16, 32, 64, 128
constexpr std::uint32_t kPartsMax = kTile;                   // 1,048,576 tokens
constexpr float kNone = -__builtin_huge_valf();

__device__ float exponential(float x) {  // kernels/ref/math.h
  if (x < kExpMin) return 0.0f;
  if (x > kExpMax) return __builtin_huge_valf();
  const float biased = __fmaf_rn(x, kLog2E, kRoundBias), n = biased - kRoundBias;
  float r = __fmaf_rn(n, -kLn2High, x);
  r = __fmaf_rn(n, -kLn2Low, r);
  float p = __fmaf_rn(kExp6, r, kExp5);
  p = __fmaf_rn(p, r, kExp4);
  p = __fmaf_rn(p, r, kExp3);
  p = __fmaf_rn(p, r, kExp2);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  return p * __uint_as_float(__float_as_uint(biased) << 23);
}
__device__ __forceinline__ float add_lanes(float x) {  // of 16 neighbours: the first has the sum
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) x += __shfl_down_sync(~0u, x, apart, kLanes);
  return x;
}

struct Most {
  float value;
  std::uint32_t index;
};

struct Room {
  float tiles[2][kTile];
  std::uint32_t bins[kBins];
  Most most[kThreads / 32];
  std::uint32_t counts[kThreads / 32 + 1];
  float masses[kReaches];
  std::uint32_t reached[kReaches];
  float sum;
  std::uint32_t found, before, token;
};

// One row of logits, read by a block of threads.
class Logits {
 public:
  __device__ Logits(float* x, std::uint32_t n, Room& room) : room_(room), x_(x), n_(n) {}

  __device__ Most most() {
    Most best{kNone, 0xffffffffu};
    for (std::uint32_t i = threadIdx.x; i < n_; i += kThreads)
      if (const float x = x_[i]; x > best.value) best = {x, i};
    const auto reduce = [&] {
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) {
        const Most other{__shfl_xor_sync(~0u, best.value, apart),
                         __shfl_xor_sync(~0u, best.index, apart)};
        if (other.value > best.value || (other.value == best.value && other.index < best.index))
          best = other;
      }
    };
    reduce();
    __syncthreads();
    if (threadIdx.x % 32 == 0) room_.most[threadIdx.x / 32] = best;
    __syncthreads();
    best = room_.most[threadIdx.x % 32];
    reduce();
    return {best.value + 0.0f, best.index == 0xffffffffu ? 0 : best.index};
  }

  // The sum of exp((x - less) * by) over all, in the order of kernels/vector.h.
  __device__ float ordered_sum(float less, float by) {
    const std::uint32_t tiles = (n_ + kTile - 1) / kTile;
    float sum = 0;
    for (std::uint32_t tile = 0; tile <= tiles; ++tile) {
      __syncthreads();
      if (tile < tiles)
#pragma unroll
        for (std::uint32_t j = 0; j < kTile; j += kThreads) {
          const std::uint32_t i = tile * kTile + j + threadIdx.x;
          room_.tiles[tile % 2][j + threadIdx.x] = i < n_ ? exponential((x_[i] - less) * by) : 0.0f;
        }
      if (tile > 0 && threadIdx.x < kLanes) {
        const float* from = room_.tiles[(tile - 1) % 2] + threadIdx.x;
#pragma unroll 16
        for (std::uint32_t k = 0; k < kTile; k += kLanes) sum += from[k];
      }
    }
    if (threadIdx.x < 32) {
      sum = add_lanes(sum);
      if (threadIdx.x == 0) room_.sum = sum;
    }
    __syncthreads();
    return room_.sum;
  }

  // NaN where the row is not finite.
  __device__ float one() const { return x_[0] - x_[0] + 1.0f; }

 protected:
  Room& room_;
  float* const x_;
  const std::uint32_t n_;
};

class Row : Logits {
 public:
  __device__ Row(const DrawArgs& a, Room& room)
      : Logits(a.logits + std::size_t{blockIdx.x} * a.vocabulary, a.vocabulary, room),
        a_(a),
        row_(a.rows[blockIdx.x]) {}

  __device__ void run() {
    if (row_.mode == DrawMode::logits) return tell(row_.mode, 0);
    const Most model = most();  // before anything is changed
    max_ = model.value;
    finite_ = isfinite(x_[0]);
    if (row_.logprob) sum_ = ordered_sum(max_, 1);
    const std::uint32_t changes = row_.biased + row_.penalized + row_.banned;
    if (changes != 0) change();
    const Most top = changes != 0 ? most() : model;
    less_ = top.value;
    DrawMode mode = row_.mode;
    std::uint32_t count = 0;
    if (!isfinite(less_)) {
      mode = DrawMode::logits;
    } else if (mode == DrawMode::best) {
      token_ = top.index;
    } else if (mode == DrawMode::whole) {
      token_ = draw(top.index);
    } else {
      count = mode == DrawMode::above ? list_above() : list_top();
      if (count == 0 || count > kDrawListMax) mode = DrawMode::logits;
    }
    __syncthreads();
    if (changes != 0) restore(changes);
    __syncthreads();
    if (mode == DrawMode::above || mode == DrawMode::top) bring_list(count);
    tell(mode, count);
  }

 private:
  __device__ float value(std::uint32_t i) const { return (x_[i] - less_) * row_.inverse; }

  __device__ void change() {
    const DrawChange* changes = a_.changes + row_.first_change;
    float* raw = a_.raw + row_.first_change;
    const std::uint32_t penalized = row_.biased, banned = penalized + row_.penalized,
                        end = banned + row_.banned;
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < end; i += kThreads) raw[i] = x_[changes[i].token];
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < penalized; i += kThreads)
      x_[changes[i].token] += changes[i].by;
    __syncthreads();
    for (std::uint32_t i = penalized + threadIdx.x; i < banned; i += kThreads) {
      float& x = x_[changes[i].token];
      x = x > 0 ? __fdiv_rn(x, row_.repetition) : x * row_.repetition;
      x -= changes[i].by;
    }
    __syncthreads();
    for (std::uint32_t i = banned + threadIdx.x; i < end; i += kThreads)
      x_[changes[i].token] = kNone;
    __syncthreads();
  }
  __device__ void restore(std::uint32_t changes) {
    for (std::uint32_t i = threadIdx.x; i < changes; i += kThreads)
      x_[a_.changes[row_.first_change + i].token] = a_.raw[row_.first_change + i];
  }

  // The token that the draw falls on: first the part, then the value. `best`, where rounding left
  // nothing of it.
  __device__ std::uint32_t draw(std::uint32_t best) {
    const std::uint32_t parts = (n_ + kPart - 1) / kPart, lane = threadIdx.x % kLanes;
    float* weights = room_.tiles[0];
    __syncthreads();
    for (std::uint32_t first = 0; first < parts; first += kThreads / kLanes) {
      const std::uint32_t p = first + threadIdx.x / kLanes;
      float sum = 0;
      for (std::uint32_t k = lane; p < parts && k < kPart; k += kLanes)
        if (const std::uint32_t i = p * kPart + k; i < n_) sum += exponential(value(i));
      sum = add_lanes(sum);
      if (p < parts && lane == 0) weights[p] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      double total = 0;
      for (std::uint32_t p = 0; p < parts; ++p) total += weights[p];
      double left = row_.unit * total;
      std::uint32_t at = parts;
      for (std::uint32_t p = 0; p < parts; ++p) {
        const double weight = weights[p];
        if (weight == 0) continue;
        if (left < weight) {
          at = p;
          break;
        }
        left -= weight;
      }
      room_.found = at;
      left_ = left;
    }
    __syncthreads();
    const std::uint32_t part = room_.found;
    if (part == parts) return best;
    if (threadIdx.x < kPart && part * kPart + threadIdx.x < n_)
      room_.tiles[1][threadIdx.x] = exponential(value(part * kPart + threadIdx.x));
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint32_t last = part * kPart;
      for (std::uint32_t i = part * kPart; i < min(n_, (part + 1) * kPart); ++i) {
        const double w = room_.tiles[1][i - part * kPart];
        if (w == 0) continue;
        last = i;
        if ((left_ -= w) < 0) break;
      }
      room_.token = last;
    }
    __syncthreads();
    return room_.token;
  }

  // How many of the threads before this one, and of all, count so much; all threads call it.
  __device__ std::uint32_t before(std::uint32_t mine, std::uint32_t& all) {
    std::uint32_t sum = mine;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const std::uint32_t left = __shfl_up_sync(~0u, sum, apart);
      if (threadIdx.x % 32 >= apart) sum += left;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31) room_.counts[threadIdx.x / 32] = sum;
    __syncthreads();
    std::uint32_t warps = 0;
    all = 0;
    for (std::uint32_t w = 0; w < kThreads / 32; ++w) {
      if (w < threadIdx.x / 32) warps += room_.counts[w];
      all += room_.counts[w];
    }
    return warps + sum - mine;
  }

  // Tokens whose value is at least `floor`, in their order; their number, which may be too large.
  __device__ std::uint32_t collect(float floor) {
    DrawList& to = a_.scratch[row_.list];
    std::uint32_t count = 0;
    for (std::uint32_t tile = 0; tile < n_; tile += kTile) {
      const std::uint32_t first = tile + threadIdx.x * 4;
      std::uint32_t hits = 0;
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j)
        if (first + j < n_ && value(first + j) >= floor) hits |= 1u << j;
      std::uint32_t all;
      std::uint32_t at = count + before(__popc(hits), all);
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j)
        if (hits >> j & 1) {
          if (at < kDrawListMax) {
            to.tokens[at] = first + j;
            to.values[at] = value(first + j);
          }
          ++at;
        }
      count += all;
    }
    return count;
  }

  // A reach that surely holds the mass, the smallest of those the Sampler tries.
  __device__ std::uint32_t list_above() {
    if (row_.top_p >= 1) return collect(row_.floor);
    total_ = ordered_sum(less_, row_.inverse);
    __syncthreads();
    if (threadIdx.x < kReaches) room_.masses[threadIdx.x] = 0;
    __syncthreads();
    float mass[kReaches] = {};
    for (std::uint32_t i = threadIdx.x; i < n_; i += kThreads) {
      const float v = value(i), weight = exponential(v);
#pragma unroll
      for (std::uint32_t r = 0; r < kReaches; ++r)
        if (v >= -static_cast<float>(8u << r)) mass[r] += weight;
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kReaches; ++r) {
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) mass[r] += __shfl_xor_sync(~0u, mass[r], apart);
      if (threadIdx.x % 32 == 0) atomicAdd(&room_.masses[r], mass[r]);
    }
    __syncthreads();
    std::uint32_t r = 0;
    while (r + 1 < kReaches && room_.masses[r] < 1.001f * row_.top_p * total_) ++r;
    return collect(-static_cast<float>(8u << r));
  }

  // The bin where the running count of `bins` reaches `wanted`; `before` is what comes before it.
  __device__ void find_bin(std::uint32_t wanted) {
    const std::uint32_t a = room_.bins[2 * threadIdx.x], b = room_.bins[2 * threadIdx.x + 1];
    std::uint32_t all;
    const std::uint32_t until = before(a + b, all);
    if (until < wanted && until + a + b >= wanted) {
      const bool second = until + a < wanted;
      room_.found = 2 * threadIdx.x + second;
      room_.before = until + (second ? a : 0);
    }
    __syncthreads();
  }
  __device__ void clear_bins() {
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < kBins; i += kThreads) room_.bins[i] = 0;
    __syncthreads();
  }
  // By the bits of a value's size: small ones are the best. First the upper eleven, then, if these
  // leave too many, the next eleven.
  __device__ std::uint32_t list_top() {
    clear_bins();
    for (std::uint32_t i = threadIdx.x; i < n_; i += kThreads)
      atomicAdd(&room_.bins[__float_as_uint(fabsf(value(i))) >> 20], 1u);
    __syncthreads();
    find_bin(min(row_.top_k, n_));
    const std::uint32_t bin = room_.found, smaller = room_.before;
    std::uint32_t last = bin << 20 | 0xfffffu;
    if (smaller + room_.bins[bin] > kDrawListMax) {
      clear_bins();
      for (std::uint32_t i = threadIdx.x; i < n_; i += kThreads)
        if (const std::uint32_t bits = __float_as_uint(fabsf(value(i))); bits >> 20 == bin)
          atomicAdd(&room_.bins[bits >> 9 & (kBins - 1)], 1u);
      __syncthreads();
      find_bin(min(row_.top_k, n_) - smaller);
      last = bin << 20 | room_.found << 9 | 0x1ffu;
    }
    return collect(-__uint_as_float(min(last, 0x7f7fffffu)));
  }

  __device__ void bring_list(std::uint32_t count) {
    const DrawList& from = a_.scratch[row_.list];
    DrawList& to = a_.lists[row_.list];
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      to.tokens[i] = from.tokens[i];
      to.values[i] = from.values[i];
      to.logits[i] = x_[from.tokens[i]];  // the model's own again
    }
  }

  __device__ void tell(DrawMode mode, std::uint32_t count) {
    if (threadIdx.x != 0) return;
    Drawn& to = a_.drawn[blockIdx.x];
    to.mode = mode;
    to.token = token_;
    to.logit = token_ < n_ ? x_[token_] : 0;
    to.max = max_;
    to.sum = sum_;
    to.total = total_;
    to.count = count;
    to.finite = finite_;
    to.list = nullptr;
  }

  const DrawArgs& a_;
  const DrawRow row_;
  float max_ = 0, sum_ = 0, total_ = 0, less_ = 0;
  bool finite_ = true;
  std::uint32_t token_ = kNoToken;
  double left_ = 0;  // of the draw; the first thread's
};

__global__ void __launch_bounds__(kThreads) draw_kernel(const DrawArgs a) {
  __shared__ Room room;
  allow_next();
  wait_for_previous();
  Row(a, room).run();
}

__global__ void __launch_bounds__(kThreads) argmax_kernel(const ArgmaxArgs a) {
  __shared__ Room room;
  allow_next();
  wait_for_previous();
  Logits row(a.logits + std::size_t{blockIdx.x} * a.vocabulary, a.vocabulary, room);
  const Most best = row.most();
  const float sum = a.sums ? row.ordered_sum(best.value, 1) : row.one();
  if (threadIdx.x == 0) a.best[blockIdx.x] = {best.index, best.value, sum};
}

}  // namespace

int argmax(const ArgmaxArgs& a, CudaStream stream) {
  return launch(argmax_kernel, a.rows, kThreads, 0, stream, a);
}

int draw(const DrawArgs& a, CudaStream stream) {
  if (a.vocabulary > kPartsMax * kPart) return cudaErrorInvalidValue;
  return launch(draw_kernel, a.row_count, kThreads, 0, stream, a);
}

}  // namespace quire::cuda
