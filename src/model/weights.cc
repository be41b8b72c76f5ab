#include "model/weights.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>

#include "model/interleave.h"

namespace quire {
namespace {

constexpr std::size_t kPackedAlignment = 64;

// One matrix to be packed: which source row each output comes from, and where the result is to be
// known.
struct PackJob {
  DType type;
  std::uint32_t outputs, inputs;
  std::function<const std::byte*(std::uint32_t)> row;
  std::vector<TensorView> sources;  // pages to give back afterwards
  bool in_file_order = false;       // output o is row o of the only source: pages can go on the way
  std::size_t offset = 0;           // into Weights::memory
  PackedMatrix* into = nullptr;
};

// Collects jobs while walking the layers; the memory is reserved once all sizes are known.
class Packer {
 public:
  Packer(const ModelSource& source) : source_(source) {}

  void add(PackedMatrix* into, DType type, std::uint32_t outputs, std::uint32_t inputs,
           std::function<const std::byte*(std::uint32_t)> row, std::vector<TensorView> sources) {
    PackJob job{type, outputs, inputs, std::move(row), std::move(sources), false, bytes_, into};
    bytes_ += (packed_bytes(type, outputs, inputs) + kPackedAlignment - 1) / kPackedAlignment *
              kPackedAlignment;
    jobs_.push_back(std::move(job));
  }

  void add(PackedMatrix* into, const TensorView& t) {
    add(into, t.type, static_cast<std::uint32_t>(t.rows()), static_cast<std::uint32_t>(t.columns()),
        [t](std::uint32_t o) { return t.row(o); }, {t});
    jobs_.back().in_file_order = true;
  }

  Result<HugeBuffer> pack(ThreadPool& pool) {
    TRY(HugeBuffer memory, HugeBuffer::allocate(bytes_, source_.path() + "'s packed weights"));
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const PackJob& a, const PackJob& b) {
      return std::uint64_t{a.outputs} * a.inputs > std::uint64_t{b.outputs} * b.inputs;
    });
    std::atomic<std::size_t> next{0};
    pool.run([&](ThreadPool::Lane) {
      for (std::size_t i; (i = next.fetch_add(1)) < jobs_.size();) {
        pack(jobs_[i], memory);
      }
    });
    return memory;
  }

 private:
  void pack(const PackJob& job, const HugeBuffer& memory) const {
    const std::size_t size = packed_bytes(job.type, job.outputs, job.inputs);
    std::uint32_t dropped = 0;
    const auto row = [&](std::uint32_t o) {
      // A vocabulary is most of a small model's file: it should not be in memory twice, not even
      // for a moment.
      if (job.in_file_order && o >= dropped + 2 * kRowsDroppedAtOnce) {
        TensorView part = job.sources[0];
        const std::size_t bytes = row_bytes(part.type, part.columns());
        part.data = part.data.subspan(dropped * bytes, kRowsDroppedAtOnce * bytes);
        source_.drop_pages(part);
        dropped += kRowsDroppedAtOnce;
      }
      return job.row(o);
    };
    *job.into =
        pack_matrix(job.type, job.outputs, job.inputs, row, {memory.data() + job.offset, size});
    for (const TensorView& t : job.sources) source_.drop_pages(t);
  }

  static constexpr std::uint32_t kRowsDroppedAtOnce = 8192;
  const ModelSource& source_;
  std::vector<PackJob> jobs_;
  std::size_t bytes_ = 0;
};

std::vector<float> to_floats(const TensorView& t, bool plus_one = false) {
  std::vector<float> out(t.rows() * t.columns());
  for (std::uint64_t r = 0; r < t.rows(); ++r)
    dequantize_row(t.type, t.row(r), t.columns(), out.data() + r * t.columns());
  if (plus_one)
    for (float& x : out) x += 1;
  return out;
}

class WeightLoader {
 public:
  WeightLoader(const ModelSource& source)
      : source_(source), config_(source.config()), packer_(source) {}

  Result<Weights> load(ThreadPool& pool) {
    Weights w;
    w.layers.resize(config_.layers);
    TRY(w.embedding, source_.tensor("token_embd.weight"));
    TRY(w.output_norm, norm("output_norm.weight"));
    if (config_.tied_head) {
      packer_.add(&w.head, w.embedding);
    } else {
      TRY(const TensorView head, source_.tensor("output.weight"));
      packer_.add(&w.head, head);
    }
    for (std::uint32_t l = 0; l < config_.layers; ++l) TRY_STATUS(layer(l, w.layers[l]));
    TRY(w.memory, packer_.pack(pool));
    return w;
  }

 private:
  Result<std::vector<float>> norm(const std::string& name) {
    TRY(const TensorView t, source_.tensor(name));
    return to_floats(t, config_.norm_plus_one);
  }

  Status layer(std::uint32_t l, LayerWeights& w) {
    const std::string at = "blk." + std::to_string(l) + ".";
    TRY_STATUS(qkv(at, w));
    TRY(const TensorView out, source_.tensor(at + "attn_output.weight"));
    packer_.add(&w.out, out);
    TRY_STATUS(feed_forward(at, w));
    TRY(w.attention_norm, norm(at + "attn_norm.weight"));
    TRY(w.feed_forward_norm, norm(at + "ffn_norm.weight"));
    if (config_.qk_norm) {
      TRY(w.q_norm, norm(at + "attn_q_norm.weight"));
      TRY(w.k_norm, norm(at + "attn_k_norm.weight"));
    }
    if (config_.sandwich_norms) {
      TRY(w.post_attention_norm, norm(at + "post_attention_norm.weight"));
      TRY(w.post_feed_forward_norm, norm(at + "post_ffw_norm.weight"));
    }
    return {};
  }

  Status qkv(const std::string& at, LayerWeights& w) {
    std::vector<TensorView> parts;
    for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
      TRY(TensorView t, source_.tensor(at + name + ".weight"));
      parts.push_back(std::move(t));
      if (!config_.qkv_bias) continue;
      TRY(const TensorView bias, source_.tensor(at + name + ".bias"));
      const std::vector<float> values = to_floats(bias);
      const bool permute = config_.interleaved_rope && parts.size() < 3;
      for (std::uint32_t o = 0; o < values.size(); ++o)
        w.qkv_bias.push_back(values[permute ? half_split_row(o, config_.head_dim) : o]);
    }
    // Neighbours of one type become one matrix.
    w.qkv.reserve(3);  // the packer keeps pointers into it
    std::uint32_t first = 0;
    for (std::size_t i = 0; i < parts.size();) {
      std::size_t end = i + 1;
      while (end < parts.size() && parts[end].type == parts[i].type) ++end;
      const std::vector<TensorView> group(parts.begin() + static_cast<std::ptrdiff_t>(i),
                                          parts.begin() + static_cast<std::ptrdiff_t>(end));
      std::uint32_t outputs = 0;
      for (const TensorView& t : group) outputs += static_cast<std::uint32_t>(t.rows());
      const auto row = [group, i, permuted = config_.interleaved_rope,
                        d = config_.head_dim](std::uint32_t o) {
        for (std::size_t part = 0; part < group.size(); ++part) {
          const auto rows = static_cast<std::uint32_t>(group[part].rows());
          if (o < rows) return group[part].row(permuted && i + part < 2 ? half_split_row(o, d) : o);
          o -= rows;
        }
        return static_cast<const std::byte*>(nullptr);
      };
      w.qkv.push_back({first, {}});
      packer_.add(&w.qkv.back().matrix, parts[i].type, outputs, config_.hidden, row, group);
      first += outputs;
      i = end;
    }
    return {};
  }

  Status feed_forward(const std::string& at, LayerWeights& w) {
    TRY(const TensorView gate, source_.tensor(at + "ffn_gate.weight"));
    TRY(const TensorView up, source_.tensor(at + "ffn_up.weight"));
    TRY(const TensorView down, source_.tensor(at + "ffn_down.weight"));
    packer_.add(&w.down, down);
    w.gate_up_interleaved = gate.type == up.type && config_.feed_forward % kGateUpUnit == 0;
    if (!w.gate_up_interleaved) {
      packer_.add(&w.gate, gate);
      packer_.add(&w.up, up);
      return {};
    }
    const auto row = [gate, up](std::uint32_t o) {
      const std::uint32_t unit = o / (2 * kGateUpUnit), within = o % (2 * kGateUpUnit);
      const std::uint32_t r = unit * kGateUpUnit + within % kGateUpUnit;
      return within < kGateUpUnit ? gate.row(r) : up.row(r);
    };
    packer_.add(&w.gate_up, gate.type, 2 * config_.feed_forward, config_.hidden, row, {gate, up});
    return {};
  }

  const ModelSource& source_;
  const ModelConfig& config_;
  Packer packer_;
};

}  // namespace

Result<Weights> load_weights(const ModelSource& source, ThreadPool& pool) {
  return WeightLoader(source).load(pool);
}

}  // namespace quire
