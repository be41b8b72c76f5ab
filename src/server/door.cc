#include "server/door.h"

#include "server/api_error.h"
#include "server/dialect/dialect.h"
#include "server/ids.h"

namespace quire {
namespace {

void add_request_id(HttpResponse& response) {
  const std::string id = "req_" + random_hex(24);
  response.headers.push_back({"x-request-id", id});
  response.headers.push_back({"request-id", id});
}

// What the HTTP server refuses by itself.
HttpResponse refuse_plainly(int status, std::string message) {
  HttpResponse r =
      dialect_of({}).error({.status = status,
                            .message = std::move(message),
                            .type = status >= 500 ? "server_error" : "invalid_request_error",
                            .code = status == 413   ? "request_too_large"
                                    : status == 503 ? "too_many_connections"
                                                    : "bad_request",
                            .retry_after_s = status == 503 ? 1u : 0u},
                           {});
  add_request_id(r);
  return r;
}

void answer_loading(Exchange& x) {
  HttpResponse r;
  if (x.request().path == "/health" || x.request().path == "/v1/health")
    r = json_response({{"status", "loading"}}, 503);
  else
    r = dialect_of(x.request())
            .error({.status = 503,
                    .message = "the model is being loaded",
                    .type = "unavailable_error",
                    .code = "loading",
                    .retry_after_s = 1},
                   {});
  add_request_id(r);
  x.respond(std::move(r));
}

}  // namespace

Result<std::unique_ptr<Door>> Door::open(HttpServerOptions options) {
  std::unique_ptr<Door> door(new Door());
  options.threads = 1;  // the cores belong to the model; a doorbell wakes one thread
  options.refuse = refuse_plainly;
  options.admit = [inside = door->inside_](const HttpRequest& head) {
    const auto now = std::atomic_load(inside.get());
    return now && now->admit(head);
  };
  TRY(door->http_,
      HttpServer::start(options, [inside = door->inside_](std::shared_ptr<Exchange> x) {
        const auto now = std::atomic_load(inside.get());
        if (!now) return answer_loading(*x);
        now->handler(std::move(x));
      }));
  return door;
}

void Door::open_for(HttpServer::Handler handler, Admit admit) {
  std::atomic_store(inside_.get(),
                    std::make_shared<const Inside>(Inside{std::move(handler), std::move(admit)}));
}

}  // namespace quire
