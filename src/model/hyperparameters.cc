#include "model/hyperparameters.h"

#include <fmt/format.h>

#include <cmath>

#include "base/json.h"

namespace quire {

std::string Hyperparameters::spelled(Key key) const {
  return gguf_ ? prefix_ + std::string(key.gguf) : std::string(key.hf);
}

Error Hyperparameters::bad(Key key, Code code, std::string_view message) const {
  return Error{
      code, fmt::format("{}: key '{}' {}", gguf_ ? gguf_->name() : name_, spelled(key), message)};
}

const Json* Hyperparameters::json_at(std::string_view path) const {
  const Json* at = json_;
  while (at && !path.empty()) {
    const std::size_t dot = path.find('.');
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string(path.substr(0, dot)));
    at = found == at->end() || found->is_null() ? nullptr : &*found;
    path = dot == path.npos ? std::string_view() : path.substr(dot + 1);
  }
  return at;
}

bool Hyperparameters::has(Key key) const {
  if (gguf_) return !key.gguf.empty() && gguf_->has(spelled(key));
  return !key.hf.empty() && json_at(key.hf) != nullptr;
}

Result<const Json*> Hyperparameters::wanted_json(Key key) const {
  if (const Json* found = json_at(key.hf)) return found;
  return bad(key, Code::not_found, "is missing");
}

Result<std::uint64_t> Hyperparameters::unsigned_of(Key key) const {
  if (gguf_) return gguf_->unsigned_of(spelled(key));
  TRY(const Json* found, wanted_json(key));
  if (!found->is_number_unsigned()) return bad(key, Code::corrupt, "is not an unsigned integer");
  return found->get<std::uint64_t>();
}

Result<std::uint32_t> Hyperparameters::size_of(Key key, std::uint64_t max) const {
  TRY(const std::uint64_t value, unsigned_of(key));
  if (value == 0 || value > max)
    return bad(key, Code::corrupt, fmt::format("is {}; 1 to {} make sense", value, max));
  return static_cast<std::uint32_t>(value);
}

Result<float> Hyperparameters::f32_of(Key key) const {
  float value;
  if (gguf_) {
    TRY(value, gguf_->f32_of(spelled(key)));
  } else {
    TRY(const Json* found, wanted_json(key));
    if (!found->is_number()) return bad(key, Code::corrupt, "is not a number");
    value = static_cast<float>(found->get<double>());
  }
  if (!std::isfinite(value)) return bad(key, Code::corrupt, "is not a finite number");
  return value;
}

Result<float> Hyperparameters::f32_above(Key key, float floor) const {
  TRY(const float value, f32_of(key));
  if (value > floor) return value;
  return bad(key, Code::corrupt, fmt::format("is {}, more than {} is needed", value, floor));
}

Result<bool> Hyperparameters::bool_of(Key key) const {
  if (gguf_) return gguf_->bool_of(spelled(key));
  TRY(const Json* found, wanted_json(key));
  if (!found->is_boolean()) return bad(key, Code::corrupt, "is not a boolean");
  return found->get<bool>();
}

Result<std::string> Hyperparameters::string_of(Key key) const {
  if (gguf_) {
    TRY(const std::string_view text, gguf_->string_of(spelled(key)));
    return std::string(text);
  }
  TRY(const Json* found, wanted_json(key));
  if (!found->is_string()) return bad(key, Code::corrupt, "is not a string");
  return found->get<std::string>();
}

}  // namespace quire
