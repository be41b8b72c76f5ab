// server/fields.h - reads the fields of a JSON object and remembers the first thing that is wrong.
//
// null means absent. After all fields were read, failed() says whether anything was wrong:
//
//   Fields f(body);
//   if (auto t = f.number("temperature", 0, 2)) options.temperature = *t;
//   Fields kv = f.object("kv");                     // reports "kv.priority" and so on
//   if (f.failed()) return f.error();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/api_error.h"

namespace quire {

class Fields {
 public:
  // How the client may write a name that is asked for here. `either`: topLogprobs also as top_logprobs.
  enum class Spelling : std::uint8_t { as_asked, either };

  explicit Fields(const Json& object, std::string prefix = {},
                  Spelling spelling = Spelling::as_asked);

  const Json* find(std::string_view name);     // null where absent or null
  const Json& require(std::string_view name);  // null value and an error where absent
  std::optional<double> number(std::string_view name, double min, double max);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t min, std::int64_t max);
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::string> text(std::string_view name, std::size_t bytes_max);
  std::optional<Fields> object(std::string_view name);
  // "90s", "30m", "12h", "7d" or seconds.
  std::optional<Nanoseconds> duration(std::string_view name);
  std::optional<std::uint64_t> size(std::string_view name);  // bytes: 4096 or "1GiB"

  void refuse(std::string_view name, std::string message, std::string code = "invalid_value");
  void refuse(ApiError error);
  bool failed() const { return error_->has_value(); }
  const ApiError& error() const { return **error_; }

  std::string path(std::string_view name) const;
  // Refuses fields that were never asked for, naming one and what there is.
  void refuse_unknown();

 private:
  Fields(const Json& object, std::string prefix, Spelling spelling,
         std::shared_ptr<std::optional<ApiError>> error)
      : object_(&object),
        prefix_(std::move(prefix)),
        spelling_(spelling),
        error_(std::move(error)) {}

  const Json* object_;  // outlives this
  std::string prefix_;
  Spelling spelling_;
  std::shared_ptr<std::optional<ApiError>> error_;  // one for all that came from the same body
  std::set<std::string, std::less<>> known_;
};

// "topLogprobs" as "top_logprobs".
std::string snake_case(std::string_view camel);

std::optional<Nanoseconds> parse_duration(const Json& value);

}  // namespace quire
