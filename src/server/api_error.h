// server/api_error.h - why a request is refused: status, type, code and the parameter at fault. The
// dialect of the request (server/dialect/dialect.h) makes a response of it.
//
//   call->refuse(bad_value("temperature", "must be between 0 and 2, not 3"));
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/stop.h"
#include "engine/request.h"
#include "net/http.h"

namespace quire {

struct ApiError {
  int status = 400;
  std::string message;  // no addresses, paths or prompts
  std::string type = "invalid_request_error";
  std::string code = {};   // empty: null
  std::string param = {};  // empty: null
  std::uint32_t retry_after_s = 0;
  // For dialects that say it in other words: "tokens" and "tokens_max" of a prompt that is too long,
  // the "model" that is not there.
  Json details = nullptr;
};

ApiError bad_value(std::string param, std::string message, std::string code = "invalid_value");
ApiError not_found(std::string message, std::string code = "not_found");
ApiError not_implemented(std::string what, std::string param = {});
ApiError forbidden(std::string message);
ApiError shutting_down();
ApiError internal_error();
// Why work on a request was stopped; none where it was not.
std::optional<ApiError> stopped(const Stop& stop);
std::optional<ApiError> stopped();              // of what this thread works on
ApiError from_failure(const Failure& failure);  // of a request in the engine
ApiError from_error(const Error& error, std::string param = {});

HttpResponse json_response(const Json& body, int status = 200);

// One line of JSON. What is not UTF-8 is replaced, so that nothing a model produces can break it.
std::string dump(const Json& value);

}  // namespace quire
