#include "model/quantization.h"

#include <fmt/format.h>

#include "base/json.h"
#include "model/hyperparameters.h"
#include "tensor/printable.h"

namespace quire {
namespace {

using Method = Quantization::Method;

constexpr std::uint64_t kBlockMax = 1 << 20;

Error lacking(const Hyperparameters& from, Key key, std::string_view value,
              std::string_view there_is) {
  return from.bad(key, Code::unsupported,
                  fmt::format("is {}; supported: {}", printable(value), there_is));
}

// That a number or a word is the one that Quire reads.
Status is_number(const Hyperparameters& from, Key key, std::uint64_t wanted) {
  TRY(const std::uint64_t is, from.unsigned_or(key, wanted));
  if (is == wanted) return {};
  return lacking(from, key, std::to_string(is), std::to_string(wanted));
}
Status is_word(const Hyperparameters& from, Key key,
               std::initializer_list<std::string_view> known) {
  TRY(const std::string is, from.string_or(key, std::string(*known.begin())));
  std::string all;
  for (const std::string_view word : known) {
    if (is == word) return {};
    all += all.empty() ? word : ", " + std::string(word);
  }
  return lacking(from, key, is, all);
}

Status fill_fp8(const Hyperparameters& from, Quantization& q) {
  q.method = Method::fp8;
  TRY_STATUS(is_word(from, {"", "fmt"}, {"e4m3", "float8_e4m3fn"}));
  constexpr Key kBlock{"", "weight_block_size"};
  const Json* block = from.json_at(kBlock.hf);
  if (block == nullptr) return {};
  std::uint32_t* const sizes[] = {&q.block_rows, &q.block_columns};
  for (std::size_t i = 0; i < 2; ++i) {
    if (!block->is_array() || block->size() != 2 || !(*block)[i].is_number_unsigned() ||
        (*block)[i].get<std::uint64_t>() == 0 || (*block)[i].get<std::uint64_t>() > kBlockMax)
      return from.bad(kBlock, Code::corrupt, "is not a list of two sizes");
    *sizes[i] = (*block)[i].get<std::uint32_t>();
  }
  return {};
}

Status fill_awq(const Hyperparameters& from, Quantization& q) {
  q.method = Method::awq;
  TRY_STATUS(is_word(from, {"", "version"}, {"gemm", "GEMM"}));
  return is_number(from, {"", "bits"}, 4);
}

Status fill_gptq(const Hyperparameters& from, Quantization& q) {
  q.method = Method::gptq;
  constexpr Key kFormat{"", "checkpoint_format"};
  TRY_STATUS(is_word(from, kFormat, {"gptq", "gptq_v2"}));
  TRY(const std::string format, from.string_or(kFormat, "gptq"));
  q.zeros_less_one = format == "gptq";
  return is_number(from, {"", "bits"}, 4);
}

Status fill_bitsandbytes(const Hyperparameters& from, Quantization& q) {
  q.method = Method::nf4;
  constexpr Key kEight{"", "load_in_8bit"};
  TRY(const bool eight, from.bool_or(kEight, false));
  if (eight) return lacking(from, kEight, "true", "NF4");
  return is_word(from, {"", "bnb_4bit_quant_type"}, {"nf4"});
}

Status fill_mxfp4(const Hyperparameters&, Quantization& q) {
  q.method = Method::mxfp4;
  return {};
}

// What all groups of compressed-tensors must say of their weights.
Status check_group(const Json& group, const std::string& file, std::uint64_t bits,
                   std::string_view type) {
  if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object())
    return Error{Code::corrupt, file + ": key 'config_groups' has a group without 'weights'"};
  const Hyperparameters weights(group["weights"], file);
  TRY_STATUS(is_number(weights, {"", "num_bits"}, bits));
  return is_word(weights, {"", "type"}, {type});
}

Status fill_compressed(const Hyperparameters& from, const std::string& file, Quantization& q) {
  constexpr Key kFormat{"", "format"};
  TRY(const std::string format, from.string_of(kFormat));
  std::uint64_t bits = 4;
  std::string_view type = "float";
  if (format == "float-quantized") {
    q.method = Method::fp8;
    bits = 8;
  } else if (format == "pack-quantized") {
    q.method = Method::packed;
    type = "int";
  } else if (format == "mxfp4-pack-quantized") {
    q.method = Method::mxfp4_packed;
  } else {
    return lacking(from, kFormat, format, "float-quantized, pack-quantized, mxfp4-pack-quantized");
  }
  q.name += " " + format;
  if (const Json* sparsity = from.json_at("sparsity_config.format");
      sparsity != nullptr && *sparsity != "dense")
    return lacking(from, {"", "sparsity_config.format"}, sparsity->dump(), "dense");
  const Json* groups = from.json_at("config_groups");
  if (groups == nullptr || !groups->is_object()) return {};
  for (const auto& [name, group] : groups->items()) {
    TRY_STATUS(check_group(group, file, bits, type));
    const Hyperparameters weights(group["weights"], file);
    const Json* block = weights.json_at("block_structure");
    if (q.method != Method::fp8 || block == nullptr) continue;
    Json sizes{{"weight_block_size", *block}};
    TRY_STATUS(fill_fp8(Hyperparameters(sizes, file), q));
  }
  return {};
}

struct MethodName {
  std::string_view name;
  Status (*fill)(const Hyperparameters& from, Quantization& q);
};
constexpr std::string_view kCompressed = "compressed-tensors";
constexpr MethodName kMethods[] = {{"fp8", fill_fp8},     {"fbgemm_fp8", fill_fp8},
                                   {"awq", fill_awq},     {"gptq", fill_gptq},
                                   {"mxfp4", fill_mxfp4}, {"bitsandbytes", fill_bitsandbytes}};

}  // namespace

Result<Quantization> quantization_from_hf(std::string_view config_json,
                                          const std::string& file_name) {
  Result<Json> parsed = parse_json(config_json);
  if (!parsed.ok()) return Error{Code::corrupt, file_name + ": " + parsed.error().message};
  const Hyperparameters whole(parsed.value(), file_name);
  const Json* config = nullptr;
  for (const char* at : {"quantization_config", "compression_config",
                         "text_config.quantization_config", "text_config.compression_config"})
    if (config == nullptr) config = whole.json_at(at);
  Quantization q;
  if (config == nullptr) return q;
  if (!config->is_object())
    return Error{Code::corrupt, file_name + ": key 'quantization_config' is no object"};
  const Hyperparameters from(*config, file_name);
  constexpr Key kMethod{"", "quant_method"};
  TRY(q.name, from.string_of(kMethod));
  if (q.name == kCompressed) {
    TRY_STATUS(fill_compressed(from, file_name, q));
    return q;
  }
  std::string known(kCompressed);
  for (const MethodName& method : kMethods) {
    known.append(", ").append(method.name);
    if (q.name != method.name) continue;
    TRY_STATUS(method.fill(from, q));
    return q;
  }
  return lacking(from, kMethod, q.name, known);
}

}  // namespace quire
