#include "model/adapter/adapter_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "model/file_digest.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr const char *kPeftConfig = "adapter_config.json",
                     *kPeftTensors = "adapter_model.safetensors";

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Result<std::shared_ptr<const std::string>> read_bounded(const std::string& path,
                                                        std::uint64_t& left) {
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    return Error{Code::not_found, path + ": is not there, or no file"};
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) return Error{Code::unavailable, fmt::format("{}: {}", path, error.message())};
  if (size > left)
    return Error{Code::exhausted, fmt::format("{}: has {} bytes, there is room for {}; raise "
                                              "--lora-memory",
                                              path, size, left)};
  TRY(std::string bytes, read_file(path));
  if (bytes.size() > left)
    return Error{Code::unavailable, path + ": grew while it was read; try again"};
  left -= bytes.size();
  return std::make_shared<const std::string>(std::move(bytes));
}

bool is_plain(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

bool is_a_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

}  // namespace

std::vector<std::string> adapter_files(const std::string& path) {
  if (!is_a_folder(path)) return {path};
  return {(fs::path(path) / kPeftConfig).string(), (fs::path(path) / kPeftTensors).string()};
}

Result<AdapterFile> read_adapter(const std::string& path, std::uint64_t bytes_max) {
  std::vector<std::shared_ptr<const std::string>> files;
  std::uint64_t left = bytes_max;
  for (const std::string& file : adapter_files(path)) {
    std::error_code ignored;
    if (file.ends_with(kPeftTensors) && !fs::exists(file, ignored) &&
        fs::exists(fs::path(path) / "adapter_model.bin", ignored))
      return Error{Code::unsupported,
                   path +
                       ": has adapter_model.bin, a Python pickle, which is not read; save the "
                       "adapter as safetensors"};
    TRY(auto bytes, read_bounded(file, left));
    files.push_back(std::move(bytes));
  }
  AdapterFile made;
  if (files.size() == 2) {
    TRY(made, parse_peft(*files[0], bytes_of(*files[1]), path));
    made.digest = digest_of(std::array{bytes_of(*files[0]), bytes_of(*files[1])});
  } else {
    TRY(made, parse_gguf_adapter(bytes_of(*files[0]), path));
    made.digest = digest_of(std::array{bytes_of(*files[0])});
  }
  made.bytes = std::move(files);
  return made;
}

Status AdapterPairs::add(std::string module, Side side, const TensorView& tensor) {
  const auto bad = [&](Code code, std::string_view what) {
    return Error{code, fmt::format("{}: tensor '{}' {}", name_, tensor.name, what)};
  };
  if (!is_plain(tensor.type))
    return bad(Code::unsupported,
               fmt::format("is of type {}; adapters are read in F32, F16 and BF16",
                           dtype_info(tensor.type).name));
  if (tensor.shape.size() != 2 || tensor.shape[0] == 0 || tensor.shape[1] == 0)
    return bad(Code::corrupt, "is no matrix");
  auto at = std::ranges::find(pairs_, module, &AdapterPair::module);
  if (at == pairs_.end()) {
    pairs_.push_back({.module = std::move(module), .a = {}, .b = {}});
    at = pairs_.end() - 1;
  }
  TensorView& to = side == Side::a ? at->a : at->b;
  if (!to.shape.empty()) return bad(Code::corrupt, "is there twice");
  to = tensor;
  return {};
}

Result<std::vector<AdapterPair>> AdapterPairs::finish() {
  if (pairs_.empty()) return Error{Code::corrupt, name_ + ": has no LoRA matrices"};
  std::ranges::sort(pairs_, {}, &AdapterPair::module);
  for (const AdapterPair& pair : pairs_) {
    if (pair.a.shape.empty() || pair.b.shape.empty())
      return Error{Code::corrupt, fmt::format("{}: module '{}' has only one of its two matrices",
                                              name_, pair.module)};
    if (pair.a.rows() != pair.b.columns() || pair.a.rows() > kAdapterRankMax)
      return Error{Code::corrupt,
                   fmt::format("{}: the matrices of module '{}' are [{}] and [{}], which is no "
                               "product of rank 1 to {}",
                               name_, pair.module, fmt::join(pair.a.shape, ", "),
                               fmt::join(pair.b.shape, ", "), kAdapterRankMax)};
  }
  return std::move(pairs_);
}

Status check_invocation(std::span<const std::int64_t> tokens, const std::string& name) {
  const bool known = std::ranges::all_of(
      tokens, [](std::int64_t t) { return t >= 0 && t < std::int64_t{kNoToken}; });
  if (!tokens.empty() && tokens.size() <= kInvocationTokensMax && known) return {};
  return Error{Code::corrupt, fmt::format("{}: its invocation tokens must be 1 to {} tokens", name,
                                          kInvocationTokensMax)};
}

}  // namespace quire
