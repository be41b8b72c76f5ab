// The device itself: memory that is reserved once and filled on demand, streams, copies, graphs;
// and the table of everything this shared object does.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"

namespace quire::cuda {
namespace {

// The driver's calls, so that the object loads where there is no driver.
struct Driver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) release = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) destroy = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  int error = 0;

  Driver() {
    const auto find = [&](auto& function, const char* name) {
      void* at = nullptr;
      cudaDriverEntryPointQueryResult found;
      const cudaError_t e =
          cudaGetDriverEntryPointByVersion(name, &at, 12000, cudaEnableDefault, &found);
      if (e != cudaSuccess || found != cudaDriverEntryPointSuccess)
        error = cudaErrorInsufficientDriver;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(at);
    };
    find(reserve, "cuMemAddressReserve");
    find(release, "cuMemAddressFree");
    find(create, "cuMemCreate");
    find(destroy, "cuMemRelease");
    find(map, "cuMemMap");
    find(unmap, "cuMemUnmap");
    find(set_access, "cuMemSetAccess");
    find(granularity, "cuMemGetAllocationGranularity");
  }
};

Driver& driver() {
  static Driver one;
  return one;
}

CUmemAllocationProp properties() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  int device = 0;
  cudaGetDevice(&device);
  p.location.id = device;
  return p;
}

// What is mapped where, so that it can be unmapped: one entry per commit.
struct Mapping {
  CUmemGenericAllocationHandle handle;
  std::uint64_t bytes;
};
std::mutex mappings_mutex;
std::map<CUdeviceptr, Mapping> mappings;

int from_driver(CUresult r) {
  return r == CUDA_SUCCESS               ? 0
         : r == CUDA_ERROR_OUT_OF_MEMORY ? cudaErrorMemoryAllocation
                                         : cudaErrorUnknown;
}

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

__global__ void nothing() {}

int open_device(int device, CudaDeviceInfo* info) {
  if (const int e = cudaSetDevice(device)) return e;
  cudaDeviceProp p;
  if (const int e = cudaGetDeviceProperties(&p, device)) return e;
  std::snprintf(info->name, sizeof info->name, "%s", p.name);
  info->major = p.major;
  info->minor = p.minor;
  info->multiprocessors = p.multiProcessorCount;
  info->code = code_version();
  std::size_t free_bytes, total;
  if (const int e = cudaMemGetInfo(&free_bytes, &total)) return e;
  info->memory_bytes = total;
  info->free_bytes = free_bytes;
  return cudaDriverGetVersion(&info->driver);
}

int reserve(std::uint64_t bytes, void** base, std::uint64_t* granularity) {
  if (driver().error) return driver().error;
  const CUmemAllocationProp p = properties();
  std::size_t page = 0;
  if (const int e =
          from_driver(driver().granularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)))
    return e;
  *granularity = page;
  CUdeviceptr at = 0;
  const int e = from_driver(driver().reserve(&at, (bytes + page - 1) / page * page, page, 0, 0));
  *base = reinterpret_cast<void*>(at);
  return e;
}

int commit(void* base, std::uint64_t offset, std::uint64_t bytes) {
  const CUmemAllocationProp p = properties();
  const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(base) + offset;
  Mapping m{0, bytes};
  if (const int e = from_driver(driver().create(&m.handle, bytes, &p, 0))) return e;
  if (const int e = from_driver(driver().map(at, bytes, 0, m.handle, 0))) {
    driver().destroy(m.handle);
    return e;
  }
  CUmemAccessDesc access{};
  access.location = p.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (const int e = from_driver(driver().set_access(at, bytes, &access, 1))) {
    driver().unmap(at, bytes);
    driver().destroy(m.handle);
    return e;
  }
  const std::lock_guard lock(mappings_mutex);
  mappings[at] = m;
  return 0;
}

// The range is made of whole commits.
int decommit(void* base, std::uint64_t offset, std::uint64_t bytes) {
  cudaDeviceSynchronize();
  const std::lock_guard lock(mappings_mutex);
  CUdeviceptr at = reinterpret_cast<CUdeviceptr>(base) + offset;
  for (const CUdeviceptr end = at + bytes; at < end;) {
    const auto found = mappings.find(at);
    if (found == mappings.end() || found->second.bytes > end - at) return cudaErrorInvalidValue;
    driver().unmap(at, found->second.bytes);
    driver().destroy(found->second.handle);
    at += found->second.bytes;
    mappings.erase(found);
  }
  return 0;
}

int release(void* base, std::uint64_t bytes) {
  cudaDeviceSynchronize();
  const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(base);
  {
    const std::lock_guard lock(mappings_mutex);
    for (auto i = mappings.lower_bound(at); i != mappings.end() && i->first < at + bytes;) {
      driver().unmap(i->first, i->second.bytes);
      driver().destroy(i->second.handle);
      i = mappings.erase(i);
    }
  }
  return from_driver(driver().release(at, bytes));
}

int allocate(std::uint64_t bytes, void** out) { return cudaMalloc(out, bytes); }
void free_device(void* p) { cudaFree(p); }
int allocate_host(std::uint64_t bytes, void** out) { return cudaMallocHost(out, bytes); }
void free_host(void* p) { cudaFreeHost(p); }

int make_stream(CudaStream* out) {
  return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(out), cudaStreamNonBlocking);
}
int wait(CudaStream stream) { return cudaStreamSynchronize(native(stream)); }
int copy_to_device(void* to, const void* from, std::uint64_t bytes, CudaStream s) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, native(s));
}
int copy_to_host(void* to, const void* from, std::uint64_t bytes, CudaStream s) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, native(s));
}
int copy_on_device(void* to, const void* from, std::uint64_t bytes, CudaStream s) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(s));
}
int fill(void* at, int byte, std::uint64_t bytes, CudaStream s) {
  return cudaMemsetAsync(at, byte, bytes, native(s));
}

cudaEvent_t native(CudaEvent e) { return reinterpret_cast<cudaEvent_t>(e); }
int make_event(CudaEvent* out) { return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(out)); }
void free_event(CudaEvent event) { cudaEventDestroy(native(event)); }
int wait_for(CudaEvent event) { return cudaEventSynchronize(native(event)); }
int record(CudaEvent event, CudaStream stream) {
  return cudaEventRecord(native(event), cuda::native(stream));
}
int milliseconds(CudaEvent from, CudaEvent to, float* out) {
  if (const int e = cudaEventSynchronize(native(to))) return e;
  return cudaEventElapsedTime(out, native(from), native(to));
}

int begin_capture(CudaStream stream) {
  return cudaStreamBeginCapture(cuda::native(stream), cudaStreamCaptureModeThreadLocal);
}
int end_capture(CudaStream stream, CudaGraph* out) {
  cudaGraph_t graph;
  if (const int e = cudaStreamEndCapture(cuda::native(stream), &graph)) return e;
  const int e = cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(out), graph, 0);
  cudaGraphDestroy(graph);
  return e;
}
int launch_graph(CudaGraph graph, CudaStream stream) {
  return cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), cuda::native(stream));
}
void free_graph(CudaGraph graph) { cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph)); }

constexpr CudaApi kApi = {.version = kCudaApiVersion,
                          .error_text = error_text,
                          .open = open_device,
                          .reserve = reserve,
                          .commit = commit,
                          .decommit = decommit,
                          .release = release,
                          .allocate = allocate,
                          .free = free_device,
                          .allocate_host = allocate_host,
                          .free_host = free_host,
                          .make_stream = make_stream,
                          .wait = wait,
                          .copy_to_device = copy_to_device,
                          .copy_to_host = copy_to_host,
                          .copy_on_device = copy_on_device,
                          .fill = fill,
                          .make_event = make_event,
                          .free_event = free_event,
                          .record = record,
                          .wait_for = wait_for,
                          .milliseconds = milliseconds,
                          .begin_capture = begin_capture,
                          .end_capture = end_capture,
                          .launch = launch_graph,
                          .free_graph = free_graph,
                          .attend_decode = attend_decode,
                          .attend_prefill = attend_prefill,
                          .attend_latent = attend_latent,
                          .attend_merge = attend_merge,
                          .seal = seal,
                          .tune_linear = tune_linear,
                          .linear = linear,
                          .add_norm = add_norm,
                          .embed = embed,
                          .rope_store = rope_store,
                          .gate = gate,
                          .gather = gather,
                          .argmax = argmax,
                          .draw = draw,
                          .random_bf16 = random_bf16,
                          .random_codes = random_codes,
                          .read_all = read_all};

}  // namespace

int code_version() {
  static const int version = [] {
    cudaFuncAttributes of_kernel{};
    return cudaFuncGetAttributes(&of_kernel, nothing) == cudaSuccess ? of_kernel.ptxVersion : 0;
  }();
  return version;
}

}  // namespace quire::cuda

const quire::CudaApi* quire_cuda_api() { return &quire::cuda::kApi; }
