// server/dialect/dialect.h - a vendor's API as an entry of a table: its routes, how it asks, how answers,
// errors and ids look.
//
// A dialect is a folder with its entry and one line in server/dialect/dialects.cc. The server knows that
// list and no vendor. What a body asks for becomes a GenerationRequest, which is the same for all
// dialects; what the engine answers goes out through an AnswerWriter.
//
//   void post_chat(Server& server, std::shared_ptr<Call> call) {
//     server.generate(std::move(call), parse_chat);     // streamed or whole, by the call's dialect
//   }
//   constexpr Route kRoutes[] = {{"POST", "/api/chat", Access::user, post_chat, "chat"}};
//   extern const Dialect kOllama = {.name = "ollama", .routes = kRoutes, ...};
//
// Routes that generate nothing (counting tokens, stored responses) are handlers like any other of the
// server's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/http.h"
#include "server/api_error.h"
#include "server/dialect/answer_writer.h"
#include "server/generation_request.h"
#include "server/kv_parse.h"
#include "server/router.h"
#include "text/tokenizer.h"

namespace quire {

struct ServerOptions;

// What a dialect keeps for a server while it runs, such as stored responses. For all threads.
class DialectState {
 public:
  virtual ~DialectState() = default;
  virtual void flush() {}  // the server stops: what should outlive it is written
};

// What a parser must know besides the body.
struct ParseContext {
  std::uint32_t vocabulary = 0;
  bool strict_fields = false;                     // unknown fields are errors
  std::string model = {};                         // that a request without one means
  SamplingOptions sampling = {.temperature = 1};  // where a request does not say
  bool parse_special = true;           // raw prompts may spell control tokens (--no-parse-special)
  bool trust_templates = false;        // a chat_template is taken (--trust-request-templates)
  Pooling pooling = Pooling::last;     // where a request does not say (--pooling)
  std::uint32_t hidden = 0;            // numbers of an embedding
  std::uint32_t cache_min_tokens = 0;  // breakpoints after fewer are ignored
  KvRules kv;
  std::string kv_header;                // x-kv-policy
  std::string answer_id;                // as AnswerHead::id will be
  std::shared_ptr<DialectState> state;  // of the parser's dialect; none: it keeps nothing
};

// From a body to what it asks for, or to an error that names the parameter. No socket, no engine.
using ParseRequest = std::optional<ApiError>(const Json& body, const ParseContext& context,
                                             GenerationRequest& asked);

struct Dialect {
  std::string_view name;  // in the access log, and in bodies of /v1/kv that say whose they are
  std::span<const Route> routes;
  // Whether a request that comes by none of these routes speaks it, by path and headers: its errors
  // then look so. May be null.
  bool (*claims)(const HttpRequest& request);
  // An answer's id is one of these and the id of its request.
  std::span<const std::string_view> id_prefixes;

  ParseRequest* parse;               // any body that asks for an answer
  ParseRequest* parse_conversation;  // its messages and tools alone, to be counted or looked up
  std::unique_ptr<AnswerWriter> (*writer)(const GenerationRequest& asked, AnswerHead head,
                                          const Tokenizer& tokenizer);
  HttpResponse (*error)(const ApiError& error, std::string_view request_id);
  // Makes what the dialect keeps for a server. Null: nothing.
  Result<std::shared_ptr<DialectState>> (*open)(const ServerOptions& options) = nullptr;
};

std::span<const Dialect* const> dialects();
const Dialect* find_dialect(std::string_view name);  // null: there is none
const Dialect& dialect_of(const HttpRequest& request);
// Ids that a request may have in the engine, of the one that a client knows: the x-request-id, or the
// id of an answer in any dialect.
std::vector<std::string> request_ids(const std::string& id);

}  // namespace quire
