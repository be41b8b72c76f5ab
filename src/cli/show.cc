// cli/show.cc - `quire show`: a model's architecture and what its cache costs.
#include <fmt/core.h>

#include "cli/command.h"
#include "cli/model_options.h"
#include "engine/plan.h"
#include "engine/sampling_defaults.h"
#include "engine/text_parts.h"
#include "model/device_weights.h"
#include "model/weights_source.h"

namespace quire::cli {
namespace {

const char* kind_name(GroupKind kind) {
  constexpr const char* names[] = {"full", "window", "latent", "state", "recent"};
  return names[static_cast<int>(kind)];
}

Json group_json(const Geometry& geometry, const LayerGroup& g) {
  Json j{{"kind", kind_name(g.kind)},
         {"layers", g.layers},
         {"kv_heads", g.kv_heads},
         {"head_dim", g.key_dim},
         {"bytes_per_token", geometry.bytes_per_token(g)},
         {"block_bytes", geometry.block_bytes(g)}};
  if (g.kind == GroupKind::latent) j["latent_dim"] = g.value_dim;
  if (g.window) j["window"] = g.window;
  return j;
}

int run_show(const DescribeCli& o) {
  const auto path = find_model(o.model);
  if (!path.ok()) return fail(path.error());
  const auto source = ModelSource::open(path.value());
  if (!source.ok()) return fail(source.error());
  const ModelConfig& c = source.value().config();
  const auto text = read_text_parts(source.value());
  const SamplingDefaults sampling = sampling_defaults(source.value());

  Json out{{"path", path.value()},
           {"architecture", c.architecture},
           {"name", c.name},
           {"layers", c.layers},
           {"hidden", c.hidden},
           {"feed_forward", c.feed_forward},
           {"query_heads", c.query_heads},
           {"kv_heads", c.kv_heads},
           {"head_dim", c.head_dim},
           {"vocabulary", c.vocabulary},
           {"context", c.context},
           {"weights_bytes", source.value().tensor_bytes()},
           {"gpu_weights_bytes",
            {{"bf16", device_weight_bytes(source.value(), WeightStorage::bf16)},
             {"packed", device_weight_bytes(source.value(), WeightStorage::packed)}}}};
  out["tokenizer"] = text.ok() ? Json{{"tokens", text.value().tokenizer.size()},
                                      {"chat_template", text.value().chat_template.has_value()}}
                               : Json{{"error", text.error().message}};
  const SamplingOptions& s = sampling.options;
  out["sampling"] = {{"temperature", s.temperature},
                     {"top_k", s.top_k},
                     {"top_p", s.top_p},
                     {"min_p", s.min_p},
                     {"repetition_penalty", s.repetition_penalty},
                     {"from_model", sampling.from_model}};
  out["kv"] = Json::object();
  for (const Format* f : formats()) {
    const Geometry geometry = make_geometry(c, o.block_size, f);
    if (!check_geometry(geometry).ok()) continue;  // it cannot hold heads of this size
    Json groups = Json::array();
    double growing = 0;
    for (const LayerGroup& g : geometry.groups) {
      groups.push_back(group_json(geometry, g));
      if (g.window == 0 && g.kind != GroupKind::recent) growing += geometry.bytes_per_token(g);
    }
    const Plan plan = make_plan(geometry, {.context = c.context, .concurrency = 1});
    out["kv"][std::string(f->name)] = {{"bytes_per_token", growing},
                                       {"bytes_at_context", plan.bytes_per_sequence},
                                       {"groups", groups}};
  }
  if (o.json) {
    print_json(out);
    return kOk;
  }
  fmt::print("{}  ({})\n", c.name.empty() ? path.value() : c.name, c.architecture);
  const Attention& attn = c.per_layer[0].attn;
  const std::string heads = attn.latent ? fmt::format("{} query heads over latent rows of {} + {}",
                                                      c.query_heads, attn.value_dim, attn.key_dim)
                                        : fmt::format("{} query and {} KV heads of {}",
                                                      c.query_heads, c.kv_heads, c.head_dim);
  fmt::print("  {} layers, {} wide, feed-forward {}, {}\n", c.layers, c.hidden, c.feed_forward,
             heads);
  fmt::print("  vocabulary {}, context {}, weights {:.1f} MB\n", c.vocabulary, c.context,
             static_cast<double>(source.value().tensor_bytes()) / 1e6);
  const auto on_gpu = [&](const char* how) {
    return out["gpu_weights_bytes"][how].get<double>() / 1e6;
  };
  fmt::print("  on a GPU {:.1f} MB as bf16, {:.1f} MB packed\n", on_gpu("bf16"), on_gpu("packed"));
  if (text.ok())
    fmt::print("  chat template: {}\n", text.value().chat_template ? "yes"
                                        : text.value().template_problem.empty()
                                            ? "none"
                                            : text.value().template_problem);
  else
    fmt::print("  tokenizer: {}\n", text.error().message);
  const std::string at_context = fmt::format("at {} tokens", c.context);
  std::size_t name_width = 8;
  for (const auto& [name, kv] : out["kv"].items()) name_width = std::max(name_width, name.size());
  fmt::print("  sampling: {}\n", sampling.text());
  fmt::print("\n  {:<{}}  {:>11}   {:>{}}   by layer group, in bytes/token\n", "KV cache",
             name_width, "bytes/token", at_context, std::max<std::size_t>(at_context.size(), 13));
  for (const Format* f : formats()) {
    if (!out["kv"].contains(f->name)) continue;
    const Json& kv = out["kv"][std::string(f->name)];
    std::string groups;
    for (const Json& g : kv["groups"])
      groups +=
          fmt::format("{}{} {} layers{}: {:.10g}", groups.empty() ? "" : ", ", g["layers"].size(),
                      g["kind"].get<std::string>(),
                      g.contains("window") ? fmt::format(" of {}", g["window"].get<int>()) : "",
                      g["bytes_per_token"].get<double>());
    fmt::print("  {:<{}}  {:>11.10g}   {:>{}.1f} MB   {}\n", f->name, name_width,
               kv["bytes_per_token"].get<double>(), kv["bytes_at_context"].get<double>() / 1e6,
               std::max<std::size_t>(at_context.size(), 13) - 3, groups);
  }
  return kOk;
}

std::function<int()> declare_show(CLI::App& app) {
  auto o = std::make_shared<DescribeCli>();
  add_describe_options(app, *o);
  return [o] { return run_show(*o); };
}

}  // namespace

extern const Command kShow = {"show", "describe a model and the size of its cache",
                              "examples:\n  quire show model.gguf\n  quire show model.gguf --json",
                              declare_show};

}  // namespace quire::cli
