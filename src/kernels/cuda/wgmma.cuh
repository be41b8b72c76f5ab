// kernels/cuda/wgmma.cuh - Hopper's matrix instruction of four warps, for attention over pages.
//
// A is in registers (the fragments of m16n8k16, a warp for 16 of the 64 rows), B in shared memory
// as bulk copies bring it: rows of 128 bytes whose 16-byte pieces are permuted by row & 7
// (attend_page.cuh). Sums have the bits of the same chain of mma.sync. It runs on by itself: what
// it reads and writes is left alone until wgmma_wait.
//
//   wgmma_fence();                       // registers written before are seen
//   wgmma_scores(s, q, operand(keys, 0), false);
//   wgmma_commit();
//   wgmma_wait();
#pragma once

#include "kernels/cuda/ptx.cuh"

namespace quire::cuda {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the newest kNewest commits are done.
template <int kNewest = 0>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewest) : "memory");
}
// Keeps the compiler from moving uses of what a running instruction owns.
template <int kCount>
__device__ __forceinline__ void pin(float (&r)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(r[i][0]), "+f"(r[i][1]), "+f"(r[i][2]), "+f"(r[i][3])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&r)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+r"(r[i][0]), "+r"(r[i][1]), "+r"(r[i][2]), "+r"(r[i][3])::"memory");
}
// A in registers is read while the instruction runs, which the compiler does not know: a use that
// never happens, after it was waited for, keeps other values out of them.
template <int kCount>
__device__ __forceinline__ void keep_until_here(const std::uint32_t (&r)[kCount][4], bool never,
                                                std::uint32_t anywhere) {
  if (never)
#pragma unroll
    for (int i = 0; i < kCount; ++i) store_shared(anywhere, r[i]);
}

// How B lies: groups of 8 rows follow each other; blocks of 64 columns are `columns_apart` bytes
// apart.
__device__ __forceinline__ std::uint64_t operand(std::uint32_t at, std::uint32_t columns_apart) {
  constexpr std::uint64_t kPermuted128 = std::uint64_t{1} << 62, kRowsApart = 8 * 128;
  return kPermuted128 | (kRowsApart >> 4) << 32 |
         static_cast<std::uint64_t>(columns_apart >> 4) << 16 | (at & 0x3ffff) >> 4;
}

// So many bytes further on, within the same tile.
__device__ __forceinline__ std::uint64_t further(std::uint64_t operand, std::uint32_t bytes) {
  const auto low = static_cast<std::uint32_t>(operand) + (bytes >> 4);
  return operand >> 32 << 32 | low;
}

#define QUIRE_FOUR(r) "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3])
#define QUIRE_SIXTEEN(r, i) \
  QUIRE_FOUR(r[i]), QUIRE_FOUR(r[i + 1]), QUIRE_FOUR(r[i + 2]), QUIRE_FOUR(r[i + 3])

// 128 keys, 16 of their dimensions.
__device__ __forceinline__ void wgmma_scores(float (&s)[16][4], const std::uint32_t (&a)[4],
                                             std::uint64_t keys, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, "
      "add, 1, 1, 0;\n}"
      : QUIRE_SIXTEEN(s, 0), QUIRE_SIXTEEN(s, 4), QUIRE_SIXTEEN(s, 8), QUIRE_SIXTEEN(s, 12)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(keys), "r"(static_cast<int>(add)));
}

// 16 values of 64, or of 128, dimensions.
__device__ __forceinline__ void wgmma_values(float (&out)[8][4], const std::uint32_t (&a)[4],
                                             std::uint64_t values, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, add, 1, 1, 1;\n}"
      : QUIRE_SIXTEEN(out, 0), QUIRE_SIXTEEN(out, 4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(values), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_values(float (&out)[16][4], const std::uint32_t (&a)[4],
                                             std::uint64_t values, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, "
      "add, 1, 1, 1;\n}"
      : QUIRE_SIXTEEN(out, 0), QUIRE_SIXTEEN(out, 4), QUIRE_SIXTEEN(out, 8), QUIRE_SIXTEEN(out, 12)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(values), "r"(static_cast<int>(add)));
}

#undef QUIRE_FOUR
#undef QUIRE_SIXTEEN

}  // namespace quire::cuda
