// model/weights_source.h - a model on disk, whatever its form: configuration, tensors by name,
// tokenizer data, digest.
//
// Opens a GGUF file or a Hugging Face folder (config.json, *.safetensors, tokenizer.json). Tensors
// go by GGUF's names in both. A view is read straight from the mapped file, until detach(). tensor()
// checks the shape against the configuration, so the loader can rely on it.
//
//   TRY(ModelSource source, ModelSource::open("models/smollm2.gguf"));
//   TRY(TensorView q, source.tensor("blk.0.attn_q.weight"));   // [query_heads * head_dim, hidden]
//   pack(q);
//   source.drop_pages(q);                                      // the packed copy takes its place
//   source.detach();                                           // all is loaded: the file may change
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_named.h"
#include "base/result.h"
#include "model/config.h"
#include "tensor/gguf.h"
#include "tensor/safetensors.h"
#include "tensor/tensor.h"

namespace quire {

class MadeTensors;
class MergedAdapter;  // model/adapter/merged_adapter.h

// What a GGUF file says of its tokenizer. Arrays are views of the file; an absent one is empty.
struct GgufTokenizer {
  std::string_view model;  // "gpt2", "llama"
  std::string_view pre;    // pre-tokenizer, "smollm"
  GgufStrings tokens, merges;
  GgufNumbers<float> scores;
  GgufNumbers<std::int64_t> types;
  std::optional<std::uint32_t> bos, eos, eot, eom, unknown, padding;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::string_view chat_template;
};

// The files of a Hugging Face folder as they are; one that is not there is empty.
struct HfTokenizer {
  std::string tokenizer_json, tokenizer_config_json, generation_config_json;
  std::string
      chat_template;  // chat_template.jinja; older folders have it inside tokenizer_config.json
};

inline constexpr float kRandomSpread = 0.02f;

class ModelSource {
 public:
  static Result<ModelSource> open(const std::string& path);

  // Random weights for a Hugging Face config.json, to measure speed at any size. Matrices are bf16,
  // near Gaussian with a deviation of kRandomSpread; norms are 1; there is no tokenizer.
  static Result<ModelSource> open_random(const std::string& config_path);
  bool is_random() const { return random_ != nullptr; }

  // Before anything is loaded: from now on tensors have this adapter in them.
  void merge(std::shared_ptr<const MergedAdapter> adapter) { merged_ = std::move(adapter); }

  const ModelConfig& config() const { return config_; }
  void serve_context(std::uint32_t context) { quire::serve_context(config_, context); }
  const std::string& path() const { return path_; }

  // The tensor of a canonical name, of exactly the shape that the configuration demands.
  Result<TensorView> tensor(std::string_view name) const;
  Result<std::vector<std::uint64_t>> shape(std::string_view name) const;  // that it must have
  std::uint64_t tensor_bytes() const;  // of all tensors in the files

  // One of the two works, by is_gguf().
  bool is_gguf() const { return gguf_.has_value(); }
  Result<GgufTokenizer> gguf_tokenizer() const;
  Result<HfTokenizer> hf_tokenizer() const;

  // The sampling settings that come with the model: temperature, top_k, top_p, min_p,
  // repetition_penalty and do_sample, from generation_config.json or a GGUF file's
  // general.sampling.*. An object with these names; a setting that is absent or no number is left
  // out.
  const Json& sampling_settings() const { return *sampling_; }

  // SHA-256 over everything that decides what the model computes: the GGUF file, or config.json and
  // the weight files. Reads all of it.
  Result<std::array<std::byte, 32>> weights_digest() const;

  // The pages that hold this tensor's bytes may leave memory.
  void drop_pages(const TensorView& tensor) const;

  // Everything is loaded: the files are read no more, so nothing that is done to them can change an
  // answer or end the process. Views of tensors keep type and shape, and read_tensor() is for the few
  // who need numbers later. An error if a file has changed meanwhile.
  Status detach();
  Result<std::vector<std::byte>> read_tensor(const TensorView& tensor) const;

  // Which file is no longer what it was when it was opened, and how; nothing if all are.
  std::optional<std::string> change() const;

  // Set before loading. Called when a whole tensor has been loaded and its pages are dropped, with
  // the bytes so far and the bytes of all tensors. By one thread at a time.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;
  void watch(Progress progress);

 private:
  ModelSource();
  static Result<ModelSource> open_gguf(const std::string& path);
  static Result<ModelSource> open_folder(const std::string& path);
  Json read_sampling_settings() const;
  std::string with_prefix(const std::string& stored) const;
  Result<std::vector<std::byte>> read_made(std::string_view name) const;
  const TensorView* find(
      const std::string& stored) const;  // as the file spells it; null: not there

  Result<TensorView> stored_tensor(std::string_view name) const;  // without what is merged
  Result<std::vector<std::byte>> read_stored(const TensorView& tensor) const;
  Result<TensorView> random_tensor(std::string_view name) const;

  std::string path_;
  ModelConfig config_;
  std::shared_ptr<const Json> sampling_;
  struct Random;
  std::shared_ptr<Random> random_;     // what was made so far
  std::shared_ptr<MadeTensors> made_;  // out of what the file has
  std::shared_ptr<const MergedAdapter> merged_;
  bool detached_ = false;
  struct Watched;
  std::shared_ptr<Watched> watched_;  // none: nobody asks
  std::optional<GgufFile> gguf_;      // one of these two
  std::optional<SafetensorsFolder> folder_;
  std::string hf_prefix_;  // of all tensor names in the folder but the head's
  std::vector<std::string> digest_files_;
};

}  // namespace quire
