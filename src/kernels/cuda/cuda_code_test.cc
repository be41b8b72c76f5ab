// Kernels are compiled for Hopper and for any GPU (kernels/cuda/ptx.cuh). Where the first are used,
// the others must give the same bits: this program runs once more with them.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/cuda/coded.h"
#include "kernels/cuda/sealed_testing.h"

namespace quire {
namespace {

constexpr const char* kChild = "QUIRE_TEST_PRINT_BITS";

class CudaCode : public CudaSealed {
 protected:
  template <class T>
  void add(const std::string& what, const std::vector<T>& got) {
    const std::string_view bytes(reinterpret_cast<const char*>(got.data()), got.size() * sizeof(T));
    bits_ += what + ' ' + std::to_string(std::hash<std::string_view>{}(bytes)) + '\n';
  }

  void add_attention() {
    for (const AttendCase& c : {AttendCase{2, 4, 128, 0, {1500, 513}, 40, 0.2f},
                                {3, 3, 64, 100, {700, 2049}, 50, 0.3f},
                                {1, 4, 256, 512, {1200, 31}, 9, 0.15f}}) {
      build(c);
      const std::string heads = "heads of " + std::to_string(c.dim);
      add(heads + " in splits", attend(1, 1));
      add(heads + " whole", attend(1, 0));
      if (c.dim == 256) continue;
      add(heads + " in tiles", attend(kCudaTile / c.heads_per_kv, 0));
      add(heads + " in tiles and splits", attend(kCudaTile / c.heads_per_kv, 1));
      add(heads + " in few pairs", attend(kCudaFewPairs / c.heads_per_kv, 9));
      for (const CudaKvFormat format :
           {CudaKvFormat::fp8, CudaKvFormat::int8, CudaKvFormat::int4, CudaKvFormat::int2}) {
        const std::string name = heads + ", format " + std::to_string(static_cast<int>(format));
        seal(format, {1, 1});
        for (std::size_t s = 0; s < c.lengths.size(); ++s)
          add(name + " sealed", decoded_[0][s]), add(name + " sealed", decoded_[1][s]);
        add(name + " attended", attend_sealed(true));
      }
    }
  }

  void add_products() {
    for (const auto& [outputs, inputs] : {std::pair{560u, 576u}, {96u, 4096u}, {4096u, 320u}}) {
      void* weights = up(noise(1, std::size_t{outputs} * inputs));
      const auto multiply = [&](std::uint32_t rows, const WeightCodes& codes) {
        void* out = room(std::size_t{rows} * outputs * 4);
        ok(api_->linear(
            {.weights = weights,
             .activations = up(activations(noise(2, std::size_t{rows} * inputs), rows, inputs)),
             .output = out,
             .rows = rows,
             .outputs = outputs,
             .inputs = inputs,
             .kind = LinearOutput::rows_f32,
             .codes = codes},
            stream_));
        add(std::to_string(rows) + " rows by " + std::to_string(outputs) + ", bits " +
                std::to_string(codes.bits),
            down<float>(out, std::size_t{rows} * outputs));
      };
      for (const std::uint32_t rows : {1u, 9u, 32u}) multiply(rows, {});
      for (WeightCodes codes : {WeightCodes{nullptr, 4, CodeForm::symmetric},
                                {nullptr, 4, CodeForm::affine},
                                {nullptr, 8, CodeForm::wide}}) {
        void* data = room(coded_bytes(codes, outputs, inputs));
        ok(api_->random_codes({data, outputs, inputs, codes, 3, 1}, stream_));
        codes.data = data;
        for (const std::uint32_t rows : {1u, 9u, 32u}) multiply(rows, codes);
      }
    }
  }

  std::string bits_;
};

TEST_F(CudaCode, ForAnyGpuGivesTheBitsOfThatForHopper) {
  const int code = open_cuda().value()->info.code;
  const bool child = std::getenv(kChild) != nullptr;
  if (!child && code != 90) GTEST_SKIP() << "this GPU runs the kernels for any";
  add_attention();
  add_products();
  if (child) {
    std::printf("bits of %d\n%send of bits\n", code, bits_.c_str());
    return;
  }
  // The driver then takes no machine code, and compiles what is there for any GPU.
  const std::string command = std::string("CUDA_FORCE_PTX_JIT=1 ") + kChild + "=1 /proc/" +
                              std::to_string(::getpid()) + "/exe --gtest_filter=CudaCode.*";
  std::FILE* other = ::popen(command.c_str(), "r");
  ASSERT_TRUE(other);
  std::string printed;
  char some[4096];
  while (const std::size_t n = std::fread(some, 1, sizeof some, other)) printed.append(some, n);
  ::pclose(other);
  const std::string start = "bits of 80\n";
  const std::size_t from = printed.find(start), to = printed.find("end of bits");
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos) << printed;
  EXPECT_EQ(printed.substr(from + start.size(), to - from - start.size()), bits_);
}

}  // namespace
}  // namespace quire
