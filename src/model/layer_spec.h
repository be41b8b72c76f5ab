// model/layer_spec.h - what one layer of a model computes, as plain data.
//
// An architecture (model/arch/) makes one spec for each layer from the file's hyperparameters. The
// loader (model/weights.h) reads the tensors that a spec calls for. Pass (CPU) and DeviceModel
// (CUDA) walk it, and the cache's geometry follows from it. After that no code asks for the
// architecture's name. The order of operations is fixed:
//
//   x += post_a(residual * (out * attend(heads of qkv * pre_a(x))))
//   x += post_f(residual * (down * act(gate * h, up * h))),  h = pre_f(x)
//
// In a parallel layer h is made of the x before attention was added.
//
// A new operation is a field or a kind here, its tensors in load_layer(), a case in Pass and one in
// DeviceModel, or a line in model/lacks.cc, which refuses it by name.
#pragma once

#include <cstdint>

namespace quire {

struct Norm {
  enum class Kind : std::uint8_t {
    none,
    rms,    // x / sqrt(mean(x^2) + epsilon) * weight
    layer,  // (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * weight + bias
  };
  Kind kind = Kind::none;
  float epsilon = 0;
  bool plus_one = false;  // the file has weight - 1 (Hugging Face gemma); the loader adds it

  explicit operator bool() const { return kind != Kind::none; }
};

// Latent attention (MLA), with h the normed row and head j of the queries:
//   c = norm(the first value_dim numbers of kv_a * h),  k = rotated(the other key_dim)   cached: c, k
//   q_j = plain_dim numbers, then key_dim that are rotated: of q * h, or of q_b * norm(q_a * h)
//   score = (k_b_j * q_j.plain) . c + q_j.rotated . k,   result_j = v_b_j * sum of weights * c
// So k_b and v_b are applied to queries and results, never to what is cached ("absorbed"). Prompts are
// read in this form, too, because it decides the bits of all layers above.
struct Latent {
  std::uint32_t query_rank = 0;  // rows of q_a; 0: there is only q
  std::uint32_t plain_dim = 0;   // 0: ordinary attention
  std::uint32_t out_dim = 0;     // of result_j
  Norm norm = {};                // of c, and of q_a * h

  explicit operator bool() const { return plain_dim != 0; }
};

struct Attention {
  std::uint32_t query_heads = 0, kv_heads = 0;
  std::uint32_t key_dim = 0, value_dim = 0;  // of one head, as the cache has them
  float scale = 0;                           // multiplies q.k
  float softcap = 0;         // then a score s becomes softcap * tanh(s / softcap); 0: it stays
  std::uint32_t window = 0;  // how many keys a query sees, its own included; 0: all before it
  std::uint32_t rope = 0;    // index into ModelConfig::ropes
  float rotated_scale = 1;   // multiplies the rotated dimensions of q, once more
  Norm head_norm = {};       // of each head of q and k, before rotation
  bool norm_of_all = false;  // head_norm is of all heads of q together, and of all of k
  bool qkv_bias = false, out_bias = false;
  bool sinks = false;  // a learned score for each query head, which has no value
  // So many first rows of a head of q and k are stored for pairs (2i, 2i + 1); the loader moves them.
  std::uint32_t interleaved = 0;  // latent attention: of the rotated part
  Latent latent = {};

  std::uint32_t group() const { return query_heads / kv_heads; }  // query heads of a KV head
  // A query head as attention reads it, and all of them.
  std::uint32_t query_dim() const { return key_dim + (latent ? value_dim : 0); }
  std::uint32_t queries() const { return query_heads * query_dim(); }
  std::uint32_t keys() const { return kv_heads * key_dim; }
  std::uint32_t values() const { return kv_heads * value_dim; }
  std::uint32_t qkv() const { return queries() + keys() + values(); }
  std::uint32_t attended() const { return query_heads * (latent ? latent.out_dim : value_dim); }
  // Of latent attention: a query head as it is projected, what q or q_a makes, and kv_a beside it.
  std::uint32_t projected_dim() const { return latent.plain_dim + key_dim; }
  std::uint32_t first_queries() const {
    return latent.query_rank != 0 ? latent.query_rank : query_heads * projected_dim();
  }
  std::uint32_t projected() const { return first_queries() + value_dim + key_dim; }
};

enum class Activation : std::uint8_t {
  silu,      // silu(g) * u
  gelu,      // gelu_tanh(g) * u; without a gate gelu_tanh(u)
  gelu_erf,  // without a gate: gelu(u)
  clamped,  // gpt-oss: (u + 1) * g * sigmoid(1.702 * g), both at most ffn.limit and u at least -limit
};

// Many feed-forwards, of which a router gives each row a few; and one more that all rows have.
struct Experts {
  enum class Scores : std::uint8_t {
    softmax,  // over all experts
    chosen,   // over those that were chosen by their scores
    sigmoid,  // of each
  };
  std::uint32_t count = 0;         // 0: there are none
  std::uint32_t used = 0;          // by a row
  std::uint32_t width = 0;         // of gate and of up
  std::uint32_t shared_width = 0;  // of the one that all rows have; 0: none
  std::uint32_t groups = 1;        // of experts, side by side
  std::uint32_t groups_used = 1;   // a row's experts are of these
  Scores scores = Scores::softmax;
  bool renormalize = false;  // weights are divided by their sum
  float scale = 1;           // then multiplied
  bool router_bias = false;  // added to scores
  bool choice_bias = false;  // added only where experts are chosen
  bool shared_gate = false;  // the shared one is times sigmoid(a product of its own)
  bool bias = false;         // on gate, up and down

  explicit operator bool() const { return count != 0; }
};

// One feed-forward, or experts.
struct FeedForward {
  Activation activation = Activation::silu;
  std::uint32_t width = 0;  // of gate and of up; 0: experts
  bool gated = true;        // false: there is no gate
  bool bias = false;        // on gate, up and down
  float limit = 0;
  Experts experts = {};
};

struct LayerSpec {
  Norm pre_a, post_a, pre_f, post_f;  // before and after attention and feed-forward
  Attention attn;
  FeedForward ffn;
  float residual = 1;
  bool parallel = false;
};

}  // namespace quire
