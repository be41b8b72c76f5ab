// model/layer_spec.h - what one layer of a model computes, as plain data.
//
// An architecture (model/arch/) makes one spec for each layer from the file's hyperparameters. The
// loader (model/weights.h) reads the tensors that a spec calls for. Pass (CPU) and DeviceModel
// (CUDA) walk it, and the cache's geometry follows from it. After that no code asks for the
// architecture's name. The order of operations is fixed:
//
//   x += post_a(out * attend(heads of qkv * pre_a(x)))
//   x += post_f(down * act(gate * h, up * h)),  h = pre_f(x)
//
// A new operation is a field or a kind here, its tensors in load_layer(), a case in Pass and one in
// DeviceModel, or a line in model/lacks.cc, which refuses it by name.
#pragma once

#include <cstdint>

namespace quire {

struct Norm {
  enum class Kind : std::uint8_t { none, rms };  // rms: x / sqrt(mean(x^2) + epsilon) * weight
  Kind kind = Kind::none;
  float epsilon = 0;
  bool plus_one = false;  // the file has weight - 1 (Hugging Face gemma); the loader adds it

  explicit operator bool() const { return kind != Kind::none; }
};

struct Attention {
  std::uint32_t query_heads = 0, kv_heads = 0;
  std::uint32_t key_dim = 0, value_dim = 0;  // of one head
  float scale = 0;                           // multiplies q.k
  std::uint32_t window = 0;  // how many keys a query sees, its own included; 0: all before it
  std::uint32_t rope = 0;    // index into ModelConfig::ropes
  Norm head_norm = {};       // of each head of q and k, before rotation
  bool qkv_bias = false;
  bool interleaved = false;  // q and k are stored for pairs (2i, 2i + 1); the loader moves rows

  std::uint32_t group() const { return query_heads / kv_heads; }  // query heads of a KV head
  std::uint32_t queries() const { return query_heads * key_dim; }
  std::uint32_t keys() const { return kv_heads * key_dim; }
  std::uint32_t values() const { return kv_heads * value_dim; }
  std::uint32_t qkv() const { return queries() + keys() + values(); }
  std::uint32_t attended() const { return query_heads * value_dim; }
};

enum class Activation : std::uint8_t { silu, gelu };  // silu(g) * u, or gelu_tanh(g) * u

struct FeedForward {
  Activation activation = Activation::silu;
  std::uint32_t width = 0;  // of gate and of up
};

struct LayerSpec {
  Norm pre_a, post_a, pre_f, post_f;  // before and after attention and feed-forward
  Attention attn;
  FeedForward ffn;
};

}  // namespace quire
