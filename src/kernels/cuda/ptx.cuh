// kernels/cuda/ptx.cuh - the instructions the kernels are made of, one short function each.
//
// Kernels are compiled twice: for Hopper with what only it has (kHopper), and for compute capability
// 8.0, which every later GPU runs too. Both do the same arithmetic in the same order, so on one GPU
// they give the same bits. The host asks hopper() (launch.cuh) which of them it has.
//
// Everything is compiled without contraction: a multiply-add is fused only where __fmaf_rn says so.
// Kernels that must agree bit for bit (decode and prefill, one row and many) therefore do.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

using bf16 = __nv_bfloat16;

// On the device only: to the host it says nothing.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHopper = true;
#else
constexpr bool kHopper = false;
#endif

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Barriers that know of copies under way.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_fence() {
  if constexpr (kHopper) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// What arrives at a barrier when a warp's copies have: bytes that one lane promised, or each lane's.
constexpr std::uint32_t kCopyArrivals = kHopper ? 1 : 32;
// A ring of `stages`: full barriers, then empty ones that so many warps arrive at. One thread calls
// it; the others come after a barrier.
__device__ __forceinline__ void init_ring(std::uint32_t barriers, int stages, int warps) {
  for (int i = 0; i < stages; ++i) {
    barrier_init(barriers + 8 * i, kCopyArrivals);
    barrier_init(barriers + 8 * (stages + i), warps);
  }
  barrier_init_fence();
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  if constexpr (kHopper)
    asm volatile(
        "{\n.reg .pred p;\n"
        "WAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra WAIT_%=;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
  else
    asm volatile(
        "{\n.reg .pred p;\n"
        "WAIT_%=: mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra WAIT_%=;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Hopper: bytes that a barrier is to wait for, and their copy.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  if constexpr (kHopper)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
  else
    __trap();
}
__device__ __forceinline__ void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  if constexpr (kHopper)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
  else
    __trap();
}
// Any GPU: copies by a warp towards a barrier, multiples of 16 bytes, stand between begin_copies and
// end_copies. On Hopper one lane asks the copy engine for all of a copy; elsewhere each does its share.
__device__ __forceinline__ bool copies(std::uint32_t lane) { return !kHopper || lane == 0; }
__device__ __forceinline__ void begin_copies(std::uint32_t barrier, std::uint32_t bytes) {
  if constexpr (kHopper) barrier_expect(barrier, bytes);
}
__device__ __forceinline__ void end_copies(std::uint32_t barrier) {
  if constexpr (!kHopper)
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void warp_copy(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier, std::uint32_t lane) {
  if constexpr (kHopper)
    bulk_copy(to, from, bytes, barrier);
  else
    for (std::uint32_t i = lane * 16; i < bytes; i += 32 * 16)
      copy_16(to + i, static_cast<const std::byte*>(from) + i);
}
// All lanes call it; each that says so has a copy of its own.
__device__ __forceinline__ void lane_copies(bool mine, std::uint32_t to, const std::byte* from,
                                            std::uint32_t bytes, std::uint32_t barrier,
                                            std::uint32_t lane) {
  if constexpr (kHopper) {
    if (mine) bulk_copy(to, from, bytes, barrier);
  } else {
    for (std::uint32_t left = __ballot_sync(~0u, mine); left != 0; left &= left - 1) {
      const int its = __ffs(left) - 1;
      const auto address = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(from), its);
      warp_copy(__shfl_sync(~0u, to, its), reinterpret_cast<const std::byte*>(address),
                __shfl_sync(~0u, bytes, its), barrier, lane);
    }
  }
}

// Hopper: a box of a tensor whose map says {element, row, column}, from element 0.
__device__ __forceinline__ void copy_box(std::uint32_t to, const void* map, std::uint32_t row,
                                         std::uint32_t column, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(column), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}

__device__ __forceinline__ void store_shared(std::uint32_t at, const std::uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]),
               "r"(v[3])
               : "memory");
}
__device__ __forceinline__ uint2 load_shared2(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared1(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ float2 load_shared_floats(std::uint32_t at) {
  const uint2 v = load_shared2(at);
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

__device__ __forceinline__ void clear_shared(std::uint32_t at) {  // 16 bytes
  asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(at), "r"(0) : "memory");
}
// What was stored to shared memory is seen by the copy engine and by wgmma.
__device__ __forceinline__ void fence_async() {
  if constexpr (kHopper) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The four warps of group i meet; the second way, to learn how many of their lanes said so.
__device__ __forceinline__ void group_barrier(std::uint32_t i) {
  asm volatile("bar.sync %0, 128;" ::"r"(i + 1) : "memory");
}
__device__ __forceinline__ std::uint32_t group_count(std::uint32_t i, bool mine) {
  std::uint32_t count;
  asm volatile("{\n.reg .pred q;\nsetp.ne.u32 q, %1, 0;\nbar.red.popc.u32 %0, %2, 128, q;\n}"
               : "=r"(count)
               : "r"(static_cast<std::uint32_t>(mine)), "r"(i + 1)
               : "memory");
  return count;
}

// Hopper: a group of four warps gives registers back, or takes those that others gave.
template <int kCount>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Programmatic dependent launch: a kernel may start while the one before it ends. What it reads of
// that one's output comes after wait_for_previous(); allow_next() lets its successor do the same.
// Kernels for any GPU are launched without it.
__device__ __forceinline__ void wait_for_previous() {
  if constexpr (kHopper) asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void allow_next() {
  if constexpr (kHopper) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_f16(float (&c)[4], const std::uint32_t (&a)[4],
                                        std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Of an 8 x 8 matrix of 16-bit numbers, lane g * 4 + t having columns 2t and 2t + 1 of row g.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t pair) {
  std::uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ std::uint32_t pack_f16(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float low_bf16(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace quire::cuda
