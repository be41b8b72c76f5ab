#include "model/adapter/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/random.h"
#include "model/adapter/adapter_file.h"
#include "model/adapter/adapter_targets.h"
#include "model/file_digest.h"

namespace quire {

// Collects matrices; the memory is reserved once their sizes are known.
class AdapterPacker {
 public:
  using Row = std::function<const std::byte*(std::uint32_t)>;

  explicit AdapterPacker(std::uint32_t layers) : made_(std::make_shared<Adapter>()) {
    made_->layers_.resize(layers);
  }
  Adapter& adapter() { return *made_; }
  LowRank& at(const AdapterPlace& place) {
    return made_->layers_[place.layer][static_cast<std::size_t>(place.linear)];
  }
  void add(PackedMatrix& to, DType type, std::uint32_t outputs, std::uint32_t inputs, Row row) {
    to = {.type = type, .outputs = outputs, .inputs = inputs};
    jobs_.push_back({&to, bytes_, std::move(row)});
    bytes_ += (packed_bytes(type, outputs, inputs) + 63) / 64 * 64;
  }
  std::uint64_t bytes() const { return bytes_; }

  Result<std::shared_ptr<const Adapter>> finish(const std::string& name) {
    TRY(made_->memory_, HugeBuffer::allocate(bytes_, "the adapter " + name));
    for (const Job& job : jobs_) {
      const PackedMatrix m = *job.into;
      *job.into = pack_matrix(
          m.type, m.outputs, m.inputs, job.row,
          {made_->memory_.data() + job.offset, packed_bytes(m.type, m.outputs, m.inputs)});
    }
    return std::shared_ptr<const Adapter>(std::move(made_));
  }

 private:
  struct Job {
    PackedMatrix* into;
    std::size_t offset;
    Row row;
  };
  std::shared_ptr<Adapter> made_;
  std::vector<Job> jobs_;
  std::size_t bytes_ = 0;
};

namespace {

Status check_invocation_tokens(const AdapterFile& file, const ModelConfig& config) {
  for (const TokenId t : file.invocation)
    if (t >= config.vocabulary)
      return Error{Code::invalid,
                   fmt::format("{}: invocation token {} is outside the vocabulary of {}: the "
                               "adapter is for another model",
                               file.name, t, config.vocabulary)};
  return {};
}

std::string hex_text(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", std::to_integer<int>(b));
  return text;
}

}  // namespace

Result<std::shared_ptr<const Adapter>> Adapter::load(const std::string& path,
                                                     const ModelConfig& config, bool base_is_gguf,
                                                     std::uint64_t bytes_max) {
  TRY(const AdapterFile file, read_adapter(path, bytes_max));
  return pack(file, config, base_is_gguf, bytes_max);
}

Result<std::shared_ptr<const Adapter>> Adapter::pack(const AdapterFile& file,
                                                     const ModelConfig& config, bool base_is_gguf,
                                                     std::uint64_t bytes_max) {
  if (file.is_gguf && file.architecture != config.architecture)
    return Error{Code::invalid, fmt::format("{}: is for a model of architecture {}, this is {}",
                                            file.name, file.architecture, config.architecture)};
  TRY_STATUS(check_invocation_tokens(file, config));
  const AdapterTargets targets(config, base_is_gguf, file.is_gguf);
  AdapterPacker packer(config.layers);
  for (const AdapterPair& pair : file.pairs) {
    const auto places = targets.find(pair.module, pair.b.rows(), pair.a.columns());
    if (!places.ok()) return Error{places.error().code, file.name + ": " + places.error().message};
    for (const AdapterPlace& place : places.value()) {
      LowRank& to = packer.at(place);
      if (to)
        return Error{Code::corrupt,
                     fmt::format("{}: module '{}' changes what another one changes, too", file.name,
                                 pair.module)};
      const auto rank = static_cast<std::uint32_t>(pair.a.rows());
      to.scale = pair.scale;
      packer.add(to.a, pair.a.type, rank, place.inputs,
                 [&pair](std::uint32_t o) { return pair.a.row(o); });
      packer.add(to.b, pair.b.type, place.outputs, rank, [&pair, place, &config](std::uint32_t o) {
        return pair.b.row(place.stored(config, o));
      });
    }
  }
  if (packer.bytes() > bytes_max)
    return Error{Code::exhausted,
                 fmt::format("{}: takes {} bytes packed, there is room for {}; raise --lora-memory",
                             file.name, packer.bytes(), bytes_max)};
  packer.adapter().invocation_ = file.invocation;
  packer.adapter().digest_ = file.digest;
  return packer.finish(file.name);
}

Result<std::shared_ptr<const Adapter>> Adapter::random(const ModelConfig& config,
                                                       std::uint32_t rank, std::uint64_t seed,
                                                       float spread,
                                                       std::vector<TokenId> invocation,
                                                       std::span<const Adapted> only) {
  std::uint64_t matrices = 0;
  AdapterPacker packer(config.layers);
  for (std::uint32_t l = 0; l < config.layers; ++l)
    for (std::size_t i = 0; i < kAdaptedCount; ++i) {
      const auto shape = adapted_shape(config, l, static_cast<Adapted>(i));
      const bool wanted =
          only.empty() || std::ranges::find(only, static_cast<Adapted>(i)) != only.end();
      if (!shape || !wanted) continue;
      LowRank& to = packer.at({.layer = l, .linear = static_cast<Adapted>(i)});
      to.scale = 2;
      const auto add = [&](PackedMatrix& m, std::uint32_t outputs, std::uint32_t inputs) {
        Random numbers(mix64(seed ^ mix64(matrices++)));
        auto values = std::make_shared<std::vector<float>>(std::size_t{outputs} * inputs);
        for (float& x : *values) x = (static_cast<float>(numbers.unit()) * 2 - 1) * spread;
        packer.add(m, DType::f32, outputs, inputs, [values, inputs](std::uint32_t o) {
          return reinterpret_cast<const std::byte*>(values->data() + std::size_t{o} * inputs);
        });
      };
      add(to.a, rank, shape->second);
      add(to.b, shape->first, rank);
    }
  const std::string name = fmt::format("random adapter {} {} {} [{}] {}", seed, rank, spread,
                                       fmt::join(invocation, ","), only.size());
  packer.adapter().invocation_ = std::move(invocation);
  packer.adapter().digest_ = digest_of(std::array{std::as_bytes(std::span(name))});
  return packer.finish(name);
}

std::uint32_t Adapter::rank_max() const {
  std::uint32_t most = 0;
  for (const Layer& layer : layers_)
    for (const LowRank& pair : layer) most = std::max(most, pair.a.outputs);
  return most;
}

Result<std::shared_ptr<const AdapterSet>> AdapterSet::make(std::vector<Part> parts) {
  if (parts.empty() || parts.size() > kPartsMax)
    return Error{Code::invalid, fmt::format("a request may have 1 to {} adapters", kPartsMax)};
  std::vector<std::byte> named;
  std::shared_ptr<AdapterSet> made(new AdapterSet());
  for (const Part& part : parts) {
    if (!std::isfinite(part.scale))
      return Error{Code::invalid, "the scale of an adapter must be a number"};
    if (!part.adapter->invocation().empty() && parts.size() > 1)
      return Error{Code::unsupported,
                   "an adapter that begins at invocation tokens goes with no other adapter"};
    made->invocation_.assign(part.adapter->invocation().begin(), part.adapter->invocation().end());
    named.insert(named.end(), part.adapter->digest().begin(), part.adapter->digest().end());
    const auto scale = std::as_bytes(std::span(&part.scale, 1));
    named.insert(named.end(), scale.begin(), scale.end());
  }
  made->digest_ = hex_text(digest_of(std::array{std::span<const std::byte>(named)}));
  made->parts_ = std::move(parts);
  return std::shared_ptr<const AdapterSet>(std::move(made));
}

std::shared_ptr<const AdapterSet> AdapterSet::named(std::string digest,
                                                    std::vector<TokenId> invocation) {
  std::shared_ptr<AdapterSet> made(new AdapterSet());
  made->digest_ = std::move(digest);
  made->invocation_ = std::move(invocation);
  return made;
}

std::uint32_t AdapterSet::begins_at(std::span<const TokenId> prompt) const {
  if (invocation_.empty()) return 0;
  const auto found = std::ranges::find_end(prompt, invocation_);
  return found.empty() ? kNever : static_cast<std::uint32_t>(found.begin() - prompt.begin());
}

}  // namespace quire
