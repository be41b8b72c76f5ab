// base/result.h - a value or an error that a person can act on.
//
// Bugs crash (base/check.h); the world returns a Result. No exceptions cross a module's edge.
//
//   Result<Model> open(const std::string& path) {
//     TRY(MappedFile file, MappedFile::open(path));
//     if (file.bytes().empty()) return Error{Code::corrupt, path + ": is empty"};
//     return parse(file);
//   }
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace quire {

enum class Code : std::uint8_t {
  invalid,      // the caller asked for something that makes no sense
  not_found,    // it is not there
  exhausted,    // no room now, perhaps later
  corrupt,      // bytes are not what they claim to be
  unsupported,  // well-formed, but Quire does not do it
  unavailable,  // the world (disk, network, device) said no
  cancelled,
};

struct Error {
  Code code;
  std::string message;  // what failed, on what, and what would help
};

template <class T = std::monostate>
class [[nodiscard]] Result {
 public:
  Result() requires std::is_same_v<T, std::monostate>
  = default;
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return v_.index() == 0; }
  T& value() {
    CHECK(ok());
    return *std::get_if<0>(&v_);
  }
  const T& value() const {
    CHECK(ok());
    return *std::get_if<0>(&v_);
  }
  const Error& error() const {
    CHECK(!ok());
    return *std::get_if<1>(&v_);
  }

 private:
  std::variant<T, Error> v_;
};

using Status = Result<>;

}  // namespace quire

// TRY(auto x, f());  assigns the value of f() or returns its error.   TRY_STATUS(f());  the same
// without a value.
#define TRY(decl, expr) QUIRE_TRY_(decl, expr, __LINE__)
#define QUIRE_TRY_(decl, expr, n) QUIRE_TRY__(decl, expr, n)
#define QUIRE_TRY__(decl, expr, n)           \
  auto try_##n = (expr);                     \
  if (!try_##n.ok()) return try_##n.error(); \
  decl = std::move(try_##n.value())
#define TRY_STATUS(expr)                                                       \
  do {                                                                         \
    if (auto try_status = (expr); !try_status.ok()) return try_status.error(); \
  } while (false)
