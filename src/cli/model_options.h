// cli/model_options.h - the options every command that loads a model has, and the loading itself.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime.h"

namespace quire::cli {

struct ModelOptionsCli {
  std::string path;  // empty: the default model
  std::uint32_t threads = 0, context = 0, block_size = 32, batch_rows = 0;
  std::string device = "cpu", random_weights;
  std::string kv_format = "auto", activations = "int8", isa, kv_cache_memory;
};

void add_model_options(CLI::App& app, ModelOptionsCli& options);

// A path that exists: as given, or looked up among the models in the cache folder.
Result<std::string> find_model(const std::string& given);
std::string model_cache_folder();

Result<RuntimeOptions> runtime_options(const ModelOptionsCli& options);
Result<std::unique_ptr<Runtime>> open_runtime(const ModelOptionsCli& options);

// "8GiB", "512M", "1000": K/M/G are powers of 1,000, KiB/MiB/GiB of 1,024.
Result<std::uint64_t> parse_size(const std::string& text);
// "1,2,3", or "@FILE" with a JSON array.
Result<std::vector<TokenId>> parse_tokens(const std::string& text);

}  // namespace quire::cli
