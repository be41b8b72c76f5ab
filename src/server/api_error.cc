#include "server/api_error.h"

namespace quire {

ApiError bad_value(std::string param, std::string message, std::string code) {
  return {.message = param.empty() ? std::move(message) : param + ": " + message,
          .code = std::move(code),
          .param = std::move(param)};
}

ApiError not_found(std::string message, std::string code) {
  return {.status = 404, .message = std::move(message), .code = std::move(code)};
}

ApiError not_implemented(std::string what, std::string param) {
  return {.status = 501,
          .message = what + " is not available in this server",
          .code = "not_implemented",
          .param = std::move(param)};
}

ApiError forbidden(std::string message) {
  return {.status = 403,
          .message = std::move(message),
          .type = "permission_error",
          .code = "tenant_forbidden"};
}

ApiError shutting_down() {
  return {.status = 503,
          .message = "the server is shutting down",
          .type = "unavailable_error",
          .code = "draining",
          .retry_after_s = 5};
}

ApiError internal_error() {
  return {.status = 500, .message = "internal error", .type = "server_error", .code = "internal"};
}

std::optional<ApiError> stopped(const Stop& stop) {
  switch (stop.why()) {
    case Stop::Why::none:
      return std::nullopt;
    case Stop::Why::client_gone:
      return ApiError{.status = 499, .message = "the client left", .code = "cancelled"};
    case Stop::Why::too_long:
      return ApiError{.message =
                          "it takes too long to read this request: its template, its grammar or "
                          "its text asks for too much",
                      .code = "request_too_expensive"};
    case Stop::Why::shutting_down:
      break;
  }
  return shutting_down();
}

std::optional<ApiError> stopped() {
  return current_stop == nullptr ? std::nullopt : stopped(*current_stop);
}

ApiError from_failure(const Failure& failure) {
  ApiError e{.message = failure.message,
             .code = std::string(failure_name(failure.kind)),
             .retry_after_s = failure.retry_after_s};
  switch (failure.kind) {
    case FailureKind::none:
    case FailureKind::invalid:
    case FailureKind::kv_capacity:
      break;
    case FailureKind::context_length:
      e.param = "messages";
      break;
    case FailureKind::queue_full:
    case FailureKind::quota:
      e.status = 429;
      e.type = "rate_limit_error";
      break;
    case FailureKind::draining:
    case FailureKind::no_room:
    case FailureKind::device:
    case FailureKind::model_file:
    case FailureKind::tier:
      e.status = 503;
      e.type = "unavailable_error";
      break;
    case FailureKind::deadline:
      e.status = 408;
      e.type = "timeout_error";
      break;
    case FailureKind::numeric:
      e.status = 500;
      e.type = "server_error";
      break;
    case FailureKind::cancelled:
      e.status = 499;
      break;
  }
  if ((e.status == 429 || e.status == 503) && e.retry_after_s == 0) e.retry_after_s = 1;
  return e;
}

ApiError from_error(const Error& error, std::string param) {
  ApiError e{.message = error.message, .param = std::move(param)};
  switch (error.code) {
    case Code::invalid:
    case Code::corrupt:
      e.code = "invalid_value";
      break;
    case Code::not_found:
      e.status = 404;
      e.code = "not_found";
      break;
    case Code::exhausted:
      e.code = "limit_exceeded";
      break;
    case Code::unsupported:
      e.code = "unsupported_parameter";
      break;
    case Code::unavailable:
    case Code::cancelled:
      e.status = 503;
      e.type = "unavailable_error";
      e.code = "unavailable";
      e.retry_after_s = 1;
      break;
  }
  return e;
}

HttpResponse json_response(const Json& body, int status) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = dump(body)};
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace quire
