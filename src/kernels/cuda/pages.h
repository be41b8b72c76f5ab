// kernels/cuda/pages.h - copies a lane page from the order of bytes that its codecs define
// (format/codec.h) to the GPU's (kernels/cuda/packed.h, sealed.h), and back.
//
// A page means the same on both sides; only the places of its bytes differ. Blocks that move between
// devices, tiers and machines travel in the codecs' order.
//
//   if (!cuda_page_format(*format, shape)) ...           // no such pages on a GPU
//   page_to_cuda(*format, shape, from, to);
#pragma once

#include <optional>

#include "format/format.h"
#include "kernels/cuda/api.h"

namespace quire {

// The GPU's name of a format; nothing where no GPU kernel reads it.
std::optional<CudaKvFormat> cuda_kv_format(const Format& format);
// The same for pages of this shape: pages of kCudaPage tokens, keys and values alike.
std::optional<CudaKvFormat> cuda_page_format(const Format& format, const PageShape& shape);

// Pages of a format and shape that cuda_page_format() knows. Both sides have the same size.
void page_to_cuda(const Format& format, const PageShape& shape, const std::byte* from,
                  std::byte* to);
void page_from_cuda(const Format& format, const PageShape& shape, const std::byte* from,
                    std::byte* to);

}  // namespace quire
