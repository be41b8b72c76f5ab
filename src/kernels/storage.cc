#include "kernels/storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "kernels/encoded.h"

namespace quire {
namespace {

// The first tokens differ from all others, so a calibration does not fit them. KVQuant keeps this
// many exact; without that kvquant-3 has ten times the divergence on SmolLM2.
constexpr std::uint32_t kCalibratedSinks = 5;

const Format* row_format(const Format& f) {
  return find_format(f.rows == RowType::f32    ? "f32"
                     : f.rows == RowType::bf16 ? "bf16"
                                               : "f16")
      .value();
}

LayerGroup empty_group(const LayerShape& l, const Format* format) {
  LayerGroup g;
  g.kind = l.kind;
  g.kv_heads = l.kv_heads;
  g.key_dim = l.key_dim;
  g.value_dim = l.value_dim;
  g.window = l.window;
  g.format = format;
  return g;
}

bool same(const LayerGroup& a, const LayerGroup& b) {
  return a.kind == b.kind && a.kv_heads == b.kv_heads && a.key_dim == b.key_dim &&
         a.value_dim == b.value_dim && a.window == b.window && a.format == b.format &&
         a.together == b.together;
}

LayerPlace add_layer(std::vector<LayerGroup>& groups, const LayerGroup& like, std::uint32_t layer) {
  auto g = std::ranges::find_if(groups, [&](const LayerGroup& other) { return same(other, like); });
  if (g == groups.end()) g = groups.insert(g, like);
  g->layers.push_back(layer);
  return {static_cast<std::uint32_t>(g - groups.begin()),
          static_cast<std::uint32_t>(g->layers.size() - 1) / g->layers_per_page()};
}

bool alike(const LayerShape& a, const LayerShape& b) {
  return a.kind == GroupKind::full && b.kind == GroupKind::full && a.kv_heads == b.kv_heads &&
         a.key_dim == b.key_dim && a.value_dim == b.value_dim;
}

// Whether a layer shares its page with a neighbour in this format. The second half of the layers is
// taken in pairs, from the last layer down.
bool is_merged(std::span<const LayerShape> layers, const StoragePolicy& policy, std::uint32_t layer,
               const Format* format) {
  const auto count = static_cast<std::uint32_t>(layers.size());
  const std::uint32_t first = count - std::min(count, std::max(1u, count / 4) * 2) / 2 * 2;
  if (format->keys->layers == 1 || layer < first) return false;
  const std::uint32_t other = (layer - first) % 2 == 0 ? layer + 1 : layer - 1;
  return alike(layers[layer], layers[other]) && policy.of_layer(other) == format;
}

}  // namespace

const Format* StoragePolicy::of_layer(std::uint32_t layer) const {
  const Format* f = layer < by_layer.size() ? by_layer[layer] : format;
  return std::ranges::find(skip_layers, layer) == skip_layers.end() ? f : row_format(*f);
}

const Format* StoragePolicy::rows() const { return row_format(*format); }

bool StoragePolicy::lossy() const {
  return !format->exact || std::ranges::any_of(by_layer, [](const Format* f) { return !f->exact; });
}

std::uint32_t StoragePolicy::bits_min() const {
  std::uint32_t bits = 32;
  const auto count = [&](const Format* f) {
    for (const Codec* c : {f->keys, f->values})
      if (!c->exact) bits = std::min(bits, c->bits);
  };
  if (by_layer.empty()) count(format);
  for (const Format* f : by_layer) count(f);
  return bits;
}

std::string StoragePolicy::name() const {
  std::string text(format->name);
  if (!by_layer.empty()) {  // two plans are two things
    text.clear();
    for (const Format* f : by_layer) text.append(f->name) += ' ';
    text = fmt::format("planned-{:08x}", hash64(text.data(), text.size()) & 0xffffffffu);
  }
  if (recent_exact > 0) text += fmt::format(" recent={}", recent_exact);
  if (sinks > 0) text += fmt::format(" sinks={}", sinks);
  if (!skip_layers.empty()) text += fmt::format(" skip={}", fmt::join(skip_layers, "+"));
  if (window > 0) text += fmt::format(" window={}", window);
  if (prefill.way == SparsePrefill::Way::antidiagonals)
    text += fmt::format(" xattention={:g}", prefill.threshold);
  if (prefill.way == SparsePrefill::Way::vertical_slash)
    text += fmt::format(" vertical-slash={}+{}", prefill.columns, prefill.diagonals);
  return text;
}

Geometry build_geometry(std::span<const LayerShape> given, std::uint32_t tokens_per_block,
                        const StoragePolicy& policy) {
  std::vector<LayerShape> layers(given.begin(), given.end());
  for (LayerShape& l : layers)
    if (policy.window > 0 && l.kind == GroupKind::full) {
      l.kind = GroupKind::window;
      l.window = policy.window;
    }
  Geometry geometry;
  geometry.tokens_per_block = tokens_per_block;
  geometry.prefill = policy.prefill;
  bool merges = false;
  for (std::uint32_t l = 0; l < layers.size(); ++l)
    merges = merges || is_merged(layers, policy, l, policy.of_layer(l));
  for (std::uint32_t l = 0; l < layers.size(); ++l) {
    const Format* format = policy.of_layer(l);
    const bool merged = is_merged(layers, policy, l, format);
    if (merges && !merged && format->keys->layers > 1) format = row_format(*format);
    LayerGroup group = empty_group(layers[l], format);
    group.together = merged ? format->keys->layers : 1;
    geometry.places.push_back(add_layer(geometry.groups, group, l));
  }
  if (geometry.exact()) return geometry;
  geometry.rows = geometry.places;
  const auto blocks = [&](std::uint32_t tokens) {
    return (tokens + tokens_per_block - 1) / tokens_per_block;
  };
  for (std::uint32_t l = 0; l < layers.size(); ++l) {
    const LayerGroup& sealed = geometry.groups[geometry.places[l].group];
    const Format* format = sealed.format;
    if (format->exact) continue;
    LayerGroup recent = empty_group(layers[l], row_format(*format));
    recent.kind = GroupKind::recent;
    recent.window = 0;  // recent_blocks bounds it
    recent.together = sealed.together;
    recent.recent_blocks = blocks(policy.recent_exact);
    const bool calibrated = format->keys->calibrated || format->values->calibrated;
    recent.sink_blocks = blocks(std::max(policy.sinks, calibrated ? kCalibratedSinks : 0));
    geometry.rows[l] = add_layer(geometry.groups, recent, l);
  }
  return geometry;
}

Status use_calibrations(Geometry& geometry, std::span<const Calibration> calibrations) {
  for (LayerGroup& g : geometry.groups) {
    if (g.kind == GroupKind::state) continue;
    const auto find = [&](const Codec& codec, std::uint32_t dim, const Calibration*& to) -> Status {
      if (!codec.calibrated) return {};
      const auto c = std::ranges::find_if(calibrations, [&](const Calibration& each) {
        return each.fits(codec) && each.dim == dim &&
               each.lanes.size() == geometry.places.size() * g.kv_heads * 2;
      });
      if (c == calibrations.end())
        return Error{Code::unsupported,
                     fmt::format("KV format {} has not been calibrated for this model; `quire "
                                 "calibrate --format {}` does that",
                                 codec.name, codec.name)};
      to = &*c;
      return {};
    };
    TRY_STATUS(find(*g.format->keys, g.key_dim, g.key_calibration));
    TRY_STATUS(find(*g.format->values, g.value_dim, g.value_calibration));
  }
  return {};
}

namespace {

// What is stored as values is read as keys, too.
Status check_latent(const Format& f) {
  const bool keys = can_be_latent(*f.keys) || f.keys->exact;
  if (keys && can_be_latent(*f.values)) return {};
  return Error{
      Code::unsupported,
      fmt::format("KV format {} cannot hold the latent rows of this model: f16, bf16, f32, "
                  "int8, q8_0, q4_0, hadamard-int4 and hadamard-int4-head can; as "
                  "KEYS/VALUES the rotated part comes first, which may also be f16",
                  f.name)};
}

}  // namespace

Status check_geometry(const Geometry& geometry) {
  constexpr std::size_t kGroups = 8;
  if (geometry.groups.size() > kGroups)
    return Error{Code::unsupported,
                 fmt::format("{} groups of layers with different windows or formats: {} at most",
                             geometry.groups.size(), kGroups)};
  for (const LayerGroup& g : geometry.groups) {
    if (g.kind == GroupKind::state) continue;
    if (g.format->keys->layers != g.layers_per_page())
      return Error{
          Code::unsupported,
          fmt::format("KV format {} merges neighbouring layers that see everything and are "
                      "alike; in the second half of this model there are none",
                      g.format->name)};
    TRY_STATUS(g.format->check(geometry.page_shape(g)));
    if (g.kind == GroupKind::latent && !g.format->exact) TRY_STATUS(check_latent(*g.format));
  }
  return {};
}

}  // namespace quire
