// Many rows: cuBLASLt, restricted to algorithms that do not split K and that gave the bits of
// linear_stream.cu's chain on a probe of these weights. If the caller allows bits to depend on the
// number of rows (--fast), all algorithms may be used.
//
// The library is loaded when first needed; without it only steps of up to kPackedRowsMax rows work.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;

struct Library {
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_config;
  decltype(&cublasLtMatmulDescCreate) make_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtCreate) create;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  bool ok = false;

  Library() {
    void* object = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!object) object = dlopen("/usr/local/cuda/lib64/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!object) return;
    bool all = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(object, name));
      all = all && function;
    };
    find(matmul, "cublasLtMatmul");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(get_config, "cublasLtMatmulAlgoConfigGetAttribute");
    find(make_operation, "cublasLtMatmulDescCreate");
    find(set_operation, "cublasLtMatmulDescSetAttribute");
    find(make_layout, "cublasLtMatrixLayoutCreate");
    find(make_preference, "cublasLtMatmulPreferenceCreate");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(create, "cublasLtCreate");
    ok = all && create(&handle) == CUBLAS_STATUS_SUCCESS &&
         cudaMalloc(&workspace, kWorkspace) == cudaSuccess;
  }
};

Library& library() {
  static Library one;
  return one;
}

// Rows are classed by powers of two; a class is tuned once.
std::uint32_t row_class(std::uint32_t rows) {
  std::uint32_t c = kLibraryRows;
  while (c < rows) c *= 2;
  return c;
}

struct Plan {
  cublasLtMatmulAlgo_t algorithm;
  float microseconds;  // 0: none was admitted
};
using Shape = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool, bool>;
std::map<Shape, Plan>& plans() {
  static std::map<Shape, Plan> all;
  return all;
}
Shape shape_of(const LinearArgs& a) {
  return {a.outputs, a.inputs, row_class(a.rows), a.kind == LinearOutput::rows_f32, a.fast};
}

struct Problem {
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t weights, rows, output;
};

Problem make_problem(Library& l, const LinearArgs& a) {
  Problem p;
  l.make_operation(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
  l.set_operation(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  l.set_operation(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain);
  l.make_layout(&p.weights, CUDA_R_16BF, a.inputs, a.outputs, a.inputs);
  l.make_layout(&p.rows, CUDA_R_16BF, a.inputs, a.rows, a.inputs);
  l.make_layout(&p.output, a.kind == LinearOutput::rows_f32 ? CUDA_R_32F : CUDA_R_16BF, a.outputs,
                a.rows, a.outputs);
  return p;
}

// Descriptors are made once per shape and row count.
const Problem& problem(Library& l, const LinearArgs& a) {
  static std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool>, Problem> all;
  const auto key = std::tuple(a.outputs, a.inputs, a.rows, a.kind == LinearOutput::rows_f32);
  const auto found = all.find(key);
  return found != all.end() ? found->second : all.emplace(key, make_problem(l, a)).first->second;
}

int multiply(Library& l, const LinearArgs& a, const cublasLtMatmulAlgo_t& algorithm,
             CudaStream stream) {
  const Problem& p = problem(l, a);
  const float one = 1, zero = 0;
  return l.matmul(l.handle, p.operation, &one, a.weights, p.weights, a.activations, p.rows, &zero,
                  a.output, p.output, a.output, p.output, &algorithm, l.workspace, kWorkspace,
                  native(stream)) == CUBLAS_STATUS_SUCCESS
             ? 0
             : cudaErrorNotSupported;
}

__global__ void pack(const bf16* rows, bf16* packed, std::uint32_t count, std::uint32_t width) {
  for (std::uint32_t i = threadIdx.x; i < width; i += blockDim.x)
    packed[activation_at(count, width, blockIdx.x, i)] = rows[std::size_t{blockIdx.x} * width + i];
}

// Our own kernel, kPackedRowsMax rows at a time: for shapes of which the library has no algorithm
// with our bits.
int multiply_in_pieces(const LinearArgs& a, CudaStream stream) {
  static void* packed = nullptr;
  static std::size_t packed_bytes = 0;
  const std::size_t bytes = std::size_t{kPackedRowsMax} * a.inputs * 2;
  if (packed_bytes < bytes) {
    cudaDeviceSynchronize();
    cudaFree(packed);
    if (const int e = cudaMalloc(&packed, bytes)) return e;
    packed_bytes = bytes;
  }
  const std::size_t element = a.kind == LinearOutput::rows_f32 ? 4 : 2;
  for (std::uint32_t r = 0; r < a.rows; r += kPackedRowsMax) {
    LinearArgs part = a;
    part.rows = std::min(kPackedRowsMax, a.rows - r);
    part.activations = packed;
    part.output = static_cast<std::byte*>(a.output) + std::size_t{r} * a.outputs * element;
    pack<<<part.rows, 256, 0, native(stream)>>>(
        static_cast<const bf16*>(a.activations) + std::size_t{r} * a.inputs,
        static_cast<bf16*>(packed), part.rows, a.inputs);
    if (const int e = linear_stream(part, stream)) return e;
  }
  return cudaGetLastError();
}

__global__ void count_differences(const std::uint16_t* a, const std::uint16_t* b, std::size_t n,
                                  unsigned* count) {
  unsigned mine = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x)
    mine += a[i] != b[i];
  if (mine) atomicAdd(count, mine);
}

}  // namespace

int tune_library(const LinearArgs& wanted, CudaStream stream) {
  Library& l = library();
  if (!l.ok) return cudaErrorSharedObjectInitFailed;
  LinearArgs a = wanted;
  a.rows = row_class(wanted.rows);
  if (plans().contains(shape_of(a))) return 0;
  constexpr std::uint32_t kProbe = kPackedRowsMax;
  const std::size_t element = a.kind == LinearOutput::rows_f32 ? 4 : 2;
  void *rows, *packed, *ours, *its;
  unsigned* count;
  int error = 0;
  const auto take = [&](auto** p, std::size_t bytes) {
    if (error == 0) error = cudaMalloc(p, bytes);
  };
  take(&rows, std::size_t{a.rows} * a.inputs * 2);
  take(&packed, std::size_t{kProbe} * a.inputs * 2);
  take(&ours, kProbe * a.outputs * element);
  take(&its, std::size_t{a.rows} * a.outputs * element);
  take(&count, 4);
  if (error != 0) return error;
  random_bf16({.to = rows, .count = std::size_t{a.rows} * a.inputs, .seed = 99, .spread = 1},
              stream);
  pack<<<kProbe, 256, 0, native(stream)>>>(static_cast<bf16*>(rows), static_cast<bf16*>(packed),
                                           kProbe, a.inputs);
  LinearArgs probe = a;
  probe.rows = kProbe;
  probe.activations = packed;
  probe.output = ours;
  error = linear_stream(probe, stream);
  a.activations = rows;
  a.output = its;

  const Problem& p = problem(l, a);
  cublasLtMatmulPreference_t preference;
  l.make_preference(&preference);
  l.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                   sizeof kWorkspace);
  const std::uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;  // K in one piece
  if (!a.fast)
    l.set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
  cublasLtMatmulHeuristicResult_t found[24];
  int found_count = 0;
  l.heuristic(l.handle, p.operation, p.weights, p.rows, p.output, p.output, preference, 24, found,
              &found_count);
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  Plan best{{}, 0};
  for (int i = 0; i < found_count && error == 0; ++i) {
    int split = 0;
    std::size_t written;
    l.get_config(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written);
    if ((split > 1 && !a.fast) || multiply(l, a, found[i].algo, stream) != 0) continue;
    unsigned differences = 1;
    cudaMemsetAsync(count, 0, 4, native(stream));
    count_differences<<<256, 256, 0, native(stream)>>>(static_cast<std::uint16_t*>(its),
                                                       static_cast<std::uint16_t*>(ours),
                                                       kProbe * a.outputs * element / 2, count);
    cudaMemcpyAsync(&differences, count, 4, cudaMemcpyDeviceToHost, native(stream));
    cudaStreamSynchronize(native(stream));
    if (differences != 0 && !a.fast) continue;
    cudaEventRecord(start, native(stream));
    for (int j = 0; j < 4; ++j) multiply(l, a, found[i].algo, stream);
    cudaEventRecord(stop, native(stream));
    error = cudaEventSynchronize(stop);
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    const float us = ms * 250;
    if (best.microseconds == 0 || us < best.microseconds) best = {found[i].algo, us};
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaFree(rows);
  cudaFree(packed);
  cudaFree(ours);
  cudaFree(its);
  cudaFree(count);
  if (error != 0) return error;
  plans().emplace(shape_of(a), best);
  return 0;
}

// Fewer than 128 rows are no faster: buffers have room for them (kLibraryRows).
int linear_library(const LinearArgs& wanted, CudaStream stream) {
  LinearArgs a = wanted;
  a.rows = std::max(a.rows, kLibraryRows);
  auto plan = plans().find(shape_of(a));
  if (plan == plans().end()) {  // a size that nobody expected
    if (const int e = tune_library(a, stream)) return e;
    plan = plans().find(shape_of(a));
  }
  if (plan->second.microseconds == 0) return multiply_in_pieces(a, stream);
  return multiply(library(), a, plan->second.algorithm, stream);
}

}  // namespace quire::cuda
