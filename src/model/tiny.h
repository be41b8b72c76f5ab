// model/tiny.h - writes tiny random models as GGUF files, for unit tests, the simulator and
// fuzzers.
//
// Same options, same bytes. The vocabulary is byte-level: token b is byte b, then kTinySpecials. It
// has no merges.
//
//   const TinyOptions options{.architecture = "gemma3", .type = DType::q8_0, .layers = 7};
//   TRY_STATUS(write_tiny_gguf("tiny.gguf", options));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tensor/dtype.h"

namespace quire {

struct TinyOptions {
  std::string_view architecture = "llama";  // any that model/arch has
  DType type = DType::f32;                  // of matrices: f32, f16, bf16, q8_0 or q4_1
  std::uint32_t layers = 2, hidden = 64, feed_forward = 96;
  std::uint32_t query_heads = 4, kv_heads = 2, head_dim = 16;
  std::uint32_t context = 4096;
  std::uint32_t window = 0;  // gemma2 and gemma3 need one: 0 means 32 there
  bool tied_head = true;
  float rope_linear = 1;        // divides positions
  bool rope_factors = false;    // divides each frequency by a number of its own, as Llama 3 does
  float rope_yarn = 1;          // YaRN's factor, beyond 64 tokens
  std::uint32_t rope_long = 0;  // LongRoPE: beyond so many tokens the long factors
  // Of a head that are rotated; 0: all (glm4: half of them, deepseek2: 16).
  std::uint32_t rope_dimensions = 0;
  std::uint32_t experts = 0;  // of which a row uses two; 0: 6 where an architecture needs them
  // Of deepseek2: queries are made from so many numbers (0: at once); experts as V3 chooses them; keys
  // and values of the latent rows as one tensor, as older files have them.
  std::uint32_t query_rank = 0;
  bool sigmoids = false, one_kv_b = false;
  std::uint64_t seed = 1;
  // For tests of damaged files: the embedding of token 7 is NaN. In f32, with a head of its own.
  bool broken = false;
};

inline constexpr std::string_view kTinySpecials[] = {"<|bos|>", "<|eos|>", "<|user|>",
                                                     "<|assistant|>"};
inline constexpr std::uint32_t kTinyVocabulary = 256 + 4;

Result<std::string> tiny_gguf(const TinyOptions& options);  // the file's bytes
Status write_tiny_gguf(const std::string& path, const TinyOptions& options);

}  // namespace quire
