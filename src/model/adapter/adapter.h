// model/adapter/adapter.h - a LoRA adapter in memory, packed as the forward pass multiplies it, and the
// sets of adapters that requests name.
//
// For each linear layer that it changes, an adapter has two small matrices and a scale. With h the
// layer's input in f32, not its codes, and y the layer's output with its bias:
//
//   t = A h,  s = B t           both as plain weights: every sum from 0, inputs in order (linear.h)
//   y[o] = fma(s[o], scale, y[o])
//
// A set's adapters follow each other in the order given. Weights of the model are never changed, so
// rows of any sets may share a step (model/pass_adapters.cc).
//
//   TRY(auto adapter, Adapter::load(path, config, base_is_gguf, bytes_max));
//   TRY(auto set, AdapterSet::make({{adapter, 1.0f}}));
//   plan.adapter_sets = {set.get()}, plan.adapters = {1, 1, 0};   // two rows with it, one without
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "kernels/linear.h"
#include "model/adapter/adapted.h"
#include "model/config.h"
#include "model/huge_buffer.h"

namespace quire {

struct AdapterFile;

struct LowRank {
  PackedMatrix a, b;  // a.outputs is the rank; 0: this layer stays as it is
  float scale = 0;

  explicit operator bool() const { return a.outputs != 0; }
};

class Adapter {
 public:
  using Layer = std::array<LowRank, kAdaptedCount>;  // by Adapted

  // `config` is of the model that it is for, which was read from a GGUF file or not. The packed
  // matrices take at most about `bytes_max` bytes.
  static Result<std::shared_ptr<const Adapter>> load(const std::string& path,
                                                     const ModelConfig& config, bool base_is_gguf,
                                                     std::uint64_t bytes_max);
  static Result<std::shared_ptr<const Adapter>> pack(const AdapterFile& file,
                                                     const ModelConfig& config, bool base_is_gguf,
                                                     std::uint64_t bytes_max);
  // Random matrices for every linear layer that can be adapted, or for some, for tests and
  // measurements. The same seed gives the same bits.
  static Result<std::shared_ptr<const Adapter>> random(const ModelConfig& config,
                                                       std::uint32_t rank, std::uint64_t seed,
                                                       float spread = 0.02f,
                                                       std::vector<TokenId> invocation = {},
                                                       std::span<const Adapted> only = {});

  const Layer& layer(std::uint32_t l) const { return layers_[l]; }
  const std::array<std::byte, 32>& digest() const { return digest_; }
  std::span<const TokenId> invocation() const { return invocation_; }
  std::uint64_t bytes() const { return memory_.size(); }
  std::uint32_t rank_max() const;

 private:
  friend class AdapterPacker;
  std::vector<Layer> layers_;
  std::vector<TokenId> invocation_;
  std::array<std::byte, 32> digest_{};
  HugeBuffer memory_;
};

// What a request computes with, and what its blocks are named by. A set without adapters (named())
// only names blocks: those of a session, say.
class AdapterSet {
 public:
  struct Part {
    std::shared_ptr<const Adapter> adapter;
    float scale = 1;  // times the adapter's own
  };
  static constexpr std::size_t kPartsMax = 16;

  static Result<std::shared_ptr<const AdapterSet>> make(std::vector<Part> parts);
  // `invocation` is that of the one adapter of a set that begins there.
  static std::shared_ptr<const AdapterSet> named(std::string digest,
                                                 std::vector<TokenId> invocation = {});

  std::span<const Part> parts() const { return parts_; }
  // Hexadecimal, of all adapters and scales in their order.
  const std::string& digest() const { return digest_; }
  bool begins_late() const { return !invocation_.empty(); }
  std::span<const TokenId> invocation() const { return invocation_; }
  // The first token of a prompt whose row is adapted: 0, or where the invocation tokens come last, or
  // kNever if they do not come.
  static constexpr std::uint32_t kNever = 0xffffffffu;
  std::uint32_t begins_at(std::span<const TokenId> prompt) const;

 private:
  AdapterSet() = default;
  std::vector<Part> parts_;
  std::string digest_;
  std::vector<TokenId> invocation_;
};

}  // namespace quire
