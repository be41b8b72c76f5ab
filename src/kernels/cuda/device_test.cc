#include "kernels/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace quire {
namespace {

TEST(CudaDevice, WithoutItsLibraryItSaysWhatWouldHelp) {
  ::setenv("QUIRE_CUDA_LIBRARY", "/nowhere/libquire_cuda.so", 1);
  const auto device = open_cuda();
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, Code::unavailable);
  EXPECT_THAT(device.error().message, testing::HasSubstr("nvcc"));
  EXPECT_THAT(device.error().message, testing::HasSubstr("QUIRE_CUDA_LIBRARY"));
}

TEST(CudaDevice, OlderGpusAndLibrariesWithoutTheirCodeAreRefused) {
  CudaDeviceInfo info{.name = "A", .major = 7, .minor = 5, .code = 0};
  EXPECT_EQ(cuda_usable(info).error().code, Code::unsupported);
  EXPECT_THAT(cuda_usable(info).error().message, testing::HasSubstr("7.5; the kernels need 8.0"));
  info.major = 8, info.minor = 9;
  EXPECT_THAT(cuda_usable(info).error().message, testing::HasSubstr("QUIRE_CUDA_ARCHS=80"));
  info.code = 80;
  EXPECT_TRUE(cuda_usable(info).ok());
  info.major = 12;
  EXPECT_TRUE(cuda_usable(info).ok());
}

}  // namespace
}  // namespace quire
