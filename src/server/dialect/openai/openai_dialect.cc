// OpenAI's entry: chat and text completions, with the fields that vLLM's clients add.
#include "server/dialect/dialect.h"
#include "server/dialect/openai/openai_embed.h"
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

void post_embeddings(Server& server, std::shared_ptr<Call> call) {
  server.generate(std::move(call), parse_embeddings);
}

void post_rerank(Server& server, std::shared_ptr<Call> call) {
  server.generate(std::move(call), parse_rerank);
}

std::optional<ApiError> parse_either(const Json& body, const ParseContext& context,
                                     GenerationRequest& asked) {
  return (body.contains("messages") ? parse_chat : parse_completion)(body, context, asked);
}

constexpr Route kOpenAiRoutes[] = {
    {"POST", "/v1/chat/completions", Access::user, post_chat, "chat"},
    {"POST", "/v1/completions", Access::user, post_completions, "text_completion"},
    {"POST", "/v1/embeddings", Access::user, post_embeddings, "embeddings"},
    {"POST", "/v1/rerank", Access::user, post_rerank, "rerank"},
    {"POST", "/v2/rerank", Access::user, post_rerank, "rerank"},  // Cohere's clients
};
constexpr std::string_view kOpenAiIds[] = {kChatIdPrefix, kTextIdPrefix, kEmbeddingsIdPrefix,
                                           kRerankIdPrefix};

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
      if (asked.embedding.pooling != Pooling::none)
        return std::make_unique<EmbeddingsWriter>(asked, std::move(head));
      if (asked.rerank) return std::make_unique<RerankWriter>(asked, std::move(head));
      return std::make_unique<OpenAiWriter>(asked, std::move(head), tokenizer);
    },
    .error = openai_error_response};

}  // namespace quire
