// model/adapter/adapter_file.h - a LoRA adapter as its file has it: pairs of small matrices, by the
// name of the linear layer that each pair changes.
//
// Two forms are read: a PEFT folder (adapter_config.json and adapter_model.safetensors), and a GGUF
// file of type adapter. Files are strangers' data. They are read into memory once, and what is
// computed, and named in keys, is exactly what was read. What an adapter may have and Quire does
// not compute (DoRA, biases, whole modules, embeddings) is refused by name.
//
//   TRY(const AdapterFile file, read_adapter(path, 1 << 30));
//   for (const AdapterPair& pair : file.pairs) pack(pair.module, pair.a, pair.b);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "tensor/tensor.h"

namespace quire {

// y += scale * B A h. A is [rank, inputs], B is [outputs, rank]; both f32, f16 or bf16.
struct AdapterPair {
  std::string module;  // "model.layers.0.self_attn.q_proj", in GGUF "blk.0.attn_q"
  TensorView a, b;
  float scale = 0;
};

struct AdapterFile {
  std::string name;                 // its path
  bool is_gguf = false;             // else PEFT: names and orders of rows are Hugging Face's
  std::string architecture;         // of the model it is for, as GGUF calls it; PEFT does not say
  std::vector<AdapterPair> pairs;   // by module
  std::vector<TokenId> invocation;  // aLoRA: it begins where these tokens come last
  std::array<std::byte, 32> digest{};                     // of all bytes that were read
  std::vector<std::shared_ptr<const std::string>> bytes;  // pairs point into them
};

inline constexpr std::uint64_t kAdapterRankMax = 4096;
inline constexpr std::size_t kInvocationTokensMax = 1024;

// The files of an adapter: those that read_adapter() would open.
std::vector<std::string> adapter_files(const std::string& path);

// At most `bytes_max` bytes are read.
Result<AdapterFile> read_adapter(const std::string& path, std::uint64_t bytes_max);

// The same for bytes that the caller keeps; errors show `name` instead of a path.
Result<AdapterFile> parse_peft(std::string_view config_json, std::span<const std::byte> tensors,
                               const std::string& name);
Result<AdapterFile> parse_gguf_adapter(std::span<const std::byte> bytes, const std::string& name);

// Whether a key of PEFT's rank_pattern or alpha_pattern means this module. PEFT takes keys for
// regular expressions; those that are more than a name with dots are an error.
Result<bool> pattern_means(std::string_view key, std::string_view module);

// For the two readers: pairs up matrices by module, and checks that they fit each other.
class AdapterPairs {
 public:
  enum class Side : std::uint8_t { a, b };
  explicit AdapterPairs(const std::string& name) : name_(name) {}
  Status add(std::string module, Side side, const TensorView& tensor);
  Result<std::vector<AdapterPair>> finish();

 private:
  const std::string& name_;
  std::vector<AdapterPair> pairs_;
};
// An error if these are no tokens at which an adapter may begin.
Status check_invocation(std::span<const std::int64_t> tokens, const std::string& name);

}  // namespace quire
