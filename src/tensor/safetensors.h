// tensor/safetensors.h - weights in Hugging Face's safetensors form: one file, or a folder of
// shards with an index.
//
// Files are mapped, checked once when opened and never copied; views live as long as the object
// (moving it keeps them valid). Whatever the bytes claim, nothing outside the file is read and
// nothing is allocated by a claimed size. F32, F16 and BF16 are read; a tensor of another type is
// an error only when asked for. Data need not be aligned to its element type.
//
//   TRY(SafetensorsFolder folder, SafetensorsFolder::open("models/SmolLM2-135M-Instruct"));
//   TRY(const TensorView* q, folder.tensor("model.layers.0.self_attn.q_proj.weight"));
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/tensor.h"

namespace quire {

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  // Parses bytes that the caller keeps alive; errors show `name` instead of a path.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, const std::string& name);

  bool has(std::string_view tensor) const;
  Result<const TensorView*> tensor(std::string_view name) const;
  std::span<const TensorView> tensors() const { return tensors_; }  // of the types we read
  Status check_types() const;  // an error that names a tensor of another type

  const std::string& name() const { return name_; }
  bool holds(std::span<const std::byte> part) const;  // whether it is of this file
  void drop_pages(
      std::span<const std::byte> part) const;  // nothing, if the part is not of this file
  void detach() { file_.detach(); }            // base/file.h
  const MappedFile& file() const { return file_; }

 private:
  struct Foreign {  // a tensor of a type we do not read
    std::string name, type;
  };
  const Foreign* foreign(std::string_view tensor) const;

  MappedFile file_;
  std::string name_;
  std::vector<TensorView> tensors_;  // by name
  std::vector<Foreign> foreign_;
};

class SafetensorsFolder {
 public:
  // model.safetensors.index.json and the shards it names, or model.safetensors.
  static Result<SafetensorsFolder> open(const std::string& folder);

  bool has(std::string_view tensor) const;
  Result<const TensorView*> tensor(std::string_view name) const;
  std::span<const SafetensorsFile> files() const { return files_; }
  void drop_pages(const TensorView& tensor) const;
  void detach();

 private:
  const SafetensorsFile* holder(std::string_view tensor) const;

  std::string folder_;
  std::vector<SafetensorsFile> files_;
};

// The shard files an index names, sorted, each once. Only plain file names are accepted.
Result<std::vector<std::string>> shards_of_index(std::string_view index_json,
                                                 const std::string& name);

}  // namespace quire
