#include "model/device_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/half.h"
#include "base/hash.h"
#include "model/interleave.h"
#include "model/weight_codes.h"

namespace quire {
namespace {

// Made-up weights have no type of their own.
constexpr WeightCodes kRandomKind = {nullptr, 4, CodeForm::symmetric};

Result<WeightCodes> kind_of(const ModelSource& source, const std::vector<std::string>& names) {
  if (source.is_random()) return kRandomKind;
  std::vector<DType> types;
  for (const std::string& name : names) {
    TRY(const TensorView t, source.tensor(name));
    types.push_back(t.type);
  }
  return code_kind(types);
}

class Loader {
 public:
  Loader(const ModelSource& source, const CudaDevice& device, CudaStream stream, bool packs)
      : source_(source),
        c_(source.config()),
        wide_(device_config(c_).head_dim),
        device_(device),
        stream_(stream),
        packs_(packs) {}

  Result<DeviceWeights> load() {
    DeviceWeights w;
    TRY(w.embedding, matrix({"token_embd.weight"}));
    if (!c_.tied_head) {
      TRY(w.head, matrix({"output.weight"}));
    }
    TRY(w.output_norm, vector("output_norm.weight"));
    for (std::uint32_t l = 0; l < c_.layers; ++l) {
      TRY(DeviceLayer layer, load_layer(fmt::format("blk.{}.", l)));
      w.layers.push_back(std::move(layer));
    }
    w.bytes = bytes_;
    w.unpacked_bytes = unpacked_bytes_;
    return w;
  }

 private:
  // Source row of an output: which tensor, and which of its rows; or none, where it is padding.
  struct Row {
    std::size_t tensor;
    std::uint64_t row;
  };
  static constexpr std::uint64_t kPadding = ~std::uint64_t{0};

  Result<DeviceLayer> load_layer(const std::string& at) {
    DeviceLayer w;
    TRY(w.qkv, qkv(at));
    TRY(w.out, out(at + "attn_output.weight"));
    const std::uint64_t units = c_.feed_forward;
    TRY(w.gate_up, matrix(
                       {at + "ffn_gate.weight", at + "ffn_up.weight"},
                       [units](std::uint64_t o) -> Row {
                         CHECK(o < 2 * units);
                         return {o / 8 % 2, o / 16 * 8 + o % 8};
                       },
                       8));
    TRY(w.down, matrix({at + "ffn_down.weight"}));
    TRY(w.attention_norm, vector(at + "attn_norm.weight"));
    TRY(w.feed_forward_norm, vector(at + "ffn_norm.weight"));
    if (c_.qk_norm) {
      TRY(w.q_norm, head_norm(at + "attn_q_norm.weight"));
      TRY(w.k_norm, head_norm(at + "attn_k_norm.weight"));
    }
    if (c_.sandwich_norms) {
      TRY(w.post_attention_norm, vector(at + "post_attention_norm.weight"));
      TRY(w.post_feed_forward_norm, vector(at + "post_ffw_norm.weight"));
    }
    if (c_.qkv_bias) {
      TRY(w.qkv_bias, bias(at));
    }
    return w;
  }

  // The source's row of a row of a padded head of queries (tensor 0), keys or values.
  std::uint64_t source_row(std::uint64_t row, std::size_t tensor) const {
    const std::uint64_t head = row / wide_, part = tensor < 2 ? 2 : 1, width = wide_ / part,
                        kept = c_.head_dim / part, d = row % wide_;
    if (d % width >= kept) return kPadding;
    const std::uint64_t from = head * c_.head_dim + d / width * kept + d % width;
    return c_.interleaved_rope && tensor < 2
               ? half_split_row(static_cast<std::uint32_t>(from), c_.head_dim)
               : from;
  }

  Result<DeviceMatrix> qkv(const std::string& at) {
    const std::uint64_t queries = std::uint64_t{c_.query_heads} * wide_,
                        keys = std::uint64_t{c_.kv_heads} * wide_;
    const std::string names[] = {at + "attn_q.weight", at + "attn_k.weight", at + "attn_v.weight"};
    if (source_.is_random() && wide_ != c_.head_dim) {
      DeviceMatrix all;
      TRY(all.data, padded((queries + 2 * keys) * c_.hidden * 2));
      const std::uint64_t first[] = {0, queries, queries + keys};
      for (std::size_t i = 0; i < 3; ++i) {
        const std::uint64_t parts = i < 2 ? 2 : 1;
        TRY_STATUS(random(names[i], all.data.as<std::uint16_t>() + first[i] * c_.hidden,
                          c_.head_dim / parts * c_.hidden, wide_ / parts * c_.hidden));
      }
      return all;
    }
    return matrix(
        {names[0], names[1], names[2]},
        [=, this](std::uint64_t o) -> Row {
          const std::size_t tensor = o < queries ? 0 : o < queries + keys ? 1 : 2;
          return {tensor, source_row(tensor == 0 ? o : (o - queries) % keys, tensor)};
        },
        0, queries + 2 * keys);
  }
  // A column for each dimension of each head; where there are more than the model has, as bf16.
  Result<DeviceMatrix> out(const std::string& name) {
    if (wide_ == c_.head_dim) return matrix({name});
    const std::uint64_t columns = std::uint64_t{c_.query_heads} * wide_;
    DeviceMatrix all;
    TRY(all.data, padded(c_.hidden * columns * 2));
    if (source_.is_random()) {
      TRY_STATUS(random(name, all.data.as<std::uint16_t>(), c_.head_dim, wide_));
      return all;
    }
    TRY(const TensorView t, source_.tensor(name));
    std::vector<float> row(t.columns());
    std::vector<std::uint16_t> bits(c_.hidden * columns);
    for (std::uint64_t o = 0; o < c_.hidden; ++o) {
      dequantize_row(t.type, t.row(o), t.columns(), row.data());
      for (std::uint64_t i = 0; i < row.size(); ++i)
        bits[o * columns + i / c_.head_dim * wide_ + i % c_.head_dim] = f32_to_bf16(row[i]);
    }
    TRY_STATUS(send(all.data, bits.data()));
    source_.drop_pages(t);
    return all;
  }
  Result<DeviceBuffer> padded(std::size_t bytes) {
    TRY(DeviceBuffer zeros, take(bytes));
    TRY_STATUS(check(device_.api->fill(zeros.data(), 0, bytes, stream_)));
    return zeros;
  }
  // A tensor of made-up numbers, so many at a time, so far apart; 0: one after the other.
  Status random(const std::string& name, std::uint16_t* to, std::uint64_t run,
                std::uint64_t stride) {
    TRY(const std::vector<std::uint64_t> shape, source_.shape(name));
    return check(device_.api->random_bf16({.to = to,
                                           .count = shape[0] * shape[1],
                                           .seed = hash64(name.data(), name.size()),
                                           .spread = kRandomSpread,
                                           .run = run,
                                           .stride = stride},
                                          stream_));
  }

  // Rows of some tensors, in the order that `row_of` gives: one tensor after the other, or so many
  // rows of each in turn. `padded_rows`: more than the tensors have.
  Result<DeviceMatrix> matrix(
      const std::vector<std::string>& names,
      const std::function<Row(std::uint64_t)>& row_of =
          [](std::uint64_t o) {
            return Row{0, o};
          },
      std::uint64_t rows_in_turn = 0, std::uint64_t padded_rows = 0) {
    std::uint64_t rows = 0, columns = 0;
    std::vector<TensorView> tensors;
    std::vector<std::uint64_t> counts;
    for (const std::string& name : names) {
      TRY(const std::vector<std::uint64_t> shape, source_.shape(name));
      rows += shape[0];
      columns = shape[1];
      counts.push_back(shape[0] * columns);
      if (source_.is_random()) continue;
      TRY(TensorView t, source_.tensor(name));
      tensors.push_back(std::move(t));
    }
    rows = std::max(rows, padded_rows);
    DeviceMatrix out;
    if (packs_) {
      TRY(out.kind, kind_of(source_, names));
    }
    if (out.kind.bits) {
      TRY_STATUS(pack(out, names[0], tensors, row_of, static_cast<std::uint32_t>(rows),
                      static_cast<std::uint32_t>(columns)));
      for (const TensorView& t : tensors) source_.drop_pages(t);
    }
    if (out.kind.bits) return out;
    TRY(out.data, take(rows * columns * 2));
    std::uint64_t first = 0;
    for (std::size_t i = 0; source_.is_random() && i < names.size(); ++i) {
      const std::uint64_t run = rows_in_turn * columns;
      TRY_STATUS(random(names[i], out.data.as<std::uint16_t>() + first, run, run * names.size()));
      first += run ? run : counts[i];
    }
    if (source_.is_random()) return out;
    std::vector<float> row(columns);
    std::vector<std::uint16_t> bits(rows * columns);
    for (std::uint64_t o = 0; o < rows; ++o) {
      const Row from = row_of(o);
      if (from.row == kPadding) continue;
      const TensorView& t = tensors[from.tensor];
      dequantize_row(t.type, t.row(from.row), columns, row.data());
      for (std::uint64_t i = 0; i < columns; ++i) bits[o * columns + i] = f32_to_bf16(row[i]);
    }
    TRY_STATUS(send(out.data, bits.data()));
    for (const TensorView& t : tensors) source_.drop_pages(t);
    return out;
  }
  // As codes of `out.kind`, or of the next that holds these numbers; bits 0: there is none.
  Status pack(DeviceMatrix& out, const std::string& name, const std::vector<TensorView>& tensors,
              const std::function<Row(std::uint64_t)>& row_of, std::uint32_t rows,
              std::uint32_t columns) {
    const auto keep = [&]() -> Status {
      TRY(out.data, take(coded_bytes(out.kind, rows, columns)));
      unpacked_bytes_ = std::max(unpacked_bytes_, std::uint64_t{rows} * columns * 2);
      return {};
    };
    if (source_.is_random()) {
      TRY_STATUS(keep());
      return check(device_.api->random_codes({.to = out.data.data(),
                                              .outputs = rows,
                                              .inputs = columns,
                                              .codes = out.kind,
                                              .seed = hash64(name.data(), name.size()),
                                              .spread = kRandomSpread},
                                             stream_));
    }
    for (;; out.kind.form = CodeForm::wide) {
      WeightCoder coder(out.kind, rows, columns);
      bool fits = true;
      for (std::uint32_t o = 0; fits && o < rows; ++o) {
        const Row from = row_of(o);
        if (from.row == kPadding) continue;
        const TensorView& t = tensors[from.tensor];
        fits = coder.add(o, t.type, t.row(from.row));
      }
      if (fits) {
        TRY_STATUS(keep());
        return send(out.data, coder.bytes().data());
      }
      if (out.kind.form == CodeForm::wide) break;
    }
    out.kind = {};
    return {};
  }

  Result<std::vector<float>> floats(const std::string& name) {
    TRY(const TensorView t, source_.tensor(name));
    std::vector<float> values(t.rows() * t.columns());
    for (std::uint64_t r = 0; r < t.rows(); ++r)
      dequantize_row(t.type, t.row(r), t.columns(), values.data() + r * t.columns());
    return values;
  }
  Result<DeviceBuffer> vector(const std::string& name) {
    TRY(std::vector<float> values, floats(name));
    if (c_.norm_plus_one)
      for (float& x : values) x += 1;
    return upload(values);
  }
  Result<DeviceBuffer> head_norm(const std::string& name) {
    if (wide_ == c_.head_dim) return vector(name);
    TRY(const std::vector<float> values, floats(name));
    std::vector<float> wide(wide_);
    for (std::uint32_t d = 0; d < c_.head_dim; ++d)
      wide[d / (c_.head_dim / 2) * (wide_ / 2) + d % (c_.head_dim / 2)] =
          values[d] + (c_.norm_plus_one ? 1.0f : 0.0f);
    return upload(wide);
  }
  Result<DeviceBuffer> bias(const std::string& at) {
    std::vector<float> all;
    std::size_t tensor = 0;
    for (const char* name : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) {
      TRY(const std::vector<float> values, floats(at + name));
      for (std::uint64_t o = 0; o < values.size() / c_.head_dim * wide_; ++o) {
        const std::uint64_t from = source_row(o, tensor);
        all.push_back(from == kPadding ? 0.0f : values[from]);
      }
      ++tensor;
    }
    return upload(all);
  }
  Result<DeviceBuffer> upload(const std::vector<float>& values) {
    TRY(DeviceBuffer out, take(values.size() * sizeof(float)));
    TRY_STATUS(send(out, values.data()));
    return out;
  }

  Result<DeviceBuffer> take(std::size_t bytes) {
    bytes_ += bytes;
    return DeviceBuffer::allocate(device_, bytes, source_.path() + "'s weights");
  }
  Status check(int error) { return cuda_status(device_, error, "loading " + source_.path()); }
  Status send(const DeviceBuffer& to, const void* from) {
    TRY_STATUS(check(device_.api->copy_to_device(to.data(), from, to.size(), stream_)));
    return check(device_.api->wait(stream_));
  }

  const ModelSource& source_;
  const ModelConfig& c_;
  const std::uint32_t wide_;  // heads as the kernels have them
  const CudaDevice& device_;
  CudaStream stream_;
  const bool packs_;
  std::uint64_t bytes_ = 0, unpacked_bytes_ = 0;
};

}  // namespace

Result<DeviceBuffer> DeviceBuffer::allocate(const CudaDevice& device, std::size_t bytes,
                                            std::string_view what) {
  DeviceBuffer b;
  TRY_STATUS(cuda_status(device, device.api->allocate(bytes, &b.data_), what));
  b.device_ = &device;
  b.bytes_ = bytes;
  return b;
}

ModelConfig device_config(const ModelConfig& config) {
  ModelConfig wide = config;
  wide.head_dim = config.head_dim <= 64 ? 64 : config.head_dim <= 128 ? 128 : 256;
  return wide;
}

std::uint64_t device_weight_bytes(const ModelSource& source, WeightStorage storage) {
  const ModelConfig c = device_config(source.config());
  const std::uint32_t queries = c.query_heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  std::uint64_t all = 0, unpacked = 0;
  const auto add = [&](const std::vector<std::string>& names, std::uint32_t outputs,
                       std::uint32_t inputs, bool packs = true) {
    const std::uint64_t plain = std::uint64_t{outputs} * inputs * 2;
    packs = packs && storage == WeightStorage::packed;
    const auto kind = packs ? kind_of(source, names) : Result<WeightCodes>(WeightCodes{});
    if (!kind.ok() || kind.value().bits == 0) {  // what is missing is said when it is loaded
      all += plain;
      return;
    }
    all += coded_bytes(kind.value(), outputs, inputs);
    unpacked = std::max(unpacked, plain);
  };
  add({"token_embd.weight"}, c.vocabulary, c.hidden);
  if (!c.tied_head) add({"output.weight"}, c.vocabulary, c.hidden);
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    const std::string at = fmt::format("blk.{}.", l);
    add({at + "attn_q.weight", at + "attn_k.weight", at + "attn_v.weight"}, queries + 2 * keys,
        c.hidden);
    add({at + "attn_output.weight"}, c.hidden, queries, c.head_dim == source.config().head_dim);
    add({at + "ffn_gate.weight", at + "ffn_up.weight"}, 2 * c.feed_forward, c.hidden);
    add({at + "ffn_down.weight"}, c.hidden, c.feed_forward);
  }
  return all + unpacked;
}

Result<DeviceWeights> load_device_weights(const ModelSource& source, const CudaDevice& device,
                                          CudaStream stream, WeightStorage storage) {
  CudaDeviceInfo now;
  TRY_STATUS(cuda_status(device, device.api->open(0, &now), "looking at its memory"));
  const std::uint64_t plain = device_weight_bytes(source, WeightStorage::bf16),
                      packed = device_weight_bytes(source, WeightStorage::packed);
  // A tenth is for the cache.
  const bool packs =
      storage == WeightStorage::packed ||
      (storage == WeightStorage::automatic && plain > now.free_bytes / 10 * 9 && packed < plain);
  if ((packs ? packed : plain) > now.free_bytes)
    return Error{
        Code::exhausted,
        fmt::format("{}: its weights take {:.1f} GiB as bf16 and {:.1f} packed, and {} has "
                    "{:.1f} GiB free; a smaller model fits, and --device cpu may",
                    source.path(), static_cast<double>(plain) / 0x1p30,
                    static_cast<double>(packed) / 0x1p30, now.name,
                    static_cast<double>(now.free_bytes) / 0x1p30)};
  return Loader(source, device, stream, packs).load();
}

}  // namespace quire
