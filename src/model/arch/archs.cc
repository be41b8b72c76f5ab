#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kLlama,    &kGemma2,  &kGemma3,     &kQwen2,  &kQwen2Moe, &kQwen3,
    &kQwen3Moe, &kSmolLm3, &kGranite,    &kPhi3,   &kOlmo2,    &kGlm4,
    &kGlm4Moe,  &kGpt2,    &kStarCoder2, &kFalcon, &kGptOss,   &kDeepSeek2};

// Tensors that every model has, besides those of its layers.
constexpr TensorEntry kModelTensors[] = {
    {"token_embd.weight", "embed_tokens.weight", extent::hidden, extent::vocabulary},
    {"output_norm.weight", "norm.weight", extent::hidden},
    {"output.weight", "lm_head.weight", extent::hidden, extent::vocabulary},
    {"output_norm.bias", "norm.bias", extent::output_bias},
    {"position_embd.weight", "embed_positions.weight", extent::hidden, extent::positions},
};

// Any architecture's projections may be one tensor.
constexpr TensorPiece kPieces[] = {
    {"blk.N.attn_q.weight", "blk.N.attn_qkv.weight", "layers.N.self_attn.qkv_proj.weight",
     extent::none, extent::qkv},
    {"blk.N.attn_k.weight", "blk.N.attn_qkv.weight", "layers.N.self_attn.qkv_proj.weight",
     extent::queries, extent::qkv},
    {"blk.N.attn_v.weight", "blk.N.attn_qkv.weight", "layers.N.self_attn.qkv_proj.weight",
     extent::before_values, extent::qkv},
    {"blk.N.attn_q.bias", "blk.N.attn_qkv.bias", "layers.N.self_attn.qkv_proj.bias", extent::none,
     extent::qkv},
    {"blk.N.attn_k.bias", "blk.N.attn_qkv.bias", "layers.N.self_attn.qkv_proj.bias",
     extent::queries, extent::qkv},
    {"blk.N.attn_v.bias", "blk.N.attn_qkv.bias", "layers.N.self_attn.qkv_proj.bias",
     extent::before_values, extent::qkv},
    {"blk.N.ffn_gate.weight", "blk.N.ffn_up.weight", "layers.N.mlp.gate_up_proj.weight",
     extent::none, extent::gate_up},
    {"blk.N.ffn_up.weight", "blk.N.ffn_up.weight", "layers.N.mlp.gate_up_proj.weight",
     extent::inner, extent::gate_up},
    // All experts of a layer, gate and up apart or together.
    {"blk.N.ffn_gate.E.weight", "blk.N.ffn_gate_exps.weight", "", extent::none, extent::all_inner,
     false, nullptr, extent::expert_inner},
    {"blk.N.ffn_up.E.weight", "blk.N.ffn_up_exps.weight", "", extent::none, extent::all_inner,
     false, nullptr, extent::expert_inner},
    {"blk.N.ffn_gate.E.weight", "blk.N.ffn_gate_up_exps.weight",
     "layers.N.mlp.experts.gate_up_proj", extent::none, extent::all_gate_up, false, nullptr,
     extent::expert_gate_up},
    {"blk.N.ffn_up.E.weight", "blk.N.ffn_gate_up_exps.weight", "layers.N.mlp.experts.gate_up_proj",
     extent::expert_inner, extent::all_gate_up, false, nullptr, extent::expert_gate_up},
    {"blk.N.ffn_down.E.weight", "blk.N.ffn_down_exps.weight", "layers.N.mlp.experts.down_proj",
     extent::none, extent::all_hidden, false, nullptr, extent::hidden},
    {"blk.N.ffn_gate.E.bias", "blk.N.ffn_gate_exps.bias", "", extent::none, extent::all_inner,
     false, nullptr, extent::expert_inner},
    {"blk.N.ffn_up.E.bias", "blk.N.ffn_up_exps.bias", "", extent::none, extent::all_inner, false,
     nullptr, extent::expert_inner},
    {"blk.N.ffn_down.E.bias", "blk.N.ffn_down_exps.bias", "layers.N.mlp.experts.down_proj_bias",
     extent::none, extent::all_hidden, false, nullptr, extent::hidden},
};

constexpr std::string_view kLayerMark = ".N.", kExpertMark = ".E.";

std::string numbered(std::string_view pattern, std::string_view mark, std::uint32_t number) {
  const std::size_t at = pattern.find(mark);
  if (at == pattern.npos) return std::string(pattern);
  return fmt::format("{}.{}.{}", pattern.substr(0, at), number, pattern.substr(at + mark.size()));
}

std::string spelled(std::string_view pattern, NamedTensor tensor) {
  return numbered(numbered(pattern, kLayerMark, tensor.layer), kExpertMark, tensor.expert);
}

// The number after the first dot that one follows; its place is marked.
std::uint32_t take_number(std::string& name, std::string_view mark) {
  std::uint32_t number = 0;
  for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + dot + 1, end, number);
    if (error != std::errc() || rest == end || *rest != '.') continue;
    name.replace(dot, static_cast<std::size_t>(rest - name.data()) + 1 - dot, mark);
    return number;
  }
  return 0;
}

}  // namespace

std::span<const Architecture* const> architectures() { return kArchitectures; }

std::optional<NamedTensor> find_tensor(const ModelConfig& config, std::string_view name) {
  std::string pattern(name);
  NamedTensor found{};
  if (name.starts_with("blk.")) {
    found.layer = take_number(pattern, kLayerMark);
    found.expert = take_number(pattern, kExpertMark);
  }
  if (found.layer >= config.layers) return {};
  for (const std::span<const TensorEntry> rows :
       {config.tensors, std::span<const TensorEntry>(kModelTensors)}) {
    const auto at = std::ranges::find(rows, pattern, &TensorEntry::name);
    if (at == rows.end()) continue;
    found.entry = &*at;
    if (found.expert != 0 && found.expert >= config.per_layer[found.layer].ffn.experts.count)
      return {};
    for (const std::uint64_t extent : tensor_shape(config, found))
      if (extent == 0) return {};
    return found;
  }
  return {};
}

std::vector<std::uint64_t> tensor_shape(const ModelConfig& config, NamedTensor tensor) {
  const TensorEntry* row = tensor.entry;
  const LayerSpec& layer = config.per_layer[tensor.layer];
  if (row->rows == nullptr) return {row->columns(config, layer)};
  return {row->rows(config, layer), row->columns(config, layer)};
}

std::string stored_name(NamedTensor tensor, bool gguf) {
  const TensorEntry& row = *tensor.entry;
  return spelled(!gguf ? row.hf : row.gguf.empty() ? row.name : row.gguf, tensor);
}

std::vector<NamedPiece> find_pieces(const ModelConfig& config, NamedTensor tensor, bool gguf) {
  std::vector<NamedPiece> found;
  for (const bool is_common : {false, true})
    for (const TensorPiece& piece :
         is_common ? std::span<const TensorPiece>(kPieces) : config.pieces)
      if (const std::string_view whole = gguf ? piece.gguf : piece.hf;
          piece.name == tensor.entry->name && !whole.empty())
        found.push_back({&piece, spelled(whole, tensor), is_common});
  return found;
}

std::vector<std::string> tensor_names(const ModelConfig& c) {
  std::vector<std::string> names;
  const auto add = [&](std::string name) {
    if (find_tensor(c, name)) names.push_back(std::move(name));
  };
  for (const TensorEntry& row : kModelTensors)
    if (row.name != "output.weight" || !c.tied_head) add(std::string(row.name));
  for (std::uint32_t l = 0; l < c.layers; ++l)
    for (const TensorEntry& row : c.tensors) {
      if (row.name.find(kLayerMark) == row.name.npos) continue;
      const bool by_expert = row.name.find(kExpertMark) != row.name.npos;
      const std::uint32_t experts = by_expert ? c.per_layer[l].ffn.experts.count : 1;
      for (std::uint32_t e = 0; e < experts; ++e) add(spelled(row.name, {&row, l, e}));
    }
  return names;
}

}  // namespace quire
