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

}  // namespace
}  // namespace quire
