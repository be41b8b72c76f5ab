#include "kernels/vector.h"

namespace quire {

const VectorKernels& vector_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return kVectorScalar;
    case Isa::avx2:
      return kVectorAvx2;
    case Isa::avx512:
    case Isa::vnni:
    case Isa::bf16:
      return kVectorAvx512;
  }
  return kVectorScalar;
}

}  // namespace quire
