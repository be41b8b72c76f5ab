// model/weights.h - the weights that a model's layers call for, and the one loader that reads them.
//
// A *sink* turns tensors into the matrices and vectors of its device: model/packed_weights.cc has
// one for a CPU, model/device_weights.cc has one for a GPU and one that only counts bytes. The
// loader walks the layers' specs and calls the sink for every matrix and vector:
//
//   TRY_STATUS(load_weights(sink, source.config(), w));
//
// A sink has these functions, each of which fills its last argument:
//   matrix(MatrixParts, Matrix& or Heads& or Pair& or Table&)
//   tied_head(MatrixParts, Matrix&)             the embedding, once more
//   vector(parts, plus_one, Vector&)            vectors one after the other
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/weights_source.h"

namespace quire {

// The width of a head of `dim` in memory. The padding is zero.
using HeadWidth = std::uint32_t (*)(std::uint32_t dim);
inline std::uint32_t unpadded(std::uint32_t dim) { return dim; }

inline constexpr std::uint64_t kPadding = ~std::uint64_t{0};

struct HeadRows {
  std::uint32_t dim = 0;          // of a head; 0: rows that are not of heads
  bool rotated = false;           // in pairs (i, i + dim / 2): each half is padded by itself
  std::uint32_t interleaved = 0;  // so many first rows are stored for pairs (2i, 2i + 1)
  std::uint32_t before = 0;       // but these come before them; such heads are not padded

  std::uint64_t padded(std::uint64_t rows, HeadWidth width) const {
    return dim && before == 0 ? rows / dim * width(dim) : rows;
  }
  // The stored row of a row of padded heads, or kPadding.
  std::uint64_t stored(std::uint64_t row, HeadWidth width) const;
};

struct TensorPart {
  std::string name;
  HeadRows heads = {};
};

// A matrix of the rows of some tensors.
struct MatrixParts {
  std::vector<TensorPart> parts;
  bool in_turn = false;   // a few rows of each in turn, as many as the kernels like
  bool plain = false;     // what it multiplies is never encoded
  HeadRows columns = {};  // what its inputs are
};

// Where the rows of a matrix come from: one tensor after the other, or `turn` rows of each in turn.
struct StackedRows {
  struct Row {
    std::size_t tensor;
    std::uint64_t row;  // of the tensor, or kPadding
  };
  std::vector<TensorPart> parts;
  std::vector<std::uint64_t> ends;  // by part, padded
  std::uint32_t rows = 0, columns = 0, turn = 0;
  HeadWidth width = unpadded;

  static Result<StackedRows> make(const ModelSource& source, std::vector<TensorPart> parts,
                                  std::uint32_t turn, HeadWidth width = unpadded);
  Row at(std::uint64_t row) const;
};

Result<std::vector<TensorView>> tensors_of(const ModelSource& source,
                                           const std::vector<TensorPart>& parts);

// Vectors one after the other, as f32, padded like rows. `plus_one`: the file stores weight - 1.
Result<std::vector<float>> read_vectors(const ModelSource& source,
                                        const std::vector<TensorPart>& parts, bool plus_one,
                                        HeadWidth width = unpadded);

template <class Matrix, class Vector, class Heads, class Pair>
struct LayerWeightsIn {
  Heads qkv;  // query heads, then key heads, then value heads
  Matrix out, down;
  Pair gate_up;  // or up alone
  // Latent attention: qkv is q or q_a, then kv_a; q_norm and k_norm are those of q_a and of the latent.
  Matrix q_b, k_b, v_b;  // the last two head by head
  // Empty where the spec has none of them. A norm's bias follows its weight, up's bias that of gate.
  Vector qkv_bias, q_norm, k_norm, pre_a, post_a, pre_f, post_f;
  Vector out_bias, gate_up_bias, down_bias, sinks;
  // Of layers with experts: by expert, the biases one expert after the other.
  Matrix router, shared_gate, shared_down;
  Pair shared_gate_up;
  std::vector<Pair> expert_gate_up;
  std::vector<Matrix> expert_down;
  Vector router_bias, choice_bias, expert_gate_up_bias, expert_down_bias;
};

template <class Matrix, class Vector, class Heads = Matrix, class Pair = Matrix,
          class Table = Matrix>
struct WeightsIn {
  using Layer = LayerWeightsIn<Matrix, Vector, Heads, Pair>;
  Table embedding, positions;  // positions: empty where they are not learned
  Matrix head;
  Vector output_norm;
  std::vector<Layer> layers;
};

// A norm's vectors, the tensors `name`.weight and, of a layer norm, `name`.bias.
template <class Sink, class Vector>
Status load_norm(Sink& sink, const Norm& norm, const std::string& name, HeadRows rows, Vector& to) {
  if (!norm) return {};
  std::vector<TensorPart> parts = {{name + ".weight", rows}};
  if (norm.kind == Norm::Kind::layer) parts.push_back({name + ".bias", rows});
  return sink.vector(parts, norm.plus_one, to);
}

template <class Sink, class Layer>
Status load_latent(Sink& sink, const Attention& a, const std::string& at, Layer& w) {
  const HeadRows queries{a.projected_dim(), false, a.interleaved, a.latent.plain_dim},
      row{a.key_dim + a.value_dim, false, a.interleaved, a.value_dim};
  const bool ranked = a.latent.query_rank != 0;
  const TensorPart first =
      ranked ? TensorPart{at + "attn_q_a.weight"} : TensorPart{at + "attn_q.weight", queries};
  TRY_STATUS(sink.matrix(MatrixParts{.parts = {first, {at + "attn_kv_a_mqa.weight", row}}}, w.qkv));
  if (ranked) {
    TRY_STATUS(load_norm(sink, a.latent.norm, at + "attn_q_a_norm", {}, w.q_norm));
    TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "attn_q_b.weight", queries}}}, w.q_b));
  }
  TRY_STATUS(load_norm(sink, a.latent.norm, at + "attn_kv_a_norm", {}, w.k_norm));
  TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "attn_k_b.weight"}}}, w.k_b));
  TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "attn_v_b.weight"}}}, w.v_b));
  return sink.matrix(MatrixParts{.parts = {{at + "attn_output.weight"}}}, w.out);
}

template <class Sink, class Layer>
Status load_attention(Sink& sink, const Attention& a, const std::string& at, Layer& w) {
  if (a.latent) return load_latent(sink, a, at, w);
  const HeadRows turned{a.key_dim, true, a.interleaved}, straight{a.value_dim};
  TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "attn_q.weight", turned},
                                               {at + "attn_k.weight", turned},
                                               {at + "attn_v.weight", straight}}},
                         w.qkv));
  if (a.qkv_bias)
    TRY_STATUS(sink.vector({{at + "attn_q.bias", turned},
                            {at + "attn_k.bias", turned},
                            {at + "attn_v.bias", straight}},
                           false, w.qkv_bias));
  TRY_STATUS(
      sink.matrix(MatrixParts{.parts = {{at + "attn_output.weight"}}, .columns = straight}, w.out));
  if (a.out_bias) TRY_STATUS(sink.vector({{at + "attn_output.bias"}}, false, w.out_bias));
  if (a.sinks) TRY_STATUS(sink.vector({{at + "attn_sinks.weight"}}, false, w.sinks));
  const HeadRows head{a.key_dim, true};
  TRY_STATUS(load_norm(sink, a.head_norm, at + "attn_q_norm", head, w.q_norm));
  return load_norm(sink, a.head_norm, at + "attn_k_norm", head, w.k_norm);
}

template <class Sink, class Layer>
Status load_feed_forward(Sink& sink, const FeedForward& f, const std::string& at, Layer& w) {
  std::vector<TensorPart> inner, biases;
  for (const char* name : {"ffn_gate", "ffn_up"}) {
    if (!f.gated && std::string_view(name) == "ffn_gate") continue;
    inner.push_back({at + name + ".weight"});
    biases.push_back({at + name + ".bias"});
  }
  TRY_STATUS(sink.matrix(MatrixParts{.parts = inner, .in_turn = f.gated}, w.gate_up));
  TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "ffn_down.weight"}}}, w.down));
  if (!f.bias) return {};
  TRY_STATUS(sink.vector(biases, false, w.gate_up_bias));
  return sink.vector({{at + "ffn_down.bias"}}, false, w.down_bias);
}

template <class Sink, class Layer>
Status load_shared_expert(Sink& sink, const Experts& e, const std::string& at, Layer& w) {
  const std::vector<TensorPart> inner = {{at + "ffn_gate_shexp.weight"},
                                         {at + "ffn_up_shexp.weight"}};
  TRY_STATUS(sink.matrix(MatrixParts{.parts = inner, .in_turn = true}, w.shared_gate_up));
  TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "ffn_down_shexp.weight"}}}, w.shared_down));
  if (!e.shared_gate) return {};
  return sink.matrix(MatrixParts{.parts = {{at + "ffn_gate_inp_shexp.weight"}}, .plain = true},
                     w.shared_gate);
}

template <class Sink, class Layer>
Status load_experts(Sink& sink, const Experts& e, const std::string& at, Layer& w) {
  TRY_STATUS(
      sink.matrix(MatrixParts{.parts = {{at + "ffn_gate_inp.weight"}}, .plain = true}, w.router));
  if (e.router_bias) TRY_STATUS(sink.vector({{at + "ffn_gate_inp.bias"}}, false, w.router_bias));
  if (e.choice_bias) TRY_STATUS(sink.vector({{at + "exp_probs_b.bias"}}, false, w.choice_bias));
  w.expert_gate_up.resize(e.count);
  w.expert_down.resize(e.count);
  std::vector<TensorPart> inner_biases, down_biases;
  for (std::uint32_t i = 0; i < e.count; ++i) {
    const std::string n = "." + std::to_string(i), weight = n + ".weight", bias = n + ".bias";
    const std::vector<TensorPart> inner = {{at + "ffn_gate" + weight}, {at + "ffn_up" + weight}};
    TRY_STATUS(sink.matrix(MatrixParts{.parts = inner, .in_turn = true}, w.expert_gate_up[i]));
    TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "ffn_down" + weight}}}, w.expert_down[i]));
    inner_biases.push_back({at + "ffn_gate" + bias});
    inner_biases.push_back({at + "ffn_up" + bias});
    down_biases.push_back({at + "ffn_down" + bias});
  }
  if (e.bias) {
    TRY_STATUS(sink.vector(inner_biases, false, w.expert_gate_up_bias));
    TRY_STATUS(sink.vector(down_biases, false, w.expert_down_bias));
  }
  return e.shared_width != 0 ? load_shared_expert(sink, e, at, w) : Status();
}

template <class Sink, class Layer>
Status load_layer(Sink& sink, const LayerSpec& spec, const std::string& at, Layer& w) {
  TRY_STATUS(load_attention(sink, spec.attn, at, w));
  TRY_STATUS(spec.ffn.experts ? load_experts(sink, spec.ffn.experts, at, w)
                              : load_feed_forward(sink, spec.ffn, at, w));
  TRY_STATUS(load_norm(sink, spec.pre_a, at + "attn_norm", {}, w.pre_a));
  TRY_STATUS(load_norm(sink, spec.post_a, at + "post_attention_norm", {}, w.post_a));
  TRY_STATUS(load_norm(sink, spec.pre_f, at + "ffn_norm", {}, w.pre_f));
  return load_norm(sink, spec.post_f, at + "post_ffw_norm", {}, w.post_f);
}

// Sinks may keep the addresses of their last arguments until loading ends.
template <class Sink, class Weights>
Status load_weights(Sink& sink, const ModelConfig& config, Weights& w) {
  const MatrixParts embedding{.parts = {{"token_embd.weight"}}};
  TRY_STATUS(sink.matrix(embedding, w.embedding));
  if (config.tied_head)
    TRY_STATUS(sink.tied_head(embedding, w.head));
  else
    TRY_STATUS(sink.matrix(MatrixParts{.parts = {{"output.weight"}}}, w.head));
  if (config.learned_positions)
    TRY_STATUS(sink.matrix(MatrixParts{.parts = {{"position_embd.weight"}}}, w.positions));
  TRY_STATUS(load_norm(sink, config.output_norm, "output_norm", {}, w.output_norm));
  w.layers.resize(config.layers);
  for (std::uint32_t l = 0; l < config.layers; ++l)
    TRY_STATUS(
        load_layer(sink, config.per_layer[l], "blk." + std::to_string(l) + ".", w.layers[l]));
  return {};
}

}  // namespace quire
