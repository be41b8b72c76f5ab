// lab/formats/probe.h - finds the layers that need fewer bits: measures a cost for every layer's
// keys and values in a few codecs, and chooses the cheapest mixture that fits a budget of bytes.
//
// The model reads the text with one layer's keys or values in a codec and everything else in f16.
// The divergence that this causes is the cost. Costs of layers are assumed to add up, which they
// nearly do while they are small.
//
//   TRY(Probe p, probe_storage(runtime, {.keys = {"int8", "hadamard-int4"}, ...}, tokens));
//   StoragePolicy plan = choose_plan(p, bytes_per_token);
//   write_file(plan_path(model), plan_json(plan).dump());
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/runtime.h"

namespace quire {

struct ProbeQuestion {
  std::vector<const Codec*> keys, values;  // from wide to narrow; f16 rows
  std::uint32_t window = 512;
  std::function<void(std::size_t done, std::size_t all)> progress = {};  // measurements
};

struct Probe {
  std::vector<const Codec*> keys, values;
  // [layer][codec]: nats per token that it costs, and the bytes per token it takes.
  std::vector<std::vector<double>> key_cost, value_cost;
  std::vector<std::vector<double>> key_bytes, value_bytes;
};

Result<Probe> probe_storage(Runtime& runtime, const ProbeQuestion& question,
                            std::span<const TokenId> tokens);

// The formats of all layers. All start as the widest; the one that costs least per byte saved is
// narrowed next, until the budget is met or all are as narrow as possible.
std::vector<const Format*> choose_plan(const Probe& probe, double bytes_per_token);

Json plan_json(std::span<const Format* const> by_layer);
Result<std::vector<const Format*>> parse_plan(const Json& json);

}  // namespace quire
