#include "model/adapter/merged_adapter.h"

#include <fmt/format.h>

#include <cmath>

#include "model/encode_weights.h"

namespace quire {
namespace {

constexpr std::uint64_t kMergedBytesMax = std::uint64_t{16} << 30;

std::vector<float> plain_row(const TensorView& t, std::uint64_t row) {
  std::vector<float> values(t.columns());
  dequantize_row(t.type, t.row(row), values.size(), values.data());
  return values;
}

}  // namespace

Result<std::shared_ptr<const MergedAdapter>> MergedAdapter::read(const std::string& path,
                                                                 const ModelConfig& config,
                                                                 bool base_is_gguf) {
  auto made = std::make_shared<MergedAdapter>();
  made->config_ = config;
  TRY(made->file_, read_adapter(path, kMergedBytesMax));
  const AdapterFile& file = made->file_;
  if (file.is_gguf && file.architecture != config.architecture)
    return Error{Code::invalid, fmt::format("{}: is for a model of architecture {}, this is {}",
                                            file.name, file.architecture, config.architecture)};
  if (!file.invocation.empty())
    return Error{Code::unsupported,
                 file.name + ": begins at invocation tokens, so it cannot be merged"};
  const AdapterTargets targets(made->config_, base_is_gguf, file.is_gguf);
  for (const AdapterPair& pair : file.pairs) {
    const auto places = targets.find(pair.module, pair.b.rows(), pair.a.columns());
    if (!places.ok()) return Error{places.error().code, file.name + ": " + places.error().message};
    for (const AdapterPlace& place : places.value()) {
      HeadRows rows = place.heads;
      if (rows.dim != 0) rows.interleaved = config.per_layer[place.layer].attn.interleaved;
      if (!made->changes_
               .emplace(adapted_name(place.layer, place.linear), Change{&pair, place, rows})
               .second)
        return Error{Code::corrupt,
                     fmt::format("{}: module '{}' changes what another one changes, too", file.name,
                                 pair.module)};
    }
  }
  return std::shared_ptr<const MergedAdapter>(std::move(made));
}

DType MergedAdapter::type_of(DType base) {
  return base == DType::f32 || base == DType::f16 || base == DType::bf16 ? base : DType::q8_0;
}

std::vector<std::byte> MergedAdapter::merge(const TensorView& base) const {
  const Change& change = changes_.find(base.name)->second;
  const AdapterPair& pair = *change.pair;
  const DType type = type_of(base.type);
  const std::size_t bytes = row_bytes(type, base.columns());
  std::vector<std::vector<float>> a;
  for (std::uint64_t j = 0; j < pair.a.rows(); ++j) a.push_back(plain_row(pair.a, j));
  std::vector<std::byte> merged(bytes * base.rows());
  std::vector<float> sum(base.columns());
  for (std::uint64_t o = 0; o < base.rows(); ++o) {
    const std::uint64_t at = change.base_rows.stored(o, unpadded);
    std::vector<float> row = plain_row(base, at);
    const std::vector<float> b = plain_row(pair.b, change.place.stored(config_, o));
    sum.assign(sum.size(), 0.0f);
    for (std::size_t j = 0; j < b.size(); ++j)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = std::fma(b[j], a[j][i], sum[i]);
    for (std::size_t i = 0; i < sum.size(); ++i) row[i] = std::fma(pair.scale, sum[i], row[i]);
    const std::vector<std::byte> encoded = encode_weights(type, row);
    std::copy(encoded.begin(), encoded.end(),
              merged.begin() + static_cast<std::ptrdiff_t>(at * bytes));
  }
  return merged;
}

}  // namespace quire
