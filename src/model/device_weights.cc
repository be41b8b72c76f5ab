#include "model/device_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/half.h"
#include "base/hash.h"
#include "model/weight_codes.h"

namespace quire {
namespace {

// Gate and up alternate in runs of this many rows.
constexpr std::uint32_t kDeviceTurn = 8;

// Random weights have no stored type.
constexpr WeightCodes kRandomKind = {nullptr, 4, CodeForm::symmetric};

Result<WeightCodes> kind_of(const ModelSource& source, const StackedRows& rows) {
  if (source.is_random()) return kRandomKind;
  TRY(const std::vector<TensorView> tensors, outlines_of(source, rows.parts));
  std::vector<DType> types;
  for (const TensorView& t : tensors) types.push_back(t.type);
  return code_kind(types);
}

Result<StackedRows> device_rows(const ModelSource& source, const MatrixParts& of) {
  return StackedRows::make(source, of.parts, of.in_turn ? kDeviceTurn : 0, device_head_width);
}

bool is_padded(HeadRows heads) {
  return heads.dim != 0 && device_head_width(heads.dim) != heads.dim;
}

// The loader's sink: uploads every matrix and vector.
class Uploader {
 public:
  Uploader(const ModelSource& source, const CudaDevice& device, CudaStream stream, bool packs,
           DeviceWeights& to)
      : source_(source), device_(device), stream_(stream), packs_(packs), to_(to) {}

  Status matrix(const MatrixParts& of, DeviceMatrix& to) {
    TRY(const StackedRows rows, device_rows(source_, of));
    to.outputs = rows.rows;
    to.inputs = static_cast<std::uint32_t>(of.columns.padded(rows.columns, device_head_width));
    std::vector<TensorView> tensors;
    if (!source_.is_random()) {
      TRY(tensors, tensors_of(source_, rows.parts));
    }
    if (packs_ && !is_padded(of.columns) &&
        !(source_.is_random() && is_padded(of.parts[0].heads))) {
      TRY(to.kind, kind_of(source_, rows));
    }
    if (to.kind.bits) TRY_STATUS(pack(rows, tensors, to));
    if (to.kind.bits == 0) TRY_STATUS(decode(rows, tensors, of.columns, to));
    for (const TensorView& t : tensors) source_.drop_pages(t);
    return {};
  }
  Status tied_head(const MatrixParts&, DeviceMatrix&) { return {}; }
  Status vector(const std::vector<TensorPart>& parts, bool plus_one, DeviceBuffer& to) {
    TRY(const std::vector<float> values, read_vectors(source_, parts, plus_one, device_head_width));
    TRY_STATUS(take(values.size() * sizeof(float), to));
    return send(to, values.data());
  }

 private:
  // As bf16; columns are padded, too, where they are of heads.
  Status decode(const StackedRows& rows, const std::vector<TensorView>& tensors, HeadRows of,
                DeviceMatrix& to) {
    const std::uint64_t inputs = rows.columns, columns = to.inputs, dim = of.dim,
                        wide = is_padded(of) ? device_head_width(of.dim) : 0;
    TRY_STATUS(take(rows.rows * columns * 2, to.data));
    if (source_.is_random()) return make_up(rows, of, to);
    std::vector<float> row(inputs);
    std::vector<std::uint16_t> bits(rows.rows * columns);
    for (std::uint64_t o = 0; o < rows.rows; ++o) {
      const StackedRows::Row from = rows.at(o);
      if (from.row == kPadding) continue;
      const TensorView& t = tensors[from.tensor];
      dequantize_row(t.type, t.row(from.row), inputs, row.data());
      for (std::uint64_t i = 0; i < inputs; ++i)
        bits[o * columns + (wide ? i / dim * wide + i % dim : i)] = f32_to_bf16(row[i]);
    }
    return send(to.data, bits.data());
  }
  // Random weights: each tensor in runs of `run` numbers that lie `stride` apart.
  Status make_up(const StackedRows& rows, HeadRows of, DeviceMatrix& to) {
    TRY_STATUS(check(device_.api->fill(to.data.data(), 0, to.data.size(), stream_)));
    const std::uint64_t inputs = rows.columns;
    auto* at = to.data.as<std::uint16_t>();
    for (std::size_t i = 0; i < rows.parts.size(); ++i) {
      const auto& [name, heads] = rows.parts[i];
      std::uint64_t run = rows.turn * inputs, stride = run * rows.parts.size();
      if (is_padded(heads)) {
        const std::uint64_t halves = heads.rotated ? 2 : 1;
        run = heads.dim / halves * inputs;
        stride = device_head_width(heads.dim) / halves * inputs;
      }
      if (is_padded(of)) {
        run = of.dim;
        stride = device_head_width(of.dim);
      }
      TRY(const std::vector<std::uint64_t> shape, source_.shape(name));
      TRY_STATUS(check(device_.api->random_bf16({.to = at,
                                                 .count = shape[0] * shape[1],
                                                 .seed = hash64(name.data(), name.size()),
                                                 .spread = kRandomSpread,
                                                 .run = run,
                                                 .stride = stride},
                                                stream_)));
      at += rows.turn ? run : (rows.ends[i] - (i ? rows.ends[i - 1] : 0)) * inputs;
    }
    return {};
  }
  // Packs into codes of `to.kind`, or of the next kind that can hold the numbers. bits 0: none can.
  Status pack(const StackedRows& rows, const std::vector<TensorView>& tensors, DeviceMatrix& to) {
    const std::uint32_t outputs = to.outputs, inputs = to.inputs;
    const auto keep = [&] {
      to_.unpacked_bytes = std::max(to_.unpacked_bytes, std::uint64_t{outputs} * inputs * 2);
      return take(coded_bytes(to.kind, outputs, inputs), to.data);
    };
    if (source_.is_random()) {
      const std::string& name = rows.parts[0].name;
      TRY_STATUS(keep());
      return check(device_.api->random_codes({.to = to.data.data(),
                                              .outputs = outputs,
                                              .inputs = inputs,
                                              .codes = to.kind,
                                              .seed = hash64(name.data(), name.size()),
                                              .spread = kRandomSpread},
                                             stream_));
    }
    for (;; to.kind.form = CodeForm::wide) {
      WeightCoder coder(to.kind, outputs, inputs);
      bool fits = true;
      for (std::uint32_t o = 0; fits && o < outputs; ++o) {
        const StackedRows::Row from = rows.at(o);
        if (from.row == kPadding) continue;
        const TensorView& t = tensors[from.tensor];
        fits = coder.add(o, t.type, t.row(from.row));
      }
      if (fits) {
        TRY_STATUS(keep());
        return send(to.data, coder.bytes().data());
      }
      if (to.kind.form == CodeForm::wide) break;
    }
    to.kind = {};
    return {};
  }

  Status take(std::size_t bytes, DeviceBuffer& to) {
    to_.bytes += bytes;
    TRY(to, DeviceBuffer::allocate(device_, bytes, source_.path() + "'s weights"));
    return {};
  }
  Status check(int error) { return cuda_status(device_, error, "loading " + source_.path()); }
  Status send(const DeviceBuffer& to, const void* from) {
    TRY_STATUS(check(device_.api->copy_to_device(to.data(), from, to.size(), stream_)));
    return check(device_.api->wait(stream_));
  }

  const ModelSource& source_;
  const CudaDevice& device_;
  CudaStream stream_;
  const bool packs_;
  DeviceWeights& to_;
};

// A sink that only counts what matrices take.
struct Counter {
  struct Nothing {};
  const ModelSource& source;
  const bool packs;
  std::uint64_t all = 0, unpacked = 0;

  Status matrix(const MatrixParts& of, Nothing&) {
    TRY(const StackedRows rows, device_rows(source, of));
    const std::uint64_t plain = rows.rows * of.columns.padded(rows.columns, device_head_width) * 2;
    WeightCodes kind;
    if (packs && !is_padded(of.columns)) {
      const auto found = kind_of(source, rows);
      if (found.ok()) kind = found.value();  // what is missing is said when it is loaded
    }
    all += kind.bits ? coded_bytes(kind, rows.rows, rows.columns) : plain;
    if (kind.bits) unpacked = std::max(unpacked, plain);
    return {};
  }
  Status tied_head(const MatrixParts&, Nothing&) { return {}; }
  Status vector(const std::vector<TensorPart>&, bool, Nothing&) { return {}; }
};

}  // namespace

std::uint32_t device_head_width(std::uint32_t dim) {
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

ModelConfig device_config(const ModelConfig& config) {
  ModelConfig wide = config;
  for (LayerSpec& layer : wide.per_layer) {
    layer.attn.key_dim = device_head_width(layer.attn.key_dim);
    layer.attn.value_dim = device_head_width(layer.attn.value_dim);
  }
  wide.head_dim = wide.per_layer[0].attn.key_dim;
  return wide;
}

std::uint64_t device_weight_bytes(const ModelSource& source, WeightStorage storage) {
  Counter counter{source, storage == WeightStorage::packed};
  WeightsIn<Counter::Nothing, Counter::Nothing> nothing;
  CHECK(load_weights(counter, source.config(), nothing).ok());  // it reads nothing
  return counter.all + counter.unpacked;
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
  DeviceWeights w;
  Uploader uploader(source, device, stream, packs, w);
  TRY_STATUS(load_weights(uploader, source.config(), w));
  return w;
}

}  // namespace quire
