// Any bytes are an adapter that can be packed for a model, or an error. Bytes that begin with 'G' are
// a GGUF file, others a configuration, a line feed and tensors.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/adapter/adapter.h"
#include "model/adapter/adapter_file.h"

namespace {

const quire::ModelConfig& fuzzed_config() {
  static const quire::ModelConfig config = [] {
    auto made = quire::config_from_hf(
        R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
            "vocab_size": 260, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096})",
        "config");
    CHECK(made.ok());
    return made.value();
  }();
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = std::min(all.find('\n'), all.size());
  const std::string_view rest = all.substr(std::min(cut + 1, all.size()));
  const bool gguf = all.starts_with('G');
  const auto file = gguf ? parse_gguf_adapter(std::as_bytes(std::span(all)), "fuzz")
                         : parse_peft(all.substr(0, cut), std::as_bytes(std::span(rest)), "fuzz");
  if (!file.ok()) {
    CHECK(file.error().message.starts_with("fuzz: "));
    return 0;
  }
  CHECK(!file.value().pairs.empty());
  const auto packed = Adapter::pack(file.value(), fuzzed_config(), false, 1 << 26);
  if (!packed.ok()) {
    CHECK(packed.error().message.starts_with("fuzz: "));
    return 0;
  }
  const auto set = AdapterSet::make({{packed.value()}});
  CHECK(set.ok() && set.value()->digest().size() == 64);
  return 0;
}
