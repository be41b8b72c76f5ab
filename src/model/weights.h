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
  std::uint32_t dim = 0;     // of a head; 0: rows that are not of heads
  bool rotated = false;      // in pairs (i, i + dim / 2): each half is padded by itself
  bool interleaved = false;  // stored for pairs (2i, 2i + 1)

  std::uint64_t padded(std::uint64_t rows, HeadWidth width) const {
    return dim ? rows / dim * width(dim) : rows;
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
  Pair gate_up;
  // Empty where the spec has none of them.
  Vector qkv_bias, q_norm, k_norm, pre_a, post_a, pre_f, post_f;
};

template <class Matrix, class Vector, class Heads = Matrix, class Pair = Matrix,
          class Table = Matrix>
struct WeightsIn {
  using Layer = LayerWeightsIn<Matrix, Vector, Heads, Pair>;
  Table embedding;
  Matrix head;
  Vector output_norm;
  std::vector<Layer> layers;
};

template <class Sink, class Layer>
Status load_layer(Sink& sink, const LayerSpec& spec, const std::string& at, Layer& w) {
  const Attention& a = spec.attn;
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
  TRY_STATUS(sink.matrix(
      MatrixParts{.parts = {{at + "ffn_gate.weight"}, {at + "ffn_up.weight"}}, .in_turn = true},
      w.gate_up));
  TRY_STATUS(sink.matrix(MatrixParts{.parts = {{at + "ffn_down.weight"}}}, w.down));
  const auto norm = [&](const Norm& of, const char* name, HeadRows rows, auto& to) -> Status {
    return of ? sink.vector({{at + name, rows}}, of.plus_one, to) : Status();
  };
  const HeadRows head{a.key_dim, true};
  TRY_STATUS(norm(a.head_norm, "attn_q_norm.weight", head, w.q_norm));
  TRY_STATUS(norm(a.head_norm, "attn_k_norm.weight", head, w.k_norm));
  TRY_STATUS(norm(spec.pre_a, "attn_norm.weight", {}, w.pre_a));
  TRY_STATUS(norm(spec.post_a, "post_attention_norm.weight", {}, w.post_a));
  TRY_STATUS(norm(spec.pre_f, "ffn_norm.weight", {}, w.pre_f));
  return norm(spec.post_f, "post_ffw_norm.weight", {}, w.post_f);
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
  TRY_STATUS(sink.vector({{"output_norm.weight"}}, config.output_norm.plus_one, w.output_norm));
  w.layers.resize(config.layers);
  for (std::uint32_t l = 0; l < config.layers; ++l)
    TRY_STATUS(
        load_layer(sink, config.per_layer[l], "blk." + std::to_string(l) + ".", w.layers[l]));
  return {};
}

}  // namespace quire
