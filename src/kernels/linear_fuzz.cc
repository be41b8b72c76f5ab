// Any shape, any weight bytes, any activations, any cut: every instruction set gives the
// reference's bits.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/linear_samples.h"

namespace quire {
namespace {

// Takes numbers off the front; zeros when there is nothing left.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint32_t below(std::uint32_t n) {
    const std::uint32_t low = byte();
    return (low | byte() << 8) % n;
  }
  std::vector<std::byte> bytes(std::size_t n) {
    std::vector<std::byte> taken(std::min(n, size_ - at_));
    for (std::byte& b : taken) b = static_cast<std::byte>(data_[at_++]);
    return taken;
  }

 private:
  std::uint32_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

bool same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  Input in(data, size);
  const DType type = kLinearTypes[in.below(std::size(kLinearTypes))];
  const Activations mode = in.below(2) != 0 ? Activations::int16 : Activations::int8;
  const std::uint32_t block = dtype_info(type).block_elements;
  const std::uint32_t step =
      uses_quantized_activations(type) ? std::max(kActivationBlock, block) : block;
  const std::uint32_t inputs = step * (1 + in.below(step == 256 ? 2 : 4));
  const std::uint32_t outputs = 1 + in.below(70), rows = 1 + in.below(19);
  const std::uint32_t row_cut = in.below(rows + 1);
  const SampleMatrix w(type, outputs, inputs, in.bytes(2 * dtype_info(type).block_bytes + 1));
  const std::uint32_t panels = w.packed.padded_outputs() / kPanelOutputs;
  const std::uint32_t column_cut = kPanelOutputs * in.below(panels + 1);

  std::vector<float> floats(std::size_t{rows} * inputs, 0.5f);
  const std::vector<std::byte> raw = in.bytes(floats.size() * sizeof(float));
  if (!raw.empty()) std::memcpy(floats.data(), raw.data(), raw.size());

  std::vector<float> want(std::size_t{rows} * outputs), got(want.size());
  for (const Isa isa : kIsas) {
    if (!cpu_has(isa)) continue;
    const LinearKernels& kernels = linear_kernels(isa);
    const SampleRows x(mode, rows, inputs, kernels, floats);
    const auto multiply = [&](std::uint32_t r0, std::uint32_t r1, std::uint32_t c0,
                              std::uint32_t c1, std::vector<float>& out) {
      kernels.multiply(w.packed, x.rows, r0, r1, c0, c1, out.data(), outputs, nullptr);
    };
    if (isa == Isa::scalar) {
      multiply(0, rows, 0, w.packed.padded_outputs(), want);
      continue;
    }
    multiply(0, row_cut, 0, column_cut, got);
    multiply(row_cut, rows, 0, column_cut, got);
    multiply(0, rows, column_cut, w.packed.padded_outputs(), got);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same(got[i], want[i]));
  }
  return 0;
}
