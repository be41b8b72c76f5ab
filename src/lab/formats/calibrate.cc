#include "lab/formats/calibrate.h"

#include <atomic>
#include <cstring>

#include "base/half.h"
#include "engine/stepper.h"

namespace quire {
namespace {

// Keys before RoPE, or values, of one lane in all sequences: [tokens][dim].
std::vector<float> lane_rows(Runtime& r, std::span<const Sequence> sequences, std::uint32_t layer,
                             std::uint32_t head, Side side) {
  const Geometry& geometry = r.geometry();
  const LayerPlace place = geometry.places[layer];
  const LayerGroup& group = geometry.groups[place.group];
  const std::uint32_t dim = group.key_dim, tokens = geometry.tokens_per_block;
  const bool keys = side == Side::keys;
  const std::size_t lane =
      (std::size_t{place.index} * group.kv_heads + head) * geometry.page_bytes(group) +
      (keys ? 0 : geometry.key_bytes(group));
  std::vector<float> rows;
  for (const Sequence& s : sequences)
    for (std::uint32_t position = 0; position < s.length(); ++position) {
      const std::byte* page =
          arena_at(r.cache().arena(), s.table(place.group)[position / tokens]) + lane;
      const std::uint32_t slot = position % tokens;
      const std::size_t first = rows.size();
      for (std::uint32_t d = 0; d < dim; ++d) {
        std::uint16_t h;
        std::memcpy(&h, page + 2 * (keys ? std::size_t{d} * tokens + slot : slot * dim + d), 2);
        rows.push_back(f16_to_f32(h));
      }
      if (keys) turn_key(r.executor().page_work()->rope(layer), position, true, &rows[first]);
    }
  return rows;
}

}  // namespace

Result<Calibration> calibrate(Runtime& r, const CalibrationQuestion& question,
                              std::span<const TokenId> tokens) {
  const Codec& codec = *question.codec;
  const ModelConfig& config = r.config();
  if (!codec.calibrated)
    return Error{Code::invalid, std::string(codec.name) + " needs no calibration"};
  if (r.executor().traits().device != DeviceKind::cpu)
    return Error{Code::unsupported, "calibrating reads the cache: use --device cpu"};
  for (const LayerGroup& g : r.geometry().groups)
    if (g.format->name != std::string_view("f16") || g.window != 0 || g.kind != GroupKind::full)
      return Error{Code::unsupported,
                   "calibrating needs a cache of f16, and a model without windows or latent rows"};
  TRY_STATUS(check_rows(codec, {r.geometry().tokens_per_block, config.head_dim}));
  std::vector<Sequence> sequences;
  for (std::size_t at = 0; at < tokens.size(); at += question.window) {
    const auto part =
        tokens.subspan(at, std::min<std::size_t>(question.window, tokens.size() - at));
    TRY(Sequence s, r.open_sequence(static_cast<std::uint32_t>(part.size())));
    r.cache().attach(s, part);
    TRY_STATUS(Stepper(r).prefill(s, static_cast<std::uint32_t>(part.size())));
    sequences.push_back(std::move(s));
  }

  Calibration c{.kind = codec.channels > 1 ? CalibrationKind::coupled : CalibrationKind::kvquant,
                .dim = config.head_dim,
                .channels = codec.channels,
                .bits = codec.bits * codec.channels,
                .lanes = {},
                .digest = {}};
  c.lanes.resize(std::size_t{config.layers} * config.kv_heads * 2);
  std::atomic<std::size_t> next{0}, done{0};
  r.pool().run([&](ThreadPool::Worker worker) {
    for (std::size_t i; (i = next.fetch_add(1)) < c.lanes.size();) {
      const auto at = static_cast<std::uint32_t>(i / 2);
      const Side side = i % 2 ? Side::values : Side::keys;
      const std::vector<float> rows =
          lane_rows(r, sequences, at / config.kv_heads, at % config.kv_heads, side);
      c.lanes[i] = codec.channels > 1 ? fit_coupled(codec, rows, c.dim)
                                      : fit_kvquant(codec, side, rows, c.dim);
      const std::size_t count = done.fetch_add(1) + 1;
      if (worker.index == 0 && question.progress) question.progress(count, c.lanes.size());
    }
  });
  const std::string file = serialize_calibration(c);
  return parse_calibration(std::as_bytes(std::span(file)));  // with its digest
}

}  // namespace quire
