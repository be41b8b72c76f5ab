// Whole HTTP exchanges with a live server: well-formed ones, broken ones, several on a connection.
// Every whole request gets an answer that is HTTP, in bounded time and memory, and the server goes
// on.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "server/live_fuzzing.h"

namespace {
using namespace quire;

std::string fuzz_value(Chooser& pick, int depth) {
  switch (pick.below(depth > 3 ? 9 : 11)) {
    case 0:
      return std::to_string(static_cast<int>(pick.below(256)) - 64);
    case 1:
      return pick.of({"true", "false", "null", "1e308", "-0.0", "0.5", "18446744073709551615"});
    case 2:
      return "\"" + std::string(pick.below(255), 'a') + "\"";
    case 3:
      return pick.of({"\"<|im_end|>\"", "\"\\u0000\"", "\"\\ud800\"", "\"{{ 'x' * 99 }}\"",
                      "\"[a-z]+\"", "\"root ::= [a-z]\""});
    case 4:
      return "[61,62,63]";
    case 5:
      return R"([{"role":"user","content":"hi"}])";
    case 6:
      return R"({"type":"json_object"})";
    case 7:
      return R"({"type":"object","properties":{"a":{"type":"integer"}}})";
    case 8:
      return R"([{"role":"user","parts":[{"text":"hi"}]}])";
    case 9: {
      std::string list = "[";
      for (std::uint32_t n = pick.below(5); n > 0; --n)
        list += fuzz_value(pick, depth + 1) + (n > 1 ? "," : "");
      return list + "]";
    }
    default: {
      std::string object = "{";
      for (std::uint32_t n = pick.below(5); n > 0; --n)
        object += std::string("\"") +
                  pick.of({"role", "content", "type", "format", "budget", "json", "name", "pin"}) +
                  "\":" + fuzz_value(pick, depth + 1) + (n > 1 ? "," : "");
      return object + "}";
    }
  }
}

std::string fuzz_body(Chooser& pick) {
  if (pick.chance(16)) return std::string(pick.below(256), static_cast<char>(pick.below(256)));
  std::string body = R"({"model":"m","max_tokens":2,"ignore_eos":true)";
  if (pick.chance(4)) body = R"({"model":"m")";
  for (std::uint32_t n = 1 + pick.below(5); n > 0; --n)
    body += std::string(",\"") +
            pick.of({"prompt",
                     "messages",
                     "kv",
                     "stop",
                     "logit_bias",
                     "n",
                     "stream",
                     "logprobs",
                     "tools",
                     "response_format",
                     "guided_json",
                     "guided_regex",
                     "guided_choice",
                     "grammar",
                     "prompt_logprobs",
                     "echo",
                     "suffix",
                     "temperature",
                     "tokens",
                     "chat_template",
                     "chat_template_kwargs",
                     "best_of",
                     "use_beam_search",
                     "select",
                     "resident",
                     "ttl",
                     "request",
                     "content",
                     "truncate_prompt_tokens",
                     "bad_words",
                     "quota_bytes",
                     "leases",
                     "prompt_cache_key",
                     "min_tokens",
                     "length_penalty",
                     "stream_options",
                     "return_token_ids",
                     "input",
                     "instructions",
                     "previous_response_id",
                     "truncation",
                     "text",
                     "prompt_cache_options",
                     "contents",
                     "systemInstruction",
                     "generationConfig",
                     "cachedContent",
                     "options",
                     "format",
                     "context"}) +
            "\":" + fuzz_value(pick, 0);
  return body + "}";
}

// One request; `whole` becomes false where the server must wait for more.
std::string fuzz_request(Chooser& pick, bool last, bool& whole) {
  const char* const method = pick.of({"POST", "GET", "DELETE", "PATCH", "OPTIONS", "HEAD", "PUT"});
  std::string out = std::string(method) + " " +
                    pick.of({"/v1/completions",
                             "/v1/chat/completions",
                             "/v1/messages",
                             "/v1/messages/count_tokens",
                             "/tokenize",
                             "/detokenize",
                             "/apply-template",
                             "/v1/kv/tree",
                             "/v1/kv/lookup",
                             "/v1/kv/pins",
                             "/v1/kv/blocks/00000000",
                             "/v1/kv/prefill",
                             "/v1/kv/evict",
                             "/metrics",
                             "/health",
                             "/v1/models",
                             "/v1/kv/explain",
                             "/v1/kv/requests",
                             "/v1/kv/tenants/a",
                             "/v1/kv/leases?limit=3&after=x",
                             "/v1/kv/pins/1",
                             "/v1/kv/clear",

                             "/v1/models/%00",
                             "/v1/kv/tree?limit=99999999999999999999",
                             "/slots",
                             "/props",
                             "/reset_prefix_cache",
                             "/v1/embeddings",
                             "/v1beta/models/m:generateContent",
                             "/v1beta/models/m:streamGenerateContent?alt=sse",
                             "/v1/models/m:streamGenerateContent",
                             "/v1/models/m:countTokens",
                             "/v1/models/a%2Fb:c:countTokens",
                             "/v1beta/cachedContents?pageSize=1&pageToken=x",
                             "/v1beta/cachedContents/x",
                             "/api/chat",
                             "/api/generate",
                             "/api/show",
                             "/api/tags",
                             "/%zz?x=%",
                             "/v1/responses",
                             "/v1/responses/input_tokens",
                             "/v1/responses/resp_x",
                             "/v1/responses/resp_x/input_items?limit=x",
                             "/v1/responses/resp_x/cancel",
                             "/abort_request",
                             "/flush_cache",
                             "/health_generate",
                             "*"}) +
                    pick.of({" HTTP/1.1", " HTTP/1.1", " HTTP/1.0", " HTTP/2.0", ""}) + "\r\n";
  out += pick.of({"Host: localhost\r\n", "Host: localhost\r\n", "", "Host: evil\r\n",
                  "Host: a\r\nHost: b\r\n"});
  for (std::uint32_t n = pick.below(3); n > 0; --n)
    out += pick.of({"Origin: http://localhost\r\n", "Origin: null\r\n", "Accept: */*\r\n",
                    "Content-Type: text/plain\r\n", "x-kv-policy: {\"priority\":1}\r\n",
                    "x-kv-policy: [[[[\r\n", "Expect: 100-continue\r\n", "traceparent: 00-\r\n",
                    "Authorization: Bearer x\r\n", " folded: x\r\n", "x-request-id: \x01\r\n"});
  if (last) out += "Connection: close\r\n";
  if (std::string_view(method) == "GET" || std::string_view(method) == "HEAD") return out + "\r\n";
  const std::string body = fuzz_body(pick);
  switch (pick.below(8)) {
    case 0:
      out += "Transfer-Encoding: chunked\r\n\r\n" + fmt::format("{:x}", body.size()) +
             (pick.chance(2) ? ";ext=" + std::string(pick.below(256), 'x') : "") + "\r\n" + body +
             "\r\n0\r\n" + (pick.chance(2) ? "trailer: x\r\n" : "") + "\r\n";
      break;
    case 1:
      out += "Transfer-Encoding: " + std::string(pick.of({"gzip", "chunked, gzip", "identity"})) +
             "\r\n\r\n" + body;
      break;
    case 2:
      out += "Content-Length: " + std::to_string(body.size() + 1 + pick.below(100)) + "\r\n\r\n" +
             body;
      whole = false;
      break;
    case 3:
      out +=
          "Content-Length: " + std::string(pick.of({"-1", "99999999999999999999", "x", "5, 5"})) +
          "\r\n\r\n" + body;
      break;
    default:
      out += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  LiveServer& live = LiveServer::get();
  const auto began = std::chrono::steady_clock::now();
  Chooser pick(data, size);
  bool whole = true;
  std::string bytes;
  for (std::uint32_t left = pick.below(3); whole; --left) {
    bytes += fuzz_request(pick, left == 0, whole);
    if (left == 0) break;
  }
  if (pick.chance(6)) {
    bytes.resize(bytes.size() * pick.below(256) / 256);
    whole = false;
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(live.server().port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const timeval limit{9, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (!bytes.empty()) CHECK(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != 0);
  if (whole) {  // the last one asks to close, and what is wrong is closed anyway
    std::string answer;
    char part[4096];
    ssize_t n = 0;
    while ((n = ::recv(fd, part, sizeof part, 0)) > 0)
      if (answer.size() < 16) answer.append(part, static_cast<std::size_t>(n));
    if (n != 0 && errno != ECONNRESET)
      fmt::print(stderr, "no end of the answer to\n{}\n{}\n", bytes, answer);
    CHECK(n == 0 || errno == ECONNRESET);
    CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "));
  }
  ::close(fd);
  live.check_cost(began);
  return 0;
}
