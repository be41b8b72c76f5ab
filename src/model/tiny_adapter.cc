#include "model/tiny_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/half.h"
#include "base/json.h"
#include "base/random.h"
#include "model/adapter/adapter_targets.h"
#include "tensor/gguf_writer.h"

namespace quire {
namespace {

constexpr std::string_view kEveryLinear[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                             "gate_proj", "up_proj", "down_proj"};

// A module of one layer: its names, and which linear layers its rows are of, one after the other.
struct TinyModule {
  std::string_view hf, gguf;
  std::vector<Adapted> parts;
};
const TinyModule kTinyModules[] = {
    {"self_attn.q_proj", "attn_q", {Adapted::q}},
    {"self_attn.k_proj", "attn_k", {Adapted::k}},
    {"self_attn.v_proj", "attn_v", {Adapted::v}},
    {"self_attn.o_proj", "attn_output", {Adapted::out}},
    {"self_attn.qkv_proj", "attn_qkv", {Adapted::q, Adapted::k, Adapted::v}},
    {"mlp.gate_proj", "ffn_gate", {Adapted::gate}},
    {"mlp.up_proj", "ffn_up", {Adapted::up}},
    {"mlp.gate_up_proj", "ffn_up", {Adapted::gate, Adapted::up}},
    {"mlp.down_proj", "ffn_down", {Adapted::down}},
};

struct TinyMatrix {
  std::string hf, gguf;  // names of tensors
  std::uint64_t rows, columns;
  std::vector<float> values;
  std::uint32_t interleaved = 0, head = 0;  // of rows in GGUF; 0: none
};

std::string plain_bytes(DType type, std::span<const float> values) {
  std::string out;
  for (const float x : values) {
    const std::uint16_t half = type == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
    out.append(type == DType::f32 ? reinterpret_cast<const char*>(&x)
                                  : reinterpret_cast<const char*>(&half),
               type == DType::f32 ? 4 : 2);
  }
  return out;
}

template <class T>
T number_of(const std::vector<std::pair<std::string_view, T>>& own, std::string_view module,
            T otherwise) {
  for (const auto& [end, value] : own)
    if (module.ends_with(end)) return value;
  return otherwise;
}

std::vector<TinyMatrix> tiny_matrices(const TinyAdapterOptions& o, const ModelConfig& config) {
  std::vector<TinyMatrix> all;
  Random random(mix64(o.seed ^ 0x6c6f7261));
  const auto fill = [&](TinyMatrix& m, double spread) {
    m.values.resize(m.rows * m.columns);
    for (float& x : m.values) x = static_cast<float>((random.unit() * 2 - 1) * spread);
  };
  for (std::uint32_t l = 0; l < config.layers; ++l)
    for (const TinyModule& module : kTinyModules) {
      const bool wanted = std::ranges::any_of(o.modules, [&](std::string_view end) {
        return module.hf.ends_with("." + std::string(end));
      });
      if (!wanted) continue;
      std::uint64_t outputs = 0, inputs = 0;
      for (const Adapted part : module.parts)
        if (const auto shape = adapted_shape(config, l, part)) {
          outputs += shape->first;
          inputs = shape->second;
        }
      if (outputs == 0) continue;
      const std::string name = fmt::format("model.layers.{}.{}", l, module.hf);
      const std::uint32_t rank = number_of(o.ranks, name, o.rank);
      const std::string hf = "base_model.model." + name,
                        gguf = fmt::format("blk.{}.{}.weight", l, module.gguf);
      all.push_back({hf + ".lora_A.weight", gguf + ".lora_a", rank, inputs, {}});
      fill(all.back(), 1 / std::sqrt(static_cast<double>(inputs)));
      all.push_back({hf + ".lora_B.weight", gguf + ".lora_b", outputs, rank, {}});
      fill(all.back(), 0.5 / std::sqrt(static_cast<double>(rank)));
      const bool turned =
          module.parts == std::vector{Adapted::q} || module.parts == std::vector{Adapted::k};
      if (turned && config.paired_in_gguf)
        all.back().interleaved = all.back().head = config.per_layer[l].attn.key_dim;
    }
  return all;
}

}  // namespace

TinyAdapter tiny_adapter(const TinyAdapterOptions& o, const ModelConfig& config) {
  Json ranks = Json::object(), alphas = Json::object();
  for (const auto& [end, rank] : o.ranks) ranks[std::string(end)] = rank;
  for (const auto& [end, alpha] : o.alphas) alphas[std::string(end)] = alpha;
  Json json{{"peft_type", "LORA"},
            {"task_type", "CAUSAL_LM"},
            {"base_model_name_or_path", nullptr},
            {"inference_mode", true},
            {"r", o.rank},
            {"lora_alpha", o.alpha},
            {"use_rslora", o.rslora},
            {"rank_pattern", ranks},
            {"alpha_pattern", alphas},
            {"target_modules", o.modules},
            {"bias", "none"},
            {"modules_to_save", nullptr},
            {"fan_in_fan_out", false}};
  if (!o.invocation.empty()) json["alora_invocation_tokens"] = o.invocation;
  TinyAdapter made{.config = json.dump(), .tensors = {}};
  Json header = Json::object();
  std::string data;
  const char* type = o.type == DType::f32 ? "F32" : o.type == DType::f16 ? "F16" : "BF16";
  for (const TinyMatrix& m : tiny_matrices(o, config)) {
    const std::size_t begin = data.size();
    data += plain_bytes(o.type, m.values);
    header[m.hf] = {
        {"dtype", type}, {"shape", {m.rows, m.columns}}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  made.tensors.assign(reinterpret_cast<const char*>(&length), sizeof length);
  made.tensors += text + data;
  return made;
}

std::string tiny_gguf_adapter(const TinyAdapterOptions& o, const ModelConfig& config) {
  GgufWriter w;
  w.add("general.type", "adapter");
  w.add("adapter.type", "lora");
  w.add("general.architecture", config.architecture);
  w.add_f32("adapter.lora.alpha", o.alpha);
  if (!o.invocation.empty()) {
    const std::vector<std::int32_t> tokens(o.invocation.begin(), o.invocation.end());
    w.add_i32s("adapter.alora.invocation_tokens", tokens);
  }
  for (const TinyMatrix& m : tiny_matrices(o, config)) {
    std::vector<float> values;
    const HeadRows heads{.dim = m.head, .rotated = true, .interleaved = m.interleaved};
    std::vector<std::uint64_t> from(m.rows);
    for (std::uint64_t r = 0; r < m.rows; ++r) from[heads.stored(r, unpadded)] = r;
    for (std::uint64_t r = 0; r < m.rows; ++r)
      values.insert(values.end(),
                    m.values.begin() + static_cast<std::ptrdiff_t>(from[r] * m.columns),
                    m.values.begin() + static_cast<std::ptrdiff_t>((from[r] + 1) * m.columns));
    const std::string bytes = plain_bytes(o.type, values);
    const std::uint64_t shape[] = {m.rows, m.columns};
    w.add_tensor(m.gguf, o.type, shape, std::as_bytes(std::span(bytes)));
  }
  return w.finish();
}

Status write_tiny_adapter(const std::string& folder, const TinyAdapterOptions& options,
                          const ModelConfig& config) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const TinyAdapter made = tiny_adapter(options, config);
  TRY_STATUS(write_file(folder + "/adapter_config.json", made.config));
  return write_file(folder + "/adapter_model.safetensors", made.tensors);
}

std::vector<TinyAdapterCase> tiny_adapter_cases() {
  const std::vector<std::string_view> all(std::begin(kEveryLinear), std::end(kEveryLinear)),
      attention(std::begin(kEveryLinear), std::begin(kEveryLinear) + 4);
  return {
      {"llama-qv", "llama-F32", {.seed = 11}},
      {"llama-all",
       "llama-F32",
       {.modules = all, .rank = 8, .rslora = true, .type = DType::bf16, .seed = 12}},
      {"qwen2-qv", "qwen2-F32", {.rank = 8, .type = DType::f16, .seed = 13}},
      {"qwen2-all",
       "qwen2-F32",
       {.modules = all,
        .rank = 8,
        .ranks = {{"q_proj", 4}, {"layers.1.mlp.down_proj", 2}},
        .alphas = {{"v_proj", 32.0f}},
        .seed = 14}},
      {"mixtral-attention", "mixtral-F32", {.modules = attention, .rank = 4, .seed = 15}},
      {"phi3-fused",
       "phi3-F32",
       {.modules = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}, .rank = 8, .seed = 16}},
      {"llama-late",
       "llama-F32",
       {.modules = all, .rank = 8, .invocation = {251, 251}, .seed = 17}},
  };
}

}  // namespace quire
