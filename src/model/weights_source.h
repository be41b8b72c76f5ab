// model/weights_source.h - a model on disk, whatever its form: configuration, tensors by name,
// tokenizer data, digest.
//
// Opens a GGUF file or a Hugging Face folder (config.json, *.safetensors, tokenizer.json). Tensors
// go by GGUF's names in both; a view lives as long as the source and is read straight from the
// mapped file. Shapes are checked against the configuration when asked for, so that the loader need
// not doubt them.
//
//   TRY(ModelSource source, ModelSource::open("models/smollm2.gguf"));
//   TRY(TensorView q, source.tensor("blk.0.attn_q.weight"));   // [query_heads * head_dim, hidden]
//   pack(q);
//   source.drop_pages(q);                                      // the packed copy serves from here
//   on
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

  // Numbers nobody trained, for a Hugging Face config.json: to measure speed at any size. Matrices
  // are bf16, near Gaussian with a deviation of kRandomSpread, norms are 1; there is no tokenizer.
  static Result<ModelSource> open_random(const std::string& config_path);
  bool is_random() const { return random_ != nullptr; }

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

  // How its makers want it to be sampled: what generation_config.json, or a GGUF file's
  // general.sampling.*, say of temperature, top_k, top_p, min_p, repetition_penalty and do_sample.
  // An object under these names; what is absent or no number is left out.
  Json sampling_settings() const;

  // SHA-256 over everything that decides what the model computes: the GGUF file, or config.json and
  // the weight files. Reads all of it.
  Result<std::array<std::byte, 32>> weights_digest() const;

  // The pages that hold this tensor's bytes may leave memory.
  void drop_pages(const TensorView& tensor) const;

  // Told of every whole tensor whose pages are dropped, which is when it has been loaded: bytes so
  // far, of all. By one thread at a time. To be set before loading.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;
  void watch(Progress progress);

 private:
  ModelSource();
  static Result<ModelSource> open_gguf(const std::string& path);
  static Result<ModelSource> open_folder(const std::string& path);
  std::string with_prefix(const std::string& stored) const;
  const TensorView* find(
      const std::string& stored) const;  // as the file spells it; null: not there

  Result<TensorView> random_tensor(std::string_view name) const;

  std::string path_;
  ModelConfig config_;
  struct Random;
  std::shared_ptr<Random> random_;     // what was made so far
  std::shared_ptr<MadeTensors> made_;  // out of what the file has
  struct Watched;
  std::shared_ptr<Watched> watched_;  // none: nobody asks
  std::optional<GgufFile> gguf_;      // one of these two
  std::optional<SafetensorsFolder> folder_;
  std::string hf_prefix_;  // of all tensor names in the folder but the head's
  std::vector<std::string> digest_files_;
};

}  // namespace quire
