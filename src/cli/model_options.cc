#include "cli/model_options.h"

#include <fmt/core.h>

#include <charconv>
#include <filesystem>

#include "base/byte_size.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/calibrations.h"
#include "cli/help.h"
#include "cli/progress_line.h"
#include "kernels/cuda/device.h"
#include "kv/evict/evict.h"
#include "lab/formats/probe.h"

namespace quire::cli {
void add_storage_options(CLI::App& app, KvStorageCli& o, bool rare) {
  CLI::Option* const options[] = {
      app.add_option("--cache-type-k", o.keys, "format of keys only"),
      app.add_option("--cache-type-v", o.values, "format of values only"),
      app.add_option("--kv-recent-exact", o.recent_exact,
                     "lossy formats: last tokens that stay exact (0)"),
      app.add_option("--kv-sinks", o.sinks, "lossy formats: first tokens that stay exact (0)"),
      app.add_option("--kv-skip-layers", o.skip_layers,
                     "lossy formats: layers that stay f16, 0,1,29")
          ->delimiter(',')};
  if (rare)
    for (CLI::Option* option : options) option->group(kRare);
}

std::string format_name(const std::string& kv_format, const KvStorageCli& o) {
  if (o.keys.empty() && o.values.empty()) return kv_format;
  const std::string other = kv_format == "auto" ? "f16" : kv_format;
  return (o.keys.empty() ? other : o.keys) + "/" + (o.values.empty() ? other : o.values);
}

void add_retention_options(CLI::App& app, ModelOptionsCli& o) {
  app.add_option("--kv-budget", o.kv.budget,
                 "tokens that stay, METHOD:SHARE% (kv methods), with --allow-lossy");
  app.add_option("--kv-select", o.kv.select,
                 "tokens that are read, METHOD:AMOUNT (kv methods), with --allow-lossy")
      ->group(kRare);
  app.add_option("--window", o.kv.window,
                 "SIZE[,SINK]: layers see only the last (and first) tokens")
      ->group(kRare);
}

void add_adapter_options(CLI::App& app, ModelOptionsCli& o) {
  app.add_option("--lora,--lora-modules", o.adapters,
                 "NAME=PATH: a LoRA adapter, folder or GGUF; repeatable")
      ->allow_extra_args(false);
  app.add_option("--lora-merge", o.merged_adapter,
                 "PATH or NAME: this adapter becomes part of the model itself")
      ->group(kRare);
  app.add_option("--lora-memory", o.adapter_memory, "memory of all adapters (1GiB)")->group(kRare);
}

// "NAME=PATH", or a path alone, whose last part is the name.
Result<std::pair<std::string, std::string>> parse_adapter(const std::string& text) {
  const std::size_t at = text.find('=');
  std::pair<std::string, std::string> made{text.substr(0, at), text};
  if (at != text.npos) {
    made.second = text.substr(at + 1);
  } else {
    std::filesystem::path path(text);
    if (!path.has_filename()) path = path.parent_path();
    made.first = path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
  }
  if (made.first.empty() || made.second.empty())
    return Error{Code::invalid, "--lora " + text + ": write NAME=PATH"};
  return made;
}

Status read_adapters(const ModelOptionsCli& o, RuntimeOptions& r) {
  for (const std::string& text : o.adapters) {
    TRY(auto adapter, parse_adapter(text));
    r.adapters.files.push_back(std::move(adapter));
  }
  TRY(r.adapters.bytes_max, parse_size(o.adapter_memory));
  r.adapters.folder = o.adapter_dir;
  r.merged_adapter = o.merged_adapter;
  // By the name of one that --lora names, which is then not served beside it.
  std::erase_if(r.adapters.files, [&](const auto& file) {
    if (file.first != o.merged_adapter) return false;
    r.merged_adapter = file.second;
    return true;
  });
  return {};
}

void add_model_options(CLI::App& app, ModelOptionsCli& o) {
  app.add_option("MODEL", o.path, "GGUF file, Hugging Face folder, or hf:OWNER/REPO[:FILE]");
  app.add_option("-m,--model", o.named, "the same as MODEL")->group(kRare);
  app.add_option("--device", o.device, "cpu, cuda, or auto: the GPU if there is one (cpu)")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  app.add_option("--weights", o.weights,
                 "on a GPU: bf16, packed, or auto: packed if bf16 does not fit")
      ->check(CLI::IsMember({"auto", "bf16", "packed"}))
      ->group(kRare);
  app.add_flag("--fast", o.fast, "on a GPU: the last bits of an answer may depend on the batch")
      ->group(kRare);
  app.add_option("--random-weights", o.random_weights,
                 "CONFIG.json: random weights, to measure speed at any size")
      ->group(kRare);
  app.add_option("-t,--threads", o.threads, "compute threads (all cores)");
  app.add_option("-c,--ctx-size,--max-model-len", o.context, "context in tokens (the model's)");
  app.add_option("--kv-format,--kv-cache-dtype", o.kv_format,
                 "format of cached keys and values (f16)");
  add_storage_options(app, o.kv, true);
  app.add_flag("--allow-lossy", o.kv.allow_lossy,
               "needed by --kv-format planned, --kv-budget, --kv-select and --window")
      ->group(kRare);
  app.add_option("--kv-cache-memory", o.kv_cache_memory,
                 "cache budget, e.g. 2GiB (80 % of what is free)");
  app.add_option("--pin-budget", o.pin_budget, "share of the cache that pins may hold (0.5)")
      ->group(kRare)
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--kv-evict", o.evictor,
                 "which cached blocks leave first: odds, cost, lru, lfu, s3fifo, priority (odds)")
      ->group(kRare);
  app.add_option("--block-size", o.block_size, "tokens per cache block: 16, 32 or 64")
      ->group(kRare)
      ->check(CLI::IsMember({16, 32, 64}));
  app.add_option("--activations", o.activations, "int8, or int16 for more precision")
      ->group(kRare)
      ->check(CLI::IsMember({"int8", "int16"}));
  app.add_option("--isa", o.isa, "scalar, avx2, avx512 or vnni (the best there is)")->group(kRare);
  app.add_option("--batch-rows,--max-num-batched-tokens", o.batch_rows,
                 "rows per step (512; on a GPU 8192)")
      ->group(kRare)
      ->check(CLI::Range(1, 65536));
}

void add_describe_options(CLI::App& app, DescribeCli& o) {
  app.add_option("-m,--model,MODEL", o.model, "GGUF file or Hugging Face folder");
  app.add_option("--block-size", o.block_size, "tokens per cache block (32)")
      ->check(CLI::IsMember({16, 32, 64}));
  app.add_flag("--json", o.json, "print one JSON object");
}

Result<std::string> find_model(const ModelOptionsCli& o) {
  if (!o.named.empty() && !o.path.empty())
    return Error{Code::invalid, "two models: -m " + o.named + " and " + o.path};
  return find_model(o.named.empty() ? o.path : o.named);
}

Result<std::string> find_or_fetch_model(const ModelOptionsCli& o) {
  if (!o.named.empty() && !o.path.empty()) return find_model(o);
  return find_or_fetch_model(o.named.empty() ? o.path : o.named);
}

std::string human_bytes(double bytes) {
  if (bytes >= 0x1p30) return fmt::format("{:.2f} GiB", bytes / 0x1p30);
  if (bytes >= 0x1p20) return fmt::format("{:.2f} MiB", bytes / 0x1p20);
  return fmt::format("{:.10g} B", bytes);
}

Result<std::vector<TokenId>> parse_tokens(const std::string& text) {
  std::vector<TokenId> tokens;
  if (text.starts_with('@')) {
    TRY(const std::string file, read_file(text.substr(1)));
    TRY(const Json json, parse_json(file));
    if (!json.is_array())
      return Error{Code::invalid, text.substr(1) + ": is not a JSON array of token numbers"};
    for (const Json& t : json) {
      if (!t.is_number_unsigned() || t.get<std::uint64_t>() >= kNoToken)
        return Error{Code::invalid,
                     text.substr(1) + ": holds something that is not a token number: " + t.dump()};
      tokens.push_back(t.get<TokenId>());
    }
    return tokens;
  }
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    TokenId token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    if (error != std::errc() || (next < end && *next != ','))
      return Error{Code::invalid, "'" + text + "' is not a list of token numbers like 1,2,3"};
    tokens.push_back(token);
    at = next + 1;
  }
  return tokens;
}

// A window that keeps first tokens is a retention policy; one that does not is a storage policy.
Status read_retention(const KvStorageCli& o, RuntimeOptions& r) {
  if (o.window.empty() && o.budget.empty()) return {};
  if (!o.window.empty() && !o.budget.empty())
    return Error{Code::invalid, "give --window or --kv-budget, not both"};
  if (!o.allow_lossy)
    return Error{Code::invalid, std::string(o.window.empty() ? "--kv-budget" : "--window") +
                                    " may change answers: add --allow-lossy"};
  std::string policy = o.budget;
  if (!o.window.empty()) {
    std::uint32_t size = 0, sink = 0;
    const char* const end = o.window.data() + o.window.size();
    auto read = std::from_chars(o.window.data(), end, size);
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == ',')
      read = std::from_chars(read.ptr + 1, end, sink);
    if (read.ec != std::errc() || read.ptr != end || size == 0)
      return Error{Code::invalid, "--window: '" + o.window + "' is not SIZE or SIZE,SINK"};
    if (sink == 0) {
      r.kv_window = size;
      return {};
    }
    policy = window_policy(size, sink);
  }
  auto made = parse_retain_policy(policy);
  if (!made.ok()) return Error{Code::invalid, "--kv-budget: " + made.error().message};
  r.kv_retain = std::make_shared<RetainPolicy>(std::move(made.value()));
  return {};
}

Status read_selection(const KvStorageCli& o, RuntimeOptions& r) {
  if (o.select.empty()) return {};
  if (!o.allow_lossy)
    return Error{Code::invalid, "--kv-select may change answers: add --allow-lossy"};
  auto made = parse_select_policy(o.select);
  if (!made.ok()) return Error{Code::invalid, "--kv-select: " + made.error().message};
  r.kv_select = std::make_shared<SelectPolicy>(std::move(made.value()));
  return {};
}

Result<RuntimeOptions> runtime_options(const ModelOptionsCli& o) {
  const bool cuda = o.device == "cuda" || (o.device == "auto" && open_cuda().ok());
  RuntimeOptions r{.device = cuda ? DeviceKind::cuda : DeviceKind::cpu,
                   .random_weights = !o.random_weights.empty(),
                   .fast = o.fast,
                   .weights = o.weights == "packed" ? WeightStorage::packed
                              : o.weights == "bf16" ? WeightStorage::bf16
                                                    : WeightStorage::automatic,
                   .threads = o.threads,
                   .activations = o.activations == "int16" ? Activations::int16 : Activations::int8,
                   .kv_format = format_name(o.kv_format, o.kv),
                   .kv_recent_exact = o.kv.recent_exact,
                   .kv_sinks = o.kv.sinks,
                   .kv_skip_layers = o.kv.skip_layers,
                   .tokens_per_block = o.block_size,
                   .context = o.context,
                   .rows_max = o.batch_rows,
                   .evictor = o.evictor,
                   .pin_budget = o.pin_budget,
                   .tenant_pin_share = o.tenant_pin_share};
  if (const auto known = find_evict_policy(o.evictor); !known.ok())
    return Error{Code::invalid, "--kv-evict: " + known.error().message};
  if (o.threads > 1024) return Error{Code::invalid, "--threads must be at most 1024"};
  if (!o.isa.empty()) {
    const auto isa = find_isa(o.isa);
    if (!isa.ok()) return Error{Code::invalid, "--isa: " + isa.error().message};
    if (!cpu_has(isa.value())) return Error{Code::invalid, "this processor has no " + o.isa};
    r.isa = isa.value();
  }
  if (!o.kv_cache_memory.empty()) {
    TRY(r.kv_cache_bytes, parse_size(o.kv_cache_memory));
  }
  TRY_STATUS(read_retention(o.kv, r));
  TRY_STATUS(read_selection(o.kv, r));
  TRY_STATUS(read_tier_options(o.tier, r));
  TRY_STATUS(read_adapters(o, r));
  if (r.kv_format == "planned" && !o.kv.allow_lossy)
    return Error{Code::invalid, "--kv-format planned may change answers: add --allow-lossy"};
  if (r.kv_format != "auto" && r.kv_format != "planned") {
    const auto format = find_format(r.kv_format);
    if (!format.ok()) return Error{Code::invalid, "--kv-format: " + format.error().message};
  }
  return r;
}

// A model without a plan is no error, unless the format "planned" is asked for.
Result<std::vector<const Format*>> stored_plan(const std::string& model) {
  const std::string file = plan_path(model);
  if (!std::filesystem::exists(file)) return std::vector<const Format*>{};
  TRY(const std::string text, read_file(file));
  const auto json = parse_json(text);
  if (!json.ok()) return Error{Code::corrupt, file + ": " + json.error().message};
  auto plan = parse_plan(json.value());
  if (!plan.ok()) return Error{plan.error().code, file + ": " + plan.error().message};
  return plan;
}

Result<std::vector<Calibration>> stored_calibrations(const std::string& model) {
  std::vector<Calibration> all;
  for (const Codec* codec : codecs()) {
    const std::string file = calibration_path(model, codec->name);
    if (!codec->calibrated || !std::filesystem::exists(file)) continue;
    TRY(const std::string bytes, read_file(file));
    auto parsed = parse_calibration(std::as_bytes(std::span(bytes)));
    if (!parsed.ok()) return Error{parsed.error().code, file + ": " + parsed.error().message};
    all.push_back(std::move(parsed.value()));
  }
  return all;
}

Result<std::unique_ptr<Runtime>> open_runtime(const ModelOptionsCli& options,
                                              std::shared_ptr<SharedCache> shared,
                                              ModelSource::Progress progress) {
  const bool made_up = !options.random_weights.empty();
  TRY(const std::string path,
      made_up ? Result<std::string>(options.random_weights) : find_or_fetch_model(options));
  TRY(RuntimeOptions wanted, runtime_options(options));
  if (!made_up) {
    TRY(wanted.kv_plan, stored_plan(path));
    TRY(wanted.calibrations, stored_calibrations(path));
  }
  ProgressLine line("loaded", "MB of " + std::filesystem::path(path).filename().string(), 1e6);
  wanted.loading = [&](std::uint64_t done, std::uint64_t all) {
    if (progress) progress(done, all);
    if (!shared) line.at(done, all);
  };
  wanted.shared = shared;
  TRY(std::unique_ptr<Runtime> runtime, Runtime::open(path, wanted));
  const std::uint32_t trained = runtime->config().context;
  if (options.context > trained)
    fmt::print(
        stderr,
        "warning: -c {}: the model was trained for {} tokens; beyond them answers get worse\n",
        options.context, trained);
  return runtime;
}

Result<std::shared_ptr<const AdapterSet>> given_adapters(Runtime& runtime) {
  std::vector<ScaledAdapter> all;
  for (const AdapterInfo& adapter : runtime.adapters().list()) all.push_back({adapter.id});
  std::string names;
  return runtime.adapters().find(all, names);
}

}  // namespace quire::cli
