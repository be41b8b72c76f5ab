// net/web_client.h - asks servers of the web one thing after the other: TLS, redirects, bodies of any
// size. `quire pull` fetches models with it (src/hub/).
//
// Blocking, for a thread of its own. A connection is kept for the next question to the same server.
//
//   WebClient web;
//   TRY(WebAnswer a, web.ask(url, {.private_headers = {{"Authorization", "Bearer x"}}}));
//   if (a.status == 200) use(a.body);
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "net/byte_stream.h"
#include "net/http.h"
#include "net/web_url.h"

namespace quire {

struct WebAnswer {
  int status = 0;
  std::vector<HttpHeader> headers;
  std::string body;  // unless it went elsewhere
  WebUrl url;        // of the server that answered, after all redirects

  std::string_view header(std::string_view name) const;  // empty where absent
};

struct WebAsk {
  bool head_only = false;                // HEAD instead of GET
  std::vector<HttpHeader> headers = {};  // for every server
  std::vector<HttpHeader> private_headers =
      {};  // for the first origin only, never after a redirect away
  // Gets the body of an answer with status 200 or 206; other bodies are collected. An error ends the
  // question with it.
  std::function<Status(const WebAnswer& head, std::string_view bytes)> body = {};
  // Sees the headers of every answer, those of redirects included.
  std::function<void(const WebAnswer& head)> each = {};
};

class WebClient {
 public:
  explicit WebClient(Nanoseconds patience = 30'000'000'000) : patience_(patience) {}

  // An error: no whole answer came. Any status is an answer.
  Result<WebAnswer> ask(const WebUrl& url, const WebAsk& ask);

 private:
  Result<WebAnswer> ask_once(const WebUrl& url, const WebAsk& ask, bool at_home);
  Result<WebAnswer> ask_over(ByteStream& stream, const std::string& message, const WebUrl& url,
                             const WebAsk& ask, bool& silent, bool& keep);

  Nanoseconds patience_;
  std::optional<ByteStream> kept_;
  std::string kept_origin_;
};

}  // namespace quire
