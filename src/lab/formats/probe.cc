#include "lab/formats/probe.h"

#include <algorithm>

#include "lab/formats/quality.h"

namespace quire {
namespace {

constexpr std::size_t kTogether = 4;  // ways per pass over the text

double bytes_per_token(const Runtime& r, const Codec& codec, Side side) {
  const PageShape page{r.geometry().tokens_per_block, r.config().head_dim,
                       r.config().per_layer[0].attn.value_dim};
  return static_cast<double>(codec_bytes(codec, side, page.rows(side))) * r.config().kv_heads /
         page.tokens;
}

}  // namespace

Result<Probe> probe_storage(Runtime& r, const ProbeQuestion& question,
                            std::span<const TokenId> tokens) {
  const std::uint32_t layers = r.config().layers;
  TRY(const Format* f16, find_format("f16"));
  Probe probe;
  probe.keys = question.keys;
  probe.values = question.values;
  struct Place {
    std::vector<std::vector<double>>* costs;
    std::uint32_t layer;
    std::size_t codec;
  };
  std::vector<StoragePolicy> ways;
  std::vector<Place> places;
  const auto add = [&](std::span<const Codec* const> codecs, Side side,
                       std::vector<std::vector<double>>& costs,
                       std::vector<std::vector<double>>& bytes) -> Status {
    costs.assign(layers, std::vector<double>(codecs.size()));
    bytes.assign(layers, {});
    for (std::uint32_t l = 0; l < layers; ++l)
      for (std::size_t c = 0; c < codecs.size(); ++c) {
        bytes[l].push_back(bytes_per_token(r, *codecs[c], side));
        if (codecs[c] == f16->keys) continue;
        const std::string_view name = codecs[c]->name;
        TRY(const Format* format,
            side == Side::keys ? find_format(name, "f16") : find_format("f16", name));
        StoragePolicy way = f16;
        way.by_layer.assign(layers, f16);
        way.by_layer[l] = format;
        ways.push_back(std::move(way));
        places.push_back({&costs, l, c});
      }
    return {};
  };
  TRY_STATUS(add(question.keys, Side::keys, probe.key_cost, probe.key_bytes));
  TRY_STATUS(add(question.values, Side::values, probe.value_cost, probe.value_bytes));
  for (std::size_t first = 0; first < ways.size(); first += kTogether) {
    const std::size_t end = std::min(ways.size(), first + kTogether);
    TRY(const std::vector<Quality> scores,
        compare_storage(r,
                        {.reference = f16,
                         .ways = {ways.begin() + static_cast<std::ptrdiff_t>(first),
                                  ways.begin() + static_cast<std::ptrdiff_t>(end)},
                         .window = question.window},
                        tokens));
    for (std::size_t i = first; i < end; ++i)
      (*places[i].costs)[places[i].layer][places[i].codec] = scores[i - first].kl_mean;
    if (question.progress) question.progress(end, ways.size());
  }
  return probe;
}

std::vector<const Format*> choose_plan(const Probe& p, double budget) {
  struct Lane {
    const std::vector<double>*cost, *bytes;
    std::size_t choice = 0;
  };
  std::vector<Lane> lanes;  // keys of layer 0, values of layer 0, keys of layer 1, ...
  double bytes = 0;
  for (std::size_t l = 0; l < p.key_cost.size(); ++l) {
    lanes.push_back({&p.key_cost[l], &p.key_bytes[l]});
    lanes.push_back({&p.value_cost[l], &p.value_bytes[l]});
    bytes += p.key_bytes[l][0] + p.value_bytes[l][0];
  }
  while (bytes > budget) {
    Lane* best = nullptr;
    double best_price = 0;
    for (Lane& lane : lanes) {
      if (lane.choice + 1 == lane.cost->size()) continue;
      const double saved = (*lane.bytes)[lane.choice] - (*lane.bytes)[lane.choice + 1];
      const double price = ((*lane.cost)[lane.choice + 1] - (*lane.cost)[lane.choice]) / saved;
      if (best && price >= best_price) continue;
      best = &lane;
      best_price = price;
    }
    if (!best) break;
    bytes -= (*best->bytes)[best->choice] - (*best->bytes)[best->choice + 1];
    ++best->choice;
  }
  std::vector<const Format*> plan;
  for (std::size_t l = 0; l < p.key_cost.size(); ++l)
    plan.push_back(
        find_format(p.keys[lanes[2 * l].choice]->name, p.values[lanes[2 * l + 1].choice]->name)
            .value());
  return plan;
}

Json plan_json(std::span<const Format* const> by_layer) {
  Json layers = Json::array();
  for (const Format* f : by_layer) layers.push_back({{"k", f->keys->name}, {"v", f->values->name}});
  return {{"quire_kv_plan", 1}, {"layers", layers}};
}

Result<std::vector<const Format*>> parse_plan(const Json& json) {
  const Error wrong{Code::corrupt, "this is not a plan of `quire probe`; run it again"};
  if (!json.is_object() || json.value("quire_kv_plan", 0) != 1 || !json.contains("layers") ||
      !json["layers"].is_array())
    return wrong;
  std::vector<const Format*> by_layer;
  for (const Json& layer : json["layers"]) {
    if (!layer.is_object() || !layer.contains("k") || !layer["k"].is_string() ||
        !layer.contains("v") || !layer["v"].is_string())
      return wrong;
    TRY(const Format* f, find_format(layer["k"].get<std::string>(), layer["v"].get<std::string>()));
    by_layer.push_back(f);
  }
  return by_layer;
}

}  // namespace quire
