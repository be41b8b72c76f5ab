#include "kernels/linear.h"

#include "base/check.h"
#include "kernels/linear_layout.h"

namespace quire {

bool uses_quantized_activations(DType type) { return linear_layout(type).code_bits != 0; }

bool uses_half_sums(DType type) { return linear_layout(type).group == 16; }

std::size_t packed_bytes(DType type, std::uint32_t outputs, std::uint32_t inputs) {
  const std::size_t panels = (std::size_t{outputs} + kPanelOutputs - 1) / kPanelOutputs;
  return panels * panel_stride(type, inputs);
}

std::size_t activation_bytes(Activations mode, std::uint32_t rows, std::uint32_t inputs) {
  CHECK(inputs % kActivationBlock == 0);
  return std::size_t{(rows + kRowGroup - 1) / kRowGroup} * (inputs / kActivationBlock) *
         cell_bytes(mode);
}

const LinearKernels& linear_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return kLinearScalar;
    case Isa::avx2:
      return kLinearAvx2;
    case Isa::avx512:
      return kLinearAvx512;
    case Isa::vnni:
    case Isa::bf16:
      return kLinearVnni;
  }
  return kLinearScalar;
}

}  // namespace quire
