// server/door.h - the port, open from the start. While the model loads, requests are answered with
// 503.
//
//   TRY(auto door, Door::open({.port = 8080}));      // answers 503 `loading`
//   door->open_for(handler, admit);                  // the server behind it is ready
#pragma once

#include <memory>

#include "net/http_server.h"

namespace quire {

class Door {
 public:
  using Admit = std::function<bool(const HttpRequest&)>;

  static Result<std::unique_ptr<Door>> open(HttpServerOptions options);

  void open_for(HttpServer::Handler handler, Admit admit);
  HttpServer& http() { return *http_; }
  const HttpServer& http() const { return *http_; }

 private:
  struct Inside {
    HttpServer::Handler handler;
    Admit admit;
  };
  Door() : inside_(std::make_shared<std::shared_ptr<const Inside>>()) {}

  std::shared_ptr<std::shared_ptr<const Inside>> inside_;  // none yet; read with atomic_load
  std::unique_ptr<HttpServer> http_;
};

}  // namespace quire
