// kernels/cuda/kernels.cuh - what each .cu file gives to the table (kernels/cuda/api.h explains).
#pragma once

#include "kernels/cuda/api.h"

namespace quire::cuda {

int attend_decode(const AttendArgs&, CudaStream);
int attend_prefill(const AttendArgs&, CudaStream);
int attend_latent(const AttendArgs&, CudaStream);
int attend_merge(const AttendArgs&, CudaStream);
int attend_decode_sealed(const AttendArgs&, CudaStream);
int seal(const SealArgs&, CudaStream);

int linear(const LinearArgs&, CudaStream);
int tune_linear(const LinearArgs&, CudaStream);
int linear_stream(const LinearArgs&, CudaStream);   // up to kPackedRowsMax rows
int linear_coded(const LinearArgs&, CudaStream);    // likewise, of codes
int unpack_codes(const LinearArgs&, CudaStream);    // into a.weights, as bf16
int linear_library(const LinearArgs&, CudaStream);  // cuBLASLt, plain rows
int tune_library(const LinearArgs&, CudaStream);

int add_norm(const AddNormArgs&, CudaStream);
int embed(const EmbedArgs&, CudaStream);
int rope_store(const RopeStoreArgs&, CudaStream);
int gate(const GateArgs&, CudaStream);
int gather(const GatherArgs&, CudaStream);
int argmax(const ArgmaxArgs&, CudaStream);
int draw(const DrawArgs&, CudaStream);
int random_bf16(const RandomArgs&, CudaStream);
int random_codes(const RandomCodesArgs&, CudaStream);
int read_all(const void* from, std::uint64_t bytes, CudaStream);

}  // namespace quire::cuda
