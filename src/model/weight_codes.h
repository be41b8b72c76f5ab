// model/weight_codes.h - rows of quantized tensors as a GPU can keep them: codes and scales
// (kernels/cuda/coded.h) that mean exactly the bf16 numbers which decoding the file would give.
//
// Of types with one scale and offset for 32 neighbours: Q4_0, Q4_1, Q4_K and U4 have codes of 4 bits,
// Q5_0, Q5_1, Q5_K, Q8_0, IQ4_NL, IQ4_XS and MXFP4 of 8. Used by model/device_weights.cc.
//
//   const DType types[] = {DType::q4_1};
//   WeightCoder coder(code_kind(types), 576, 1536);
//   if (!coder.add(0, DType::q4_1, row)) ...   // a scale that this kind cannot hold
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/coded.h"
#include "tensor/dtype.h"

namespace quire {

// The kind of codes that can hold rows of all these types; 0 bits if there is none.
WeightCodes code_kind(std::span<const DType> types);

class WeightCoder {
 public:
  WeightCoder(WeightCodes kind, std::uint32_t outputs, std::uint32_t inputs);

  // False: this kind cannot hold the row's numbers. CodeForm::wide holds all finite ones. Rows that
  // are never added are zero.
  [[nodiscard]] bool add(std::uint32_t output, DType type, const std::byte* row);

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  bool put_pair(float scale, float offset, std::byte* to) const;

  const WeightCodes kind_;
  const std::uint32_t inputs_;
  std::vector<std::byte> bytes_;
};

}  // namespace quire
