// net/signed_http.h - HTTP requests in batches, signed as AWS asks for it (SigV4). Used by one thread,
// which waits. signed_http.cc is the only file that sees libcurl; without it (scripts/setup --s3)
// open() says so.
//
//   TRY(auto http, SignedHttp::open({.key_id = "AKIA...", .key = "...", .region = "eu-west-1"}));
//   TRY_STATUS(http->run(requests, [&](std::size_t which, const SignedAnswer& answer) { ... }));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace quire {

struct SignedHttpOptions {
  std::string key_id, key, session_token = {};
  std::string region, service = "s3";
  std::string ca_file = {};              // instead of the system's certificates
  Nanoseconds patience = 1'000'000'000;  // without progress of any request
  std::uint32_t at_once = 32;            // requests under way
  std::uint64_t answer_bytes_max = std::uint64_t{256} << 20;
};

enum class HttpMethod : std::uint8_t { get, head, put, remove };

struct SignedRequest {
  HttpMethod method = HttpMethod::get;
  std::string url = {};                  // with nothing in it that would have to be escaped
  std::span<const std::byte> body = {};  // of put
};

struct SignedAnswer {
  int status = 0;
  std::span<const std::byte> body = {};  // until the function returns
};

class SignedHttp {
 public:
  using Done = std::function<void(std::size_t which, const SignedAnswer& answer)>;

  static bool built_in();
  static Result<std::unique_ptr<SignedHttp>> open(const SignedHttpOptions& options);
  ~SignedHttp();

  // Calls `done` for each answer, in any order, whatever its status. An error means that a server gave
  // no answer; what was not answered by then is not sent any more.
  Status run(std::span<const SignedRequest> requests, const Done& done);

 private:
  struct Inside;
  explicit SignedHttp(std::unique_ptr<Inside> inside);
  std::unique_ptr<Inside> inside_;
};

}  // namespace quire
