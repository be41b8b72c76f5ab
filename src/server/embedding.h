// server/embedding.h - from a prompt's pooled states (Done::pooled) to the embedding that a client gets.
// For the dialects that have embeddings.
//
//   const std::vector<float> e = shape_embedding(info.pooled, asked.embedding);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/generation_request.h"

namespace quire {

// Keeps the first `dimensions` numbers and scales them to length 1, where that is asked for. Sums go
// from left to right in double, so the bits are always the same.
std::vector<float> shape_embedding(std::span<const float> pooled, const EmbeddingRequest& asked);

// Why the embeddings that are asked for are more numbers than an answer may hold; none: they are not. A
// number as JSON takes five times the memory of its base64.
std::optional<std::string> too_many_numbers(const GenerationRequest& asked, std::uint32_t hidden,
                                            bool base64);

// Base64 of little-endian f32.
std::string base64_floats(std::span<const float> values);

}  // namespace quire
