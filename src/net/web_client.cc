#include "net/web_client.h"

#include <fmt/format.h>

#include "net/response_reader.h"

namespace quire {
namespace {

constexpr int kRedirectsMax = 10;
constexpr std::size_t kWebReadBytes = 256 << 10;
constexpr std::size_t kOtherBodyMax = 64 << 20;

bool redirects(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string web_message(const WebUrl& url, const WebAsk& ask, bool at_home) {
  std::string text =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: quire\r\nAccept: */*\r\n",
                  ask.head_only ? "HEAD" : "GET", url.target, url.authority());
  const auto add = [&](const std::vector<HttpHeader>& headers) {
    for (const HttpHeader& h : headers) text += h.name + ": " + h.value + "\r\n";
  };
  add(ask.headers);
  if (at_home) add(ask.private_headers);
  return text + "\r\n";
}

}  // namespace

std::string_view WebAnswer::header(std::string_view name) const {
  for (const HttpHeader& h : headers)
    if (same_word(h.name, name)) return h.value;
  return {};
}

Result<WebAnswer> WebClient::ask_over(ByteStream& stream, const std::string& message,
                                      const WebUrl& url, const WebAsk& ask, bool& silent,
                                      bool& keep) {
  silent = true;
  TRY_STATUS(stream.write(message));
  WebAnswer answer;
  answer.url = url;
  Status refused;
  ResponseReader* reading = nullptr;
  const std::function<bool(std::string_view)> take = [&](std::string_view bytes) {
    answer.status = reading->status();
    if (ask.body && (answer.status == 200 || answer.status == 206)) {
      refused = ask.body(answer, bytes);
      return refused.ok();
    }
    answer.body.append(bytes);
    return answer.body.size() <= kOtherBodyMax;
  };
  ResponseReader reader({.headers = &answer.headers, .body = &take, .head_only = ask.head_only});
  reading = &reader;
  std::string buffer(kWebReadBytes, '\0');
  const auto no_event = [](std::string_view) {};
  while (reader.state() == ResponseReader::State::head ||
         reader.state() == ResponseReader::State::body) {
    TRY(const std::size_t got, stream.read(std::as_writable_bytes(std::span(buffer))));
    if (got == 0) {
      reader.end_of_input(no_event);
      break;
    }
    silent = false;
    reader.feed({buffer.data(), got}, no_event);
  }
  if (!refused.ok()) return refused.error();
  if (reader.state() != ResponseReader::State::done)
    return Error{Code::unavailable,
                 url.origin() + (silent ? ": closed the connection" : ": the answer is not whole")};
  answer.status = reader.status();
  keep = reader.keep_alive();
  return answer;
}

Result<WebAnswer> WebClient::ask_once(const WebUrl& url, const WebAsk& ask, bool at_home) {
  const std::string message = web_message(url, ask, at_home);
  bool silent = false, keep = false;
  if (kept_ && kept_origin_ == url.origin()) {
    auto answer = ask_over(*kept_, message, url, ask, silent, keep);
    if (!answer.ok() || !keep) kept_.reset();
    // A kept connection may be closed just as it is used again: that says nothing about the server.
    if (answer.ok() || !silent) return answer;
  }
  kept_.reset();
  TRY(ByteStream stream,
      ByteStream::connect(url.host, url.port,
                          {.patience = patience_, .tls = url.tls, .ca_file = {}}));
  auto answer = ask_over(stream, message, url, ask, silent, keep);
  if (answer.ok() && keep) {
    kept_ = std::move(stream);
    kept_origin_ = url.origin();
  }
  return answer;
}

Result<WebAnswer> WebClient::ask(const WebUrl& url, const WebAsk& ask) {
  WebUrl at = url;
  for (int hop = 0; hop <= kRedirectsMax; ++hop) {
    TRY(WebAnswer answer, ask_once(at, ask, at.origin() == url.origin()));
    if (ask.each) ask.each(answer);
    const std::string_view location = answer.header("location");
    if (!redirects(answer.status) || location.empty()) return answer;
    TRY(at, at.follow(location));
  }
  return Error{Code::unavailable,
               fmt::format("{}: more than {} redirects", url.origin(), kRedirectsMax)};
}

}  // namespace quire
