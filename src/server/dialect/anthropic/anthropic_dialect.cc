// Anthropic's entry: messages and the count of their tokens.
#include "server/dialect/anthropic/anthropic_parse.h"
#include "server/dialect/anthropic/anthropic_writer.h"
#include "server/dialect/dialect.h"
#include "server/server.h"

namespace quire {
namespace {

void post_messages(Server& server, std::shared_ptr<Call> call) {
  const std::string version = server.options().anthropic_strict
                                  ? std::string(call->request().header("anthropic-version"))
                                  : "";
  server.generate(std::move(call), [version](const Json& body, const ParseContext& context,
                                             GenerationRequest& asked) {
    auto refused = anthropic::refused_by_version(body, version);
    return refused ? refused : anthropic::parse_messages(body, context, asked);
  });
}

void post_count_tokens(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    GenerationRequest asked;
    if (auto error = anthropic::parse_conversation(body, server.parse_context(*call), asked))
      return post_refusal(call, std::move(*error));
    if (!server.serves(asked.model)) return post_refusal(call, server.no_model(asked.model));
    asked.counts_only = true;
    std::vector<Prompt> prompts;
    if (auto error = make_prompts(asked, server.runtime(), prompts))
      return post_refusal(call, std::move(*error));
    post_answer(call, {{"input_tokens", prompts.front().tokens.size()}});
  });
}

bool speaks_anthropic(const HttpRequest& request) {
  std::string_view path = request.path;
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  if (path == "/messages" || path.starts_with("/messages/")) return true;
  return (path == "/models" || path.starts_with("/models/")) &&
         !request.header("anthropic-version").empty();
}

constexpr Route kAnthropicRoutes[] = {
    {"POST", "/v1/messages", Access::user, post_messages, "chat"},
    {"POST", "/v1/messages/count_tokens", Access::user, post_count_tokens},
};
constexpr std::string_view kAnthropicIds[] = {anthropic::kMessageIdPrefix};

}  // namespace

extern const Dialect kAnthropic = {.name = "anthropic",
                                   .routes = kAnthropicRoutes,
                                   .claims = speaks_anthropic,
                                   .id_prefixes = kAnthropicIds,
                                   .parse = anthropic::parse_messages,
                                   .parse_conversation = anthropic::parse_conversation,
                                   .writer = [](const GenerationRequest& asked, AnswerHead head,
                                                const Tokenizer&) -> std::unique_ptr<AnswerWriter> {
                                     return std::make_unique<anthropic::AnthropicWriter>(
                                         asked, std::move(head));
                                   },
                                   .error = anthropic::error_response};

}  // namespace quire
