#include "model/weights_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "base/file.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "model/adapter/merged_adapter.h"
#include "model/arch/arch.h"
#include "model/file_digest.h"
#include "model/made_tensors.h"
#include "tensor/gguf_parts.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kConfigBytesMax = 128 << 10, kTokenizerBytesMax = 128 << 20;

// In front of "embed_tokens.weight" and the rest; models that see images put theirs under
// language_model, older ones under transformer.
constexpr std::string_view kHfPrefixes[] = {"model.", "language_model.model.",
                                            "model.language_model.", "transformer.", ""};

Result<std::string> read_file_up_to(const std::string& path, std::uintmax_t bytes_max) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error)
    return Error{
        error == std::errc::no_such_file_or_directory ? Code::not_found : Code::unavailable,
        fmt::format("{}: {}", path, error.message())};
  if (size > bytes_max)
    return Error{Code::corrupt,
                 fmt::format("{}: has {} bytes, at most {} make sense", path, size, bytes_max)};
  return read_file(path);
}

}  // namespace

ModelSource::ModelSource() : made_(std::make_shared<MadeTensors>()) {}

Result<ModelSource> ModelSource::open(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return open_folder(path);
  TRY(const std::vector<std::string> files, gguf_files(path));
  return open_gguf(files.front());
}

Result<ModelSource> ModelSource::open_gguf(const std::string& path) {
  ModelSource source;
  source.path_ = path;
  TRY(source.gguf_, GgufFile::open(path));
  TRY(source.config_, config_from_gguf(*source.gguf_));
  for (const MappedFile& file : source.gguf_->files()) source.digest_files_.push_back(file.path());
  if (source.config_.name.empty()) source.config_.name = gguf_stem(path);
  source.sampling_ = std::make_shared<Json>(source.read_sampling_settings());
  return source;
}

Result<ModelSource> ModelSource::open_folder(const std::string& path) {
  ModelSource source;
  source.path_ = path;
  const std::string config_path = (fs::path(path) / "config.json").string();
  std::error_code ignored;
  if (!fs::exists(config_path, ignored))
    return Error{
        Code::not_found,
        path + ": is a folder without config.json; a GGUF file or a Hugging Face folder is needed"};
  TRY(const std::string config_json, read_file_up_to(config_path, kConfigBytesMax));
  TRY(source.config_, config_from_hf(config_json, config_path));
  source.config_.name = fs::path(path).filename().string();
  TRY(source.quantization_, quantization_from_hf(config_json, config_path));
  TRY(source.folder_, SafetensorsFolder::open(path));
  source.digest_files_ = {config_path};
  for (const SafetensorsFile& file : source.folder_->files())
    source.digest_files_.push_back(file.name());
  source.hf_prefix_ = kHfPrefixes[0];  // what errors will name
  const std::string embedding =
      stored_name(*find_tensor(source.config_, "token_embd.weight"), false);
  for (const std::string_view prefix : kHfPrefixes)
    if (source.folder_->has(std::string(prefix) + embedding)) {
      source.hf_prefix_ = prefix;
      break;
    }
  source.sampling_ = std::make_shared<Json>(source.read_sampling_settings());
  return source;
}

std::string ModelSource::with_prefix(const std::string& stored) const {
  if (gguf_) return stored;
  if (stored != "lm_head.weight") return hf_prefix_ + stored;
  return hf_prefix_.starts_with("language_model.") ? "language_model." + stored : stored;
}

Result<std::vector<std::uint64_t>> ModelSource::shape(std::string_view name) const {
  const std::optional<NamedTensor> tensor = find_tensor(config_, name);
  if (!tensor)
    return Error{Code::invalid, fmt::format("{}: architecture {} of {} layers has no tensor '{}'",
                                            path_, config_.architecture, config_.layers, name)};
  return tensor_shape(config_, *tensor);
}

struct ModelSource::Random {
  std::mutex mutex;  // threads pack at the same time
  std::map<std::string, std::vector<std::uint16_t>, std::less<>> tensors;
};

Result<ModelSource> ModelSource::open_random(const std::string& config_path) {
  ModelSource source;
  source.path_ = config_path;
  TRY(const std::string config_json, read_file_up_to(config_path, kConfigBytesMax));
  TRY(source.config_, config_from_hf(config_json, config_path));
  source.config_.name = "random " + source.config_.architecture;
  source.digest_files_ = {config_path};
  source.random_ = std::make_shared<Random>();
  source.sampling_ = std::make_shared<Json>(Json::object());
  return source;
}

Result<TensorView> ModelSource::random_tensor(std::string_view name) const {
  TRY(std::vector<std::uint64_t> wanted, shape(name));
  const std::lock_guard lock(random_->mutex);
  std::vector<std::uint16_t>& values = random_->tensors[std::string(name)];
  if (values.empty()) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : wanted) count *= extent;
    values.resize(count);
    const std::uint64_t seed = hash64(name.data(), name.size());
    const bool is_norm = wanted.size() == 1;
    for (std::uint64_t i = 0; i < count; ++i) {  // as the device's own generator (cuda/layer.cu)
      const std::uint64_t bits = mix64(seed ^ mix64(i));
      const float sum = static_cast<float>(bits & 0xffff) +
                        static_cast<float>(bits >> 16 & 0xffff) +
                        static_cast<float>(bits >> 32 & 0xffff) + static_cast<float>(bits >> 48);
      values[i] = f32_to_bf16(is_norm ? (config_.output_norm.plus_one ? 0 : 1)
                                      : (sum * (1.0f / 65536) - 2.0f) * 1.7320508f * kRandomSpread);
    }
  }
  return TensorView{std::string(name), DType::bf16, std::move(wanted),
                    std::as_bytes(std::span(values))};
}

std::uint64_t ModelSource::tensor_bytes() const {
  std::uint64_t bytes = 0;
  const auto add = [&](std::span<const TensorView> tensors) {
    for (const TensorView& tensor : tensors) bytes += tensor.data.size();
  };
  if (gguf_)
    add(gguf_->tensors());
  else if (folder_)
    for (const SafetensorsFile& file : folder_->files()) {
      add(file.tensors());
      for (const RawTensor& other : file.others()) bytes += other.data.size();
    }
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
      {"tokenizer.ggml.eom_token_id", &t.eom},
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
      {"tokenizer.ggml.remove_extra_whitespaces", &t.remove_extra_whitespaces},
  };
  for (const auto& [key, into] : flags) {
    if (!file.has(key)) continue;
    TRY(*into, file.bool_of(key));
  }
  return t;
}

Result<HfTokenizer> ModelSource::hf_tokenizer() const {
  if (gguf_) return Error{Code::invalid, path_ + ": is a GGUF file, not a Hugging Face folder"};
  HfTokenizer t;
  const std::pair<const char*, std::string*> files[] = {
      {"tokenizer.json", &t.tokenizer_json},
      {"tokenizer_config.json", &t.tokenizer_config_json},
      {"generation_config.json", &t.generation_config_json},
      {"chat_template.jinja", &t.chat_template},
  };
  for (const auto& [name, into] : files) {
    const fs::path file = fs::path(path_) / name;
    std::error_code ignored;
    if (!fs::exists(file, ignored)) {
      if (into != &t.tokenizer_json) continue;
      return Error{Code::not_found,
                   path_ +
                       ": is a model without tokenizer.json, which its text is read with; copy "
                       "it from where the model came from"};
    }
    TRY(*into, read_file_up_to(file.string(), kTokenizerBytesMax));
  }
  return t;
}

Json ModelSource::read_sampling_settings() const {
  Json settings = Json::object();
  if (gguf_) {
    constexpr std::pair<const char*, const char*> kNames[] = {
        {"temp", "temperature"},
        {"top_k", "top_k"},
        {"top_p", "top_p"},
        {"min_p", "min_p"},
        {"penalty_repeat", "repetition_penalty"}};
    for (const auto& [theirs, ours] : kNames) {
      const std::string key = std::string("general.sampling.") + theirs;
      if (const auto number = gguf_->f32_of(key); number.ok()) settings[ours] = number.value();
      if (const auto number = gguf_->unsigned_of(key); number.ok()) settings[ours] = number.value();
    }
  } else if (folder_) {
    const auto text =
        read_file_up_to((fs::path(path_) / "generation_config.json").string(), kConfigBytesMax);
    const auto config = text.ok() ? parse_json(text.value()) : Result<Json>(text.error());
    if (!config.ok() || !config.value().is_object()) return settings;
    for (const char* name : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"})
      if (const auto found = config.value().find(name);
          found != config.value().end() && found->is_number())
        settings[name] = *found;
    if (const auto found = config.value().find("do_sample");
        found != config.value().end() && found->is_boolean())
      settings["do_sample"] = *found;
  }
  return settings;
}

Result<std::array<std::byte, 32>> ModelSource::weights_digest() const {
  return digest_of_files(digest_files_);
}

struct ModelSource::Watched {
  Progress progress;
  std::mutex mutex;            // threads pack at the same time
  std::set<std::string> seen;  // an embedding may also be the head
  std::uint64_t done = 0;
};

void ModelSource::watch(Progress progress) {
  watched_ = std::make_shared<Watched>();
  watched_->progress = std::move(progress);
}

void ModelSource::drop_pages(const TensorView& tensor) const {
  const bool whole = tensor.data.size() == row_bytes(tensor.type, tensor.columns()) * tensor.rows();
  if (watched_ && whole && !random_) {  // a part is dropped before the whole is
    const std::lock_guard lock(watched_->mutex);
    const std::uint64_t all = tensor_bytes();
    if (watched_->seen.insert(tensor.name).second) {
      watched_->done = std::min(watched_->done + tensor.data.size(), all);
      watched_->progress(watched_->done, all);
    }
  }
  if (made_->drop(tensor)) return;
  if (gguf_)
    gguf_->drop_pages(tensor);
  else if (folder_)
    folder_->drop_pages(tensor.data);
}

Status ModelSource::detach() {
  const std::optional<std::string> changed = change();
  if (gguf_) gguf_->detach();
  if (folder_) folder_->detach();
  if (random_) random_->tensors.clear();
  made_->detach();
  detached_ = true;
  if (!changed) return {};
  return Error{Code::unavailable, *changed + " while it was being loaded; start again"};
}

Result<std::vector<std::byte>> ModelSource::read_tensor(const TensorView& tensor) const {
  if (!merged_ || !merged_->changes(tensor.name)) return read_stored(tensor);
  TRY(TensorView stored, find_tensor_of(tensor.name, false));
  TRY(const std::vector<std::byte> bytes, read_stored(stored));
  stored.data = bytes;
  return merged_->merge(stored);
}

Result<std::vector<std::byte>> ModelSource::read_stored(const TensorView& tensor) const {
  if (random_) return std::vector<std::byte>(tensor.data.begin(), tensor.data.end());
  if (tensor.data.empty()) return read_made(tensor.name);
  return read_bytes(tensor.data);
}

Result<std::vector<std::byte>> ModelSource::read_bytes(std::span<const std::byte> part) const {
  if (gguf_)
    for (const MappedFile& file : gguf_->files())
      if (file.holds(part)) return file.read(part);
  if (folder_)
    for (const SafetensorsFile& file : folder_->files())
      if (file.holds(part)) return file.file().read(part);
  return Error{Code::not_found, path_ + ": what is to be read again is not of its files"};
}

std::optional<std::string> ModelSource::change() const {
  const auto of = [](const MappedFile& file) -> std::optional<std::string> {
    const auto now = FileStamp::of(file.path());
    const FileStamp& then = file.stamp();
    if (!now.ok()) return file.path() + " was taken away";
    if (now.value().inode != then.inode || now.value().device != then.device)
      return file.path() + " was replaced by another file";
    if (now.value().size != then.size)
      return fmt::format("{} had {} bytes and now has {}", file.path(), then.size,
                         now.value().size);
    if (now.value() != then) return file.path() + " was written to";
    return std::nullopt;
  };
  if (gguf_)
    for (const MappedFile& file : gguf_->files())
      if (auto changed = of(file)) return changed;
  if (folder_)
    for (const SafetensorsFile& file : folder_->files())
      if (auto changed = of(file.file())) return changed;
  return std::nullopt;
}

}  // namespace quire
