#include "tensor/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tensor/printable.h"
#include "tensor/safetensors.h"

namespace quire {
namespace {

// Limits far above any real model. They keep the memory that a hostile file can make us hold under
// 64 MiB.
constexpr std::size_t kFileTensorsMax = 65'536, kNameBytesMax = 255, kFileDimensionsMax = 8,
                      kDepthMax = 8, kShardsMax = 4096;

// What both readers share: nesting depth, the error, and refusing values that a reader does not
// expect.
class Events : public nlohmann::json_sax<nlohmann::json> {
 public:
  Status read(std::string_view json) {
    if (nlohmann::json::sax_parse(json, this)) return {};
    return Error{Code::corrupt, error_.empty() ? "not JSON" : error_};
  }

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a fraction"); }
  bool string(string_t&) override { return other("a string"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("header is not JSON at byte {}", at));
  }

 protected:
  virtual bool other(std::string_view what) = 0;  // a value that has no meaning here
  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  bool enter() { return ++depth_ <= kDepthMax || fail("header is nested too deeply"); }
  bool leave() {
    --depth_;
    return true;
  }
  std::size_t depth_ = 0;

 private:
  std::string error_;
};

// {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}
class HeaderReader final : public Events {
 public:
  std::vector<TensorClaim> claims;

  bool key(string_t& k) override {
    if (depth_ == 1) {
      skipping_ = k == "__metadata__";
      if (k.empty() || k.size() > kNameBytesMax)
        return fail(
            fmt::format("tensor number {} has a name of {} bytes", claims.size() + 1, k.size()));
      if (!skipping_ && claims.size() == kFileTensorsMax)
        return fail(fmt::format("has more than {} tensors", kFileTensorsMax));
      if (!skipping_) claims.emplace_back().name = std::move(k);
      has_type_ = has_shape_ = false;
      offsets_ = 0;
    } else if (depth_ == 2 && !skipping_) {
      field_ = k;
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 2 && !skipping_) return unexpected("an object");
    return enter();
  }
  bool end_object() override {
    if (depth_ == 2 && !skipping_) {
      if (!has_type_) return fail(what() + " has no 'dtype'");
      if (!has_shape_) return fail(what() + " has no 'shape'");
      if (offsets_ != 2) return fail(what() + " has no two 'data_offsets'");
    }
    return leave();
  }
  bool start_array(std::size_t) override {
    if (skipping_) return enter();
    if (depth_ != 2 || (field_ != "shape" && field_ != "data_offsets")) return unexpected("a list");
    if (field_ == "shape" && std::exchange(has_shape_, true))
      return fail(what() + " has two shapes");
    return enter();
  }
  bool string(string_t& value) override {
    if (skipping_) return true;
    if (depth_ != 2 || field_ != "dtype" || has_type_ || value.size() > 32)
      return unexpected("a string");
    has_type_ = true;
    claims.back().type = std::move(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (skipping_) return true;
    if (depth_ != 3) return unexpected("a number");
    TensorClaim& claim = claims.back();
    if (field_ == "shape") {
      if (claim.shape.size() == kFileDimensionsMax)
        return fail(fmt::format("{} has more than {} dimensions", what(), kFileDimensionsMax));
      claim.shape.push_back(value);
      return true;
    }
    if (offsets_ == 2) return fail(what() + " has more than two 'data_offsets'");
    (offsets_++ == 0 ? claim.begin : claim.end) = value;
    return true;
  }

 protected:
  bool other(std::string_view value) override { return skipping_ || unexpected(value); }

 private:
  std::string what() const {
    return "tensor " + printable(claims.empty() ? "" : claims.back().name);
  }
  bool unexpected(std::string_view value) {
    if (depth_ == 0) return fail("header is not an object");
    if (depth_ == 1) return fail(fmt::format("{} is {}, not an object", what(), value));
    return fail(fmt::format("{}: '{}' may not be {}", what(), field_.substr(0, 32), value));
  }

  bool skipping_ = false, has_type_ = false, has_shape_ = false;
  int offsets_ = 0;
  std::string field_;
};

// {"metadata": {...}, "weight_map": {"TENSOR": "FILE"}}
class IndexReader final : public Events {
 public:
  std::vector<std::string> shards;

  bool key(string_t& k) override {
    if (depth_ == 1)
      in_map_ = k == "weight_map";
    else if (in_map_)
      tensor_ = k;
    return true;
  }
  bool string(string_t& file) override {
    if (!in_map_) return true;
    if (depth_ != 2) return other("a string");
    if (file.empty() || file.size() > kNameBytesMax || file.find('/') != file.npos ||
        file.find('\0') != file.npos || file.front() == '.' || !file.ends_with(".safetensors"))
      return fail(fmt::format(
          "'weight_map' has {} for tensor {}; the name of a .safetensors file beside it is needed",
          printable(file), printable(tensor_)));
    const auto at = std::lower_bound(shards.begin(), shards.end(), file);
    if (at != shards.end() && *at == file) return true;
    if (shards.size() == kShardsMax)
      return fail(fmt::format("'weight_map' names more than {} files", kShardsMax));
    shards.insert(at, file);
    return true;
  }

 protected:
  bool other(std::string_view value) override {
    return !in_map_ || fail(fmt::format("'weight_map' has {} for tensor {}; a file name is needed",
                                        value, printable(tensor_)));
  }

 private:
  bool in_map_ = false;
  std::string tensor_;
};

}  // namespace

Result<std::vector<TensorClaim>> read_safetensors_header(std::string_view json) {
  HeaderReader reader;
  TRY_STATUS(reader.read(json));
  return std::move(reader.claims);
}

Result<std::vector<std::string>> shards_of_index(std::string_view index_json,
                                                 const std::string& name) {
  IndexReader reader;
  const Status read = reader.read(index_json);
  if (!read.ok()) return Error{read.error().code, name + ": " + read.error().message};
  if (reader.shards.empty())
    return Error{Code::corrupt, name + ": key 'weight_map' is missing or empty"};
  return std::move(reader.shards);
}

}  // namespace quire
