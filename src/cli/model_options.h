// cli/model_options.h - the options every command that loads a model has, and the loading itself.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/model_files.h"
#include "cli/tier_options.h"
#include "engine/runtime.h"

namespace quire::cli {

// What stays exact in a lossy format, and keys and values in formats of their own.
struct KvStorageCli {
  std::string keys, values;
  std::uint32_t recent_exact = 0, sinks = 0;
  std::vector<std::uint32_t> skip_layers;
  std::string window, budget, select;  // SIZE[,SINK]; METHOD:AMOUNT; METHOD:AMOUNT
  bool allow_lossy = false;
};
void add_storage_options(CLI::App& app, KvStorageCli& options, bool rare);
// "auto" stays as it is where neither keys nor values are named.
std::string format_name(const std::string& kv_format, const KvStorageCli& options);

struct ModelOptionsCli {
  std::string path, named;  // MODEL, or -m; neither: the default model
  std::uint32_t threads = 0, context = 0, block_size = 32, batch_rows = 0;
  std::string device = "cpu", weights = "auto", random_weights;
  std::string evictor = "odds";
  bool fast = false;
  std::string kv_format = "auto", activations = "int8", isa, kv_cache_memory;
  double pin_budget = 0.5, tenant_pin_share = 1;  // RuntimeOptions
  KvStorageCli kv;
  TierOptionsCli tier;
};

void add_model_options(CLI::App& app, ModelOptionsCli& options);
void add_retention_options(CLI::App& app, ModelOptionsCli& options);  // for run, chat and serve

// Of commands that look at a model without running it.
struct DescribeCli {
  std::string model;
  std::uint32_t block_size = 32;
  bool json = false;
};
void add_describe_options(CLI::App& app, DescribeCli& options);

Result<std::string> find_model(const ModelOptionsCli& options);
Result<RuntimeOptions> runtime_options(const ModelOptionsCli& options);
Result<std::unique_ptr<Runtime>> open_runtime(const ModelOptionsCli& options);

// "8GiB", "512M", "1000": K/M/G are powers of 1,000, KiB/MiB/GiB of 1,024.
std::string human_bytes(double bytes);  // "1.50 GiB", "12.00 MiB", "512 B"
// "1,2,3", or "@FILE" with a JSON array.
Result<std::vector<TokenId>> parse_tokens(const std::string& text);

}  // namespace quire::cli
