// cli/plan.cc - `quire plan`: how many tokens and sequences fit, for a file or a well-known model.
#include <fmt/core.h>

#include <filesystem>

#include "base/byte_size.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "engine/plan.h"
#include "kernels/cuda/device.h"
#include "model/catalog.h"
#include "model/device_weights.h"
#include "model/weights_source.h"

namespace quire::cli {
namespace {

struct PlanOptions {
  std::string model, format = "f16", memory, weights;
  std::uint64_t context = 0, concurrency = 0, shared_prefix = 0, prefix_groups = 1;
  std::uint32_t block_size = 32;
  KvStorageCli kv;
  bool json = false, list = false;
};

// A model to plan for: its cache geometry and the size of its weights.
struct Subject {
  std::string name;
  std::uint64_t weights_bytes = 0, context = 0;
  std::uint64_t device_bytes = 0, packed_bytes = 0;  // of the weights on a GPU
  std::function<Geometry(const StoragePolicy&)> geometry;
};

Result<Subject> find_subject(const PlanOptions& o) {
  const Result<const CatalogEntry*> entry = find_in_catalog(o.model);
  if (entry.ok()) {
    const CatalogEntry& e = *entry.value();
    return Subject{
        std::string(e.name),
        static_cast<std::uint64_t>(e.parameters * 2e9),
        e.context,
        static_cast<std::uint64_t>(e.parameters * 2e9),
        static_cast<std::uint64_t>(e.parameters * 5e9 / 8),
        [&e, p = o.block_size](const StoragePolicy& s) { return catalog_geometry(e, p, s); }};
  }
  if (!o.model.empty() && !std::filesystem::exists(o.model) && !find_model(o.model).ok())
    return entry.error();
  TRY(const std::string path, find_model(o.model));
  TRY(const ModelSource source, ModelSource::open(path));
  return Subject{path,
                 source.tensor_bytes(),
                 source.config().context,
                 device_weight_bytes(source, WeightStorage::bf16),
                 device_weight_bytes(source, WeightStorage::packed),
                 [c = source.config(), p = o.block_size](const StoragePolicy& s) {
                   return make_geometry(c, p, s);
                 }};
}

int list_models() {
  fmt::print("{:<18}{:>7}{:>9}{:>6}{:>10}{:>14}\n", "model", "layers", "KV heads", "dim", "context",
             "f16 B/token");
  for (const CatalogEntry& e : catalog()) {
    const Plan p = make_plan(catalog_geometry(e, 32, find_format("f16").value()),
                             {.context = 1, .concurrency = 1});
    fmt::print("{:<18}{:>7}{:>9}{:>6}{:>10}{:>14.10g}\n", e.name, e.layers,
               e.latent ? 1 : e.kv_heads, e.latent ? e.latent : e.head_dim, e.context,
               p.bytes_per_token + p.window_bytes_per_token);
  }
  return kOk;
}

// Reads --memory and --weights.
Status read_memory(const PlanOptions& o, const Subject& subject, PlanRequest& request) {
  if (o.memory.empty()) return {};
  if (o.memory == "gpu") {
    TRY(const CudaDevice* device, open_cuda());
    request.memory_bytes = device->info.free_bytes;
    request.weights_bytes = subject.device_bytes;
  } else {
    TRY(request.memory_bytes, parse_size(o.memory));
    request.weights_bytes = subject.weights_bytes;
  }
  if (o.weights == "bf16") {
    request.weights_bytes = subject.device_bytes;
  } else if (o.weights == "packed") {
    request.weights_bytes = subject.packed_bytes;
  } else if (!o.weights.empty()) {
    TRY(request.weights_bytes, parse_size(o.weights));
  }
  return {};
}

std::vector<std::string> plan_warnings(const Subject& subject, const PlanRequest& request,
                                       const Plan& plan) {
  std::vector<std::string> all;
  if (request.memory_bytes > 0 && request.memory_bytes <= request.weights_bytes)
    all.emplace_back("the weights alone do not fit this memory");
  if (plan.context > subject.context)
    all.push_back(fmt::format("the model was trained for {} tokens", subject.context));
  if (request.memory_bytes > 0 && plan.concurrency > plan.max_concurrency)
    all.push_back(fmt::format(
        "{} sequences do not fit: {} do. They need {} of cache, {} is left beside the weights",
        plan.concurrency, plan.max_concurrency,
        human_bytes(static_cast<double>(plan.kv_pool_bytes)),
        human_bytes(static_cast<double>(request.memory_bytes -
                                        std::min(request.memory_bytes, request.weights_bytes)))));
  return all;
}

Json groups_json(const Plan& plan) {
  Json groups = Json::array();
  for (const PlanGroup& g : plan.groups) {
    Json j{{"layers", g.layers},
           {"lanes", g.lanes},
           {"block_bytes", g.block_bytes},
           {"bytes_per_token", g.bytes_per_token},
           {"bytes_per_sequence", g.bytes_per_sequence}};
    if (g.window) j["window"] = g.window;
    groups.push_back(std::move(j));
  }
  return groups;
}

void print_plan(const PlanRequest& request, const Plan& plan) {
  fmt::print("  one sequence of {} tokens: {}\n", plan.context,
             human_bytes(static_cast<double>(plan.bytes_per_sequence)));
  if (request.memory_bytes > 0)
    fmt::print("  {} holds weights of {} and {} such sequence{}{}\n",
               human_bytes(static_cast<double>(request.memory_bytes)),
               human_bytes(static_cast<double>(request.weights_bytes)), plan.max_concurrency,
               plan.max_concurrency == 1 ? "" : "s",
               request.shared_prefix == 0
                   ? ""
                   : fmt::format(" ({} where the first {} tokens are shared)",
                                 plan.shared_concurrency, request.shared_prefix));
  else
    fmt::print("  {} sequence{}: {} of cache\n", plan.concurrency, plan.concurrency == 1 ? "" : "s",
               human_bytes(static_cast<double>(plan.kv_pool_bytes)));
}

int run_plan(const PlanOptions& o) {
  if (o.list) return list_models();
  const auto found = find_subject(o);
  if (!found.ok()) return fail(found.error());
  const Subject& subject = found.value();
  const auto format = find_format(format_name(o.format, o.kv));
  if (!format.ok()) return fail(kUsage, format.error().message);
  const auto storage = [&](const Format* f) {
    StoragePolicy s = f;
    s.recent_exact = o.kv.recent_exact;
    s.sinks = o.kv.sinks;
    s.skip_layers = o.kv.skip_layers;
    return s;
  };
  PlanRequest request{.context = o.context,
                      .concurrency = o.concurrency,
                      .shared_prefix = o.shared_prefix,
                      .prefix_groups = o.prefix_groups};
  if (const Status read = read_memory(o, subject, request); !read.ok()) return fail(read.error());
  if (request.context == 0 && (request.memory_bytes == 0 || request.concurrency == 0))
    request.context = subject.context;
  const Geometry geometry = subject.geometry(storage(format.value()));
  if (const Status ok = check_geometry(geometry); !ok.ok()) return fail(kUsage, ok.error().message);
  const Plan plan = make_plan(geometry, request);
  const std::string stored_as = storage(format.value()).name();
  const std::vector<std::string> warnings = plan_warnings(subject, request, plan);
  if (!o.json) {
    fmt::print("{} in {}\n  {}\n\n", subject.name, stored_as, plan.formula);
    print_plan(request, plan);
    for (const std::string& w : warnings) fmt::print(stderr, "warning: {}\n", w);
    return kOk;
  }
  Json by_format = Json::array();
  for (const Format* f : formats()) {
    const Geometry stored = subject.geometry(storage(f));
    if (!check_geometry(stored).ok()) continue;
    const Plan other = make_plan(stored, request);
    by_format.push_back({{"format", f->name},
                         {"bytes_per_token", other.bytes_per_token},
                         {"bytes_per_sequence", other.bytes_per_sequence},
                         {"max_concurrency", other.max_concurrency}});
  }
  print_json({{"model", subject.name},
              {"format", stored_as},
              {"bytes_per_token", plan.bytes_per_token + plan.window_bytes_per_token},
              {"growing_bytes_per_token", plan.bytes_per_token},
              {"context", plan.context},
              {"bytes_per_sequence", plan.bytes_per_sequence},
              {"concurrency", plan.concurrency},
              {"max_concurrency", plan.max_concurrency},
              {"kv_pool_bytes", plan.kv_pool_bytes},
              {"blocks", plan.blocks},
              {"block_size", o.block_size},
              {"max_tokens", plan.max_tokens},
              {"weights_bytes", subject.weights_bytes},
              {"with_sharing",
               {{"dedup_ratio", plan.deduplication}, {"max_concurrency", plan.shared_concurrency}}},
              {"by_format", by_format},
              {"groups", groups_json(plan)},
              {"formula", plan.formula},
              {"assumptions",
               {"K and V as allocated: whole blocks, whole slabs",
                "weights at 2 bytes per parameter unless a file or --weights says otherwise"}},
              {"warnings", warnings}});
  return kOk;
}

std::function<int()> declare_plan(CLI::App& app) {
  auto o = std::make_shared<PlanOptions>();
  app.add_option("-m,--model,MODEL", o->model, "a file, a folder, or a name from --list");
  app.add_option("-c,--context", o->context, "tokens per sequence (the model's context)");
  app.add_option("--concurrency", o->concurrency, "sequences at a time");
  app.add_option("--memory", o->memory,
                 "for weights and cache, e.g. 80GiB; gpu: what is free there");
  app.add_option("--weights", o->weights,
                 "their size (from the model), or as a GPU holds them: bf16, packed");
  app.add_option("-f,--format", o->format, "cache format (f16)");
  add_storage_options(app, o->kv, false);
  app.add_option("--shared-prefix", o->shared_prefix, "first tokens that sequences have in common");
  app.add_option("--prefix-groups", o->prefix_groups, "how many different shared prefixes (1)");
  app.add_option("--block-size", o->block_size, "tokens per block (32)")
      ->check(CLI::IsMember({16, 32, 64}));
  app.add_flag("--list", o->list, "the models known by name");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_plan(*o); };
}

}  // namespace

extern const Command kPlan = {
    "plan", "how much cache a model needs, how much fits",
    "examples:\n"
    "  quire plan --model llama-3-70b --context 131072 --format f16\n"
    "  quire plan --model llama-3.1-8b --memory 80GiB --context 8192 --shared-prefix 6000\n"
    "  quire plan --model model.gguf --concurrency 32 --json",
    declare_plan};

}  // namespace quire::cli
