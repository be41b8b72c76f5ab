#include "model/weights_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "model/arch/arch.h"
#include "model/file_digest.h"

namespace quire {
namespace {

// "blk.12.attn_q.weight" is "blk.N.attn_q.weight" and 12; a layer past the model's last is no
// tensor of it.
struct SplitName {
  std::string pattern;
  std::string layer;  // digits; empty when the name has none
};

SplitName split_layer(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return {std::string(name), {}};
  const std::size_t end = name.find('.', kPrefix.size());
  if (end == name.npos) return {std::string(name), {}};
  return {"blk.N" + std::string(name.substr(end)),
          std::string(name.substr(kPrefix.size(), end - kPrefix.size()))};
}

const TensorRow* tensor_row(const ModelConfig& config, std::string_view name) {
  const SplitName split = split_layer(name);
  const auto in = [&](std::span<const TensorRow> rows) -> const TensorRow* {
    const auto found = std::find_if(rows.begin(), rows.end(),
                                    [&](const TensorRow& r) { return r.name == split.pattern; });
    return found == rows.end() ? nullptr : &*found;
  };
  if (const TensorRow* row = in(common_tensors())) return row;
  for (const Architecture* a : architectures())
    if (a->name == config.architecture) return in(a->tensors);
  return nullptr;
}

}  // namespace

Result<ModelSource> ModelSource::open(const std::string& path) {
  ModelSource source;
  source.path_ = path;
  TRY(source.gguf_, GgufFile::open(path));
  TRY(source.config_, config_from_gguf(*source.gguf_));
  source.digest_files_ = {path};
  if (source.config_.name.empty())
    source.config_.name = std::filesystem::path(path).stem().string();
  return source;
}

const TensorView* ModelSource::find(std::string_view name) const { return gguf_->find(name); }

Result<TensorView> ModelSource::tensor(std::string_view name) const {
  const TensorRow* row = tensor_row(config_, name);
  if (!row)
    return Error{Code::invalid, fmt::format("{}: architecture {} has no tensor '{}'", path_,
                                            config_.architecture, name)};
  const TensorView* found = find(name);
  if (!found) return Error{Code::not_found, fmt::format("{}: tensor '{}' is missing", path_, name)};
  std::vector<std::uint64_t> shape;
  if (row->rows != Extent::none) shape.push_back(extent_of(row->rows, config_));
  shape.push_back(extent_of(row->columns, config_));
  if (found->shape != shape)
    return Error{Code::corrupt,
                 fmt::format("{}: tensor '{}' has shape [{}], the configuration needs [{}]", path_,
                             name, fmt::join(found->shape, ", "), fmt::join(shape, ", "))};
  return *found;
}

std::uint64_t ModelSource::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorView& tensor : gguf_->tensors()) bytes += tensor.data.size();
  return bytes;
}

Result<GgufTokenizer> ModelSource::gguf_tokenizer() const {
  if (!gguf_) return Error{Code::invalid, path_ + ": is not a GGUF file"};
  const GgufFile& file = *gguf_;
  GgufTokenizer t;
  TRY(t.model, file.string_of("tokenizer.ggml.model"));
  TRY(t.pre, file.string_or("tokenizer.ggml.pre", ""));
  TRY(t.tokens, file.strings_of("tokenizer.ggml.tokens"));
  TRY(t.chat_template, file.string_or("tokenizer.chat_template", ""));
  if (file.has("tokenizer.ggml.merges")) {
    TRY(t.merges, file.strings_of("tokenizer.ggml.merges"));
  }
  const auto one_per_token = [&](std::string_view key, std::uint64_t count) -> Status {
    if (count == t.tokens.size()) return {};
    return Error{Code::corrupt, fmt::format("{}: key '{}' has {} entries for {} tokens", path_, key,
                                            count, t.tokens.size())};
  };
  if (constexpr std::string_view key = "tokenizer.ggml.scores"; file.has(key)) {
    TRY(t.scores, file.floats_of(key));
    TRY_STATUS(one_per_token(key, t.scores.size()));
  }
  if (constexpr std::string_view key = "tokenizer.ggml.token_type"; file.has(key)) {
    TRY(t.types, file.integers_of(key));
    TRY_STATUS(one_per_token(key, t.types.size()));
  }
  const std::pair<std::string_view, std::optional<std::uint32_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &t.bos},
      {"tokenizer.ggml.eos_token_id", &t.eos},
      {"tokenizer.ggml.eot_token_id", &t.eot},
      {"tokenizer.ggml.unknown_token_id", &t.unknown},
      {"tokenizer.ggml.padding_token_id", &t.padding},
  };
  for (const auto& [key, into] : ids) {
    if (!file.has(key)) continue;
    TRY(const std::uint64_t id, file.unsigned_of(key));
    if (id == UINT32_MAX) continue;  // how some files write -1, "none"
    if (id >= t.tokens.size())
      return Error{Code::corrupt, fmt::format("{}: key '{}' is {}, there are {} tokens", path_, key,
                                              id, t.tokens.size())};
    *into = static_cast<std::uint32_t>(id);
  }
  const std::pair<std::string_view, std::optional<bool>*> flags[] = {
      {"tokenizer.ggml.add_bos_token", &t.add_bos},
      {"tokenizer.ggml.add_eos_token", &t.add_eos},
      {"tokenizer.ggml.add_space_prefix", &t.add_space_prefix},
  };
  for (const auto& [key, into] : flags) {
    if (!file.has(key)) continue;
    TRY(*into, file.bool_of(key));
  }
  return t;
}

Result<HfTokenizer> ModelSource::hf_tokenizer() const {
  return Error{Code::invalid, path_ + ": is not a Hugging Face folder"};
}

Result<std::array<std::byte, 32>> ModelSource::weights_digest() const {
  return digest_of_files(digest_files_);
}

void ModelSource::drop_pages(const TensorView& tensor) const { gguf_->drop_pages(tensor); }

}  // namespace quire
