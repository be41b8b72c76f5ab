#include "server/fields.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "base/byte_size.h"

namespace quire {
namespace {

const Json kNothing = nullptr;
const Json kEmpty = Json::object();

}  // namespace

std::string snake_case(std::string_view camel) {
  std::string out;
  for (const char c : camel)
    if (c >= 'A' && c <= 'Z')
      (out += '_') += static_cast<char>(c - 'A' + 'a');
    else
      out += c;
  return out;
}

Fields::Fields(const Json& object, std::string prefix, Spelling spelling)
    : object_(&object),
      prefix_(std::move(prefix)),
      spelling_(spelling),
      error_(std::make_shared<std::optional<ApiError>>()) {
  if (object.is_object()) return;
  refuse({.message = "the body must be a JSON object", .code = "invalid_json"});
  object_ = &kEmpty;
}

const Json* Fields::find(std::string_view name) {
  known_.emplace(name);
  auto at = object_->find(name);
  if (spelling_ == Spelling::either && at == object_->end()) {
    std::string other = snake_case(name);
    at = object_->find(other);
    known_.insert(std::move(other));
  }
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

const Json& Fields::require(std::string_view name) {
  if (const Json* value = find(name)) return *value;
  refuse(name, "is required", "missing_required_parameter");
  return kNothing;
}

std::optional<double> Fields::number(std::string_view name, double min, double max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    refuse(name, "must be a number");
    return std::nullopt;
  }
  const double n = value->get<double>();
  if (!(n >= min && n <= max)) {
    refuse(name, fmt::format("must be between {} and {}", min, max));
    return std::nullopt;
  }
  return n;
}

std::optional<std::int64_t> Fields::integer(std::string_view name, std::int64_t min,
                                            std::int64_t max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  // 16.0 is a whole number too; some clients write it so.
  const bool whole = value->is_number_integer() ||
                     (value->is_number_float() && std::abs(value->get<double>()) < 0x1p53 &&
                      std::floor(value->get<double>()) == value->get<double>());
  if (!whole) {
    refuse(name, "must be a whole number");
    return std::nullopt;
  }
  const bool too_large =
      value->is_number_unsigned() &&
      value->get<std::uint64_t>() > static_cast<std::uint64_t>(std::max<std::int64_t>(max, 0));
  const auto n = value->is_number_float() ? static_cast<std::int64_t>(value->get<double>())
                                          : value->get<std::int64_t>();
  if (too_large || n < min || n > max) {
    refuse(name, fmt::format("must be between {} and {}", min, max));
    return std::nullopt;
  }
  return n;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    refuse(name, "must be true or false");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> Fields::text(std::string_view name, std::size_t bytes_max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    refuse(name, "must be a string");
    return std::nullopt;
  }
  const auto& s = value->get_ref<const std::string&>();
  if (s.size() > bytes_max) {
    refuse(name, fmt::format("must not be longer than {} bytes", bytes_max));
    return std::nullopt;
  }
  return s;
}

std::optional<Fields> Fields::object(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    refuse(name, "must be an object");
    return std::nullopt;
  }
  return Fields(*value, path(name), spelling_, error_);
}

std::optional<Nanoseconds> Fields::duration(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto d = parse_duration(*value);
  if (!d) refuse(name, "must be a duration like \"90s\", \"30m\" or \"12h\"");
  return d;
}

std::optional<std::uint64_t> Fields::size(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  if (value->is_string() && value->get_ref<const std::string&>().size() < 32)
    if (const auto bytes = parse_size(value->get_ref<const std::string&>()); bytes.ok())
      return bytes.value();
  refuse(name, "must be a size in bytes like 1048576 or \"1GiB\"");
  return std::nullopt;
}

void Fields::refuse(std::string_view name, std::string message, std::string code) {
  refuse(bad_value(path(name), std::move(message), std::move(code)));
}

void Fields::refuse(ApiError error) {
  if (!failed()) *error_ = std::move(error);
}

std::string Fields::path(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name);
}

void Fields::refuse_unknown() {
  for (const auto& [name, value] : object_->items()) {
    if (known_.contains(name)) continue;
    std::string all;
    for (const std::string& k : known_) all += (all.empty() ? "" : ", ") + k;
    refuse(name, "is not a field here; there are " + all, "unknown_parameter");
  }
}

std::optional<Nanoseconds> parse_duration(const Json& value) {
  double seconds = 0;
  if (value.is_number()) {
    seconds = value.get<double>();
  } else if (value.is_string()) {
    const auto& s = value.get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), seconds);
    if (error != std::errc()) return std::nullopt;
    const std::string_view unit(end, static_cast<std::size_t>(s.data() + s.size() - end));
    if (unit == "ms")
      seconds /= 1000;
    else if (unit == "m")
      seconds *= 60;
    else if (unit == "h")
      seconds *= 3600;
    else if (unit == "d")
      seconds *= 86400;
    else if (unit != "s" && unit != "")
      return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (!(seconds >= 0 && seconds <= 366 * 86400.0)) return std::nullopt;
  return static_cast<Nanoseconds>(seconds * 1e9);
}

}  // namespace quire
