// kernels/storage.h - how keys and values are stored (a policy), and the geometry of a model's
// cache under that policy.
//
// A policy is chosen per server or per request; the model, or the catalog of models, describes the
// layers. Layers with the same window and format share a group. Layers in a lossy format have a
// second group, of kind recent, for the rows that are not encoded yet.
//
//   StoragePolicy p = find_format("hadamard-int4").value();
//   p.recent_exact = 128;
//   Geometry g = build_geometry(layers, 32, p);
//   TRY_STATUS(check_geometry(g));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/calibration.h"
#include "kernels/geometry.h"

namespace quire {

struct StoragePolicy {
  StoragePolicy(const Format* f) : format(f) {}  // NOLINT: a format is the simplest policy

  const Format* format;
  std::uint32_t recent_exact = 0;          // tokens before the open block that stay unencoded
  std::uint32_t sinks = 0;                 // first tokens that do; both are rounded up to blocks
  std::vector<std::uint32_t> skip_layers;  // stay in the row type of the format
  std::uint32_t window = 0;  // layers that see all tokens see only this many; 0: no change
  std::vector<const Format*> by_layer;  // a plan: instead of `format`, for each layer
  SparsePrefill prefill = {};           // how much of itself a prompt reads

  const Format* of_layer(std::uint32_t layer) const;
  const Format* rows() const;  // the exact format of what is not encoded
  bool lossy() const;
  std::uint32_t bits_min() const;  // of the codes of the narrowest lossy codec; 32 when exact
  std::string name() const;        // for people, and for metrics
};

struct LayerShape {
  GroupKind kind;  // full, window or latent
  std::uint32_t kv_heads, key_dim, value_dim, window;
};

Geometry build_geometry(std::span<const LayerShape> layers, std::uint32_t tokens_per_block,
                        const StoragePolicy& policy);

// Gives calibrated codecs their calibration. An error if one is missing for this model.
Status use_calibrations(Geometry& geometry, std::span<const Calibration> calibrations);

// An error if a format cannot hold its pages, or if there are too many groups.
Status check_geometry(const Geometry& geometry);

}  // namespace quire
