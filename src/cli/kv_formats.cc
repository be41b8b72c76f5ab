// cli/kv_formats.cc - `quire kv formats`: the formats there are, and what a model's cache costs in
// them.
#include <fmt/core.h>

#include "cli/command.h"
#include "cli/model_options.h"
#include "engine/plan.h"
#include "model/weights_source.h"

namespace quire::cli {
namespace {

int run_kv_formats(const DescribeCli& o) {
  const auto path = find_model(o.model);
  if (!path.ok()) return fail(path.error());
  const auto source = ModelSource::open(path.value());
  if (!source.ok()) return fail(source.error());
  const ModelConfig& c = source.value().config();
  const PageShape page{o.block_size, c.head_dim, c.per_layer[0].attn.value_dim};
  Json rows = Json::array();
  for (const Format* f : formats()) {
    Json row{{"format", f->name}, {"exact", f->exact}, {"research", f->research()}};
    const Geometry geometry = make_geometry(c, o.block_size, f);
    const Status holds = check_geometry(geometry);
    if (holds.ok()) {
      row["effective_bits"] = f->effective_bits(page);
      row["bytes_per_token"] = make_plan(geometry, {.context = 1}).bytes_per_token;
      row["needs_allow_lossy"] = StoragePolicy(f).bits_min() < 8;
      row["shares_slots"] = f->slots_stand_alone(page);
    } else {
      row["refused"] = holds.error().message;
    }
    rows.push_back(std::move(row));
  }
  Json aliases = Json::object();
  for (const CodecAlias& a : codec_aliases()) aliases[std::string(a.theirs)] = a.ours;
  if (o.json) {
    print_json({{"model", path.value()},
                {"formats", rows},
                {"aliases", aliases},
                {"pairs", "KEYS/VALUES, of formats with rows of f16"}});
    return kOk;
  }
  const std::string heads = page.key_dim == page.value_dim
                                ? fmt::format("{} KV heads of {}", c.kv_heads, c.head_dim)
                                : fmt::format("latent rows of {} + {}", page.value_dim, c.head_dim);
  fmt::print("{} ({})\n\n  {:<15}{:>6}{:>14}\n", path.value(), heads, "format", "bits",
             "bytes/token");
  for (const Json& row : rows) {
    const std::string name = row["format"];
    if (row.contains("refused")) {
      fmt::print("  {:<15}{}\n", name, row["refused"].get<std::string>());
      continue;
    }
    fmt::print("  {:<15}{:>6.2f}{:>14.10g}   {}{}\n", name, row["effective_bits"].get<double>(),
               row["bytes_per_token"].get<double>(),
               row["exact"].get<bool>()               ? "exact"
               : row["needs_allow_lossy"].get<bool>() ? "requests need allow_lossy"
                                                      : "",
               row["research"].get<bool>() ? ", research" : "");
  }
  fmt::print(
      "\n  Keys and values may differ: KEYS/VALUES, for example int8/hadamard-int4 (f32 and bf16 "
      "stand alone).\n  Other names are understood:");
  for (const auto& [theirs, ours] : aliases.items())
    fmt::print(" {}={}", theirs, ours.get<std::string>());
  fmt::print("\n");
  return kOk;
}

std::function<int()> declare_kv_formats(CLI::App& app) {
  auto o = std::make_shared<DescribeCli>();
  add_describe_options(app, *o);
  return [o] { return run_kv_formats(*o); };
}

}  // namespace

extern const Command kKvFormats = {"kv formats", "the formats of cached keys and values",
                                   "examples:\n"
                                   "  quire kv formats\n"
                                   "  quire kv formats model.gguf --json",
                                   declare_kv_formats};

}  // namespace quire::cli
