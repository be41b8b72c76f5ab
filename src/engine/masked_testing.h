// engine/masked_testing.h - a Llama in plain double arithmetic that sees every key unless told not to:
// what a compacted cache must compute, for the tests of engine/.
//
//   MaskedLlama reference(path);
//   reference.run(tokens, [](layer, kv_head, query, key) { return keeps; });
//   reference.logits[i]; reference.attention(layer, head, query, key)
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"
#include "model/weights_source.h"
#include "tensor/dtype.h"

namespace quire {

class MaskedLlama {
 public:
  using Row = std::vector<double>;
  using Sees = std::function<bool(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t query,
                                  std::uint32_t key)>;

  explicit MaskedLlama(const std::string& path)
      : source_(std::move(ModelSource::open(path).value())), c_(source_.config()) {}

  void run(std::span<const TokenId> tokens, const Sees& sees) {
    const auto n = static_cast<std::uint32_t>(tokens.size());
    attention_.assign(std::size_t{c_.layers} * c_.query_heads * n * n, 0.0);
    count_ = n;
    std::vector<Row> x(n);
    for (std::uint32_t i = 0; i < n; ++i) x[i] = row("token_embd.weight", tokens[i]);
    for (std::uint32_t layer = 0; layer < c_.layers; ++layer) {
      const std::string at = "blk." + std::to_string(layer) + ".";
      std::vector<Row> q, k, v;
      for (std::uint32_t i = 0; i < n; ++i) {
        const Row h = normed(x[i], at + "attn_norm.weight");
        q.push_back(rotated(times(at + "attn_q.weight", h), i));
        k.push_back(rotated(times(at + "attn_k.weight", h), i));
        v.push_back(times(at + "attn_v.weight", h));
      }
      for (std::uint32_t i = 0; i < n; ++i) {
        add(x[i], times(at + "attn_output.weight", attend(layer, i, q[i], k, v, sees)));
        const Row h = normed(x[i], at + "ffn_norm.weight");
        Row gate = times(at + "ffn_gate.weight", h);
        const Row up = times(at + "ffn_up.weight", h);
        for (std::size_t j = 0; j < gate.size(); ++j)
          gate[j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
        add(x[i], times(at + "ffn_down.weight", gate));
      }
    }
    logits.clear();
    for (std::uint32_t i = 0; i < n; ++i)
      logits.push_back(times(c_.tied_head ? "token_embd.weight" : "output.weight",
                             normed(x[i], "output_norm.weight")));
  }

  // After run().
  std::vector<Row> logits;  // by token
  double attention(std::uint32_t layer, std::uint32_t head, std::uint32_t query,
                   std::uint32_t key) const {
    return attention_[((std::size_t{layer} * c_.query_heads + head) * count_ + query) * count_ +
                      key];
  }

 private:
  static void add(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Row row(const std::string& name, std::uint64_t index) const {
    const TensorView t = source_.tensor(name).value();
    const std::size_t width = t.shape.back();
    std::vector<float> floats(width);
    dequantize_row(t.type, t.row(index), width, floats.data());
    return {floats.begin(), floats.end()};
  }

  Row times(const std::string& name, const Row& x) {
    std::vector<Row>& matrix = matrices_[name];
    if (matrix.empty())
      for (std::uint64_t i = 0; i < source_.tensor(name).value().shape[0]; ++i)
        matrix.push_back(row(name, i));
    Row out;
    for (const Row& w : matrix) {
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) sum += w[i] * x[i];
      out.push_back(sum);
    }
    return out;
  }

  Row normed(const Row& x, const std::string& name) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    Row out = row(name, 0);
    const double by = 1 / std::sqrt(sum / static_cast<double>(x.size()) + c_.output_norm.epsilon);
    for (std::size_t i = 0; i < x.size(); ++i) out[i] *= x[i] * by;
    return out;
  }

  // Files have the dimensions of a pair side by side.
  Row rotated(Row x, std::uint32_t position) const {
    for (std::size_t head = 0; head < x.size(); head += c_.head_dim)
      for (std::uint32_t i = 0; i < c_.head_dim; i += 2) {
        const double angle = position / std::pow(double{c_.ropes[0].base}, double(i) / c_.head_dim);
        double &a = x[head + i], &b = x[head + i + 1];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    return x;
  }

  Row attend(std::uint32_t layer, std::uint32_t i, const Row& q, const std::vector<Row>& k,
             const std::vector<Row>& v, const Sees& sees) {
    const std::uint32_t d = c_.head_dim, group = c_.query_heads / c_.kv_heads;
    Row out(q.size());
    for (std::uint32_t head = 0; head < c_.query_heads; ++head) {
      const std::uint32_t kv = head / group;
      double* p = &attention_[((std::size_t{layer} * c_.query_heads + head) * count_ + i) * count_];
      double sum = 0;
      for (std::uint32_t j = 0; j <= i; ++j) {
        if (!sees(layer, kv, i, j)) continue;
        double dot = 0;
        for (std::uint32_t e = 0; e < d; ++e) dot += q[head * d + e] * k[j][kv * d + e];
        sum += p[j] = std::exp(dot * c_.per_layer[layer].attn.scale);
      }
      for (std::uint32_t j = 0; j <= i; ++j) {
        p[j] /= sum;
        for (std::uint32_t e = 0; e < d; ++e) out[head * d + e] += p[j] * v[j][kv * d + e];
      }
    }
    return out;
  }

  const ModelSource source_;
  const ModelConfig& c_;
  std::map<std::string, std::vector<Row>> matrices_;
  std::vector<double> attention_;  // [layer][head][query][key]
  std::uint32_t count_ = 0;
};

// The largest difference, of the largest number in a.
inline double difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(double{a[i]} - b[i]);
    worst = d <= worst ? worst : d;  // a NaN stays
    scale = std::max(scale, std::fabs(double{a[i]}));
  }
  return worst / scale;
}

}  // namespace quire
