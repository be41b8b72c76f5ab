#include "kernels/cuda/device.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace quire {
namespace {

constexpr const char* kLibrary = "libquire_cuda.so";

std::vector<std::string> places() {
  if (const char* given = std::getenv("QUIRE_CUDA_LIBRARY")) return {given};
  std::vector<std::string> all;
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const char* folder : {".", "..", "../lib", "../lib/quire"})
    all.push_back((program.parent_path() / folder / kLibrary).string());
  all.emplace_back(kLibrary);
  return all;
}

Result<const CudaApi*> load_library() {
  std::string problems;
  for (const std::string& place : places()) {
    if (place != kLibrary && !std::filesystem::exists(place)) continue;
    void* object = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!object) {
      problems += fmt::format("; {}", dlerror());
      continue;
    }
    const auto get = reinterpret_cast<const CudaApi* (*)()>(dlsym(object, "quire_cuda_api"));
    if (get && get()->version == kCudaApiVersion) return get();
    problems += fmt::format("; {} is of another version of Quire", place);
  }
  return Error{
      Code::unavailable,
      fmt::format("no {} was found beside the program: it is built where nvcc is (CUDA 13), "
                  "or named by QUIRE_CUDA_LIBRARY{}",
                  kLibrary, problems)};
}

Result<CudaDevice> open() {
  TRY(const CudaApi* api, load_library());
  CudaDevice device{api, {}};
  if (const int error = api->open(0, &device.info))
    return Error{
        Code::unavailable,
        fmt::format("no CUDA device can be used: {}; is there a GPU, and a driver for CUDA "
                    "13 (580 or newer)? --device cpu works without",
                    api->error_text(error))};
  TRY_STATUS(cuda_usable(device.info));
  return device;
}

}  // namespace

Status cuda_usable(const CudaDeviceInfo& info) {
  if (info.major < 8)
    return Error{Code::unsupported,
                 fmt::format("{} has compute capability {}.{}; the kernels need 8.0 (A100, GeForce "
                             "RTX 30) or newer; use --device cpu",
                             info.name, info.major, info.minor)};
  if (info.code == 0)
    return Error{
        Code::unsupported,
        fmt::format("{} was built without kernels for {} (compute capability {}.{}): build it "
                    "with QUIRE_CUDA_ARCHS=80, or use --device cpu",
                    kLibrary, info.name, info.major, info.minor)};
  return {};
}

Result<const CudaDevice*> open_cuda() {
  static const Result<CudaDevice> device = open();
  if (!device.ok()) return device.error();
  return &device.value();
}

Status cuda_status(const CudaDevice& device, int error, std::string_view doing) {
  if (error == 0) return {};
  constexpr int kOutOfMemory = 2;
  if (error == kOutOfMemory)
    return Error{Code::exhausted,
                 fmt::format("{} does not fit {} with {:.1f} GiB: lower --kv-cache-memory or "
                             "--batch-rows",
                             doing, device.info.name,
                             static_cast<double>(device.info.memory_bytes) / 0x1p30)};
  return Error{Code::unavailable, fmt::format("{} failed on {}: {}", doing, device.info.name,
                                              device.api->error_text(error))};
}

}  // namespace quire
