// OpenAI's entry: chat and text completions, with the fields that vLLM's clients add.
#include "server/dialect/dialect.h"
#include "server/dialect/openai/openai_parse.h"
#include "server/dialect/openai/openai_writer.h"
#include "server/server.h"

namespace quire {
namespace {

using namespace openai;

void post_chat(Server& server, std::shared_ptr<Call> call) {
  server.generate(std::move(call), parse_chat);
}

void post_completions(Server& server, std::shared_ptr<Call> call) {
  server.generate(std::move(call), parse_completion);
}

std::optional<ApiError> parse_either(const Json& body, const ParseContext& context,
                                     GenerationRequest& asked) {
  return (body.contains("messages") ? parse_chat : parse_completion)(body, context, asked);
}

HttpResponse openai_error_response(const ApiError& error, std::string_view) {
  HttpResponse r = json_response(openai_error(error), error.status);
  if (error.retry_after_s > 0)
    r.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  if (error.status == 501) r.headers.push_back({"x-should-retry", "false"});
  if (error.status == 401) r.headers.push_back({"WWW-Authenticate", "Bearer"});
  return r;
}

constexpr Route kOpenAiRoutes[] = {
    {"POST", "/v1/chat/completions", Access::user, post_chat, "chat"},
    {"POST", "/v1/completions", Access::user, post_completions, "text_completion"},
};
constexpr std::string_view kOpenAiIds[] = {kChatIdPrefix, kTextIdPrefix};

}  // namespace

extern const Dialect kOpenAi = {
    .name = "openai",
    .routes = kOpenAiRoutes,
    .claims = nullptr,  // it gets what is nobody else's
    .id_prefixes = kOpenAiIds,
    .parse = parse_either,
    .parse_conversation = parse_conversation,
    .writer = [](const GenerationRequest& asked, AnswerHead head,
                 const Tokenizer& tokenizer) -> std::unique_ptr<AnswerWriter> {
      return std::make_unique<OpenAiWriter>(asked, std::move(head), tokenizer);
    },
    .error = openai_error_response};

}  // namespace quire
