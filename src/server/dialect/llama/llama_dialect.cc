// llama-server's entry: POST /completion. Its clients speak OpenAI's dialect otherwise.
#include "server/dialect/dialect.h"
#include "server/dialect/llama/llama_parse.h"
#include "server/dialect/llama/llama_writer.h"
#include "server/dialect/openai/openai_parse.h"
#include "server/dialect/openai/openai_writer.h"
#include "server/server.h"

namespace quire {
namespace llama {
namespace {

void post_llama_completion(Server& server, std::shared_ptr<Call> call) {
  server.generate(std::move(call), parse_completion);
}

constexpr Route kLlamaRoutes[] = {
    {"POST", "/completion", Access::user, post_llama_completion, "text_completion"},
};
constexpr std::string_view kLlamaIds[] = {kLlamaIdPrefix};

}  // namespace
}  // namespace llama

extern const Dialect kLlamaServer = {
    .name = "llama",
    .routes = llama::kLlamaRoutes,
    .claims = nullptr,
    .id_prefixes = llama::kLlamaIds,
    .parse = llama::parse_completion,
    .parse_conversation = openai::parse_conversation,
    .writer = [](const GenerationRequest& asked, AnswerHead head,
                 const Tokenizer& tokenizer) -> std::unique_ptr<AnswerWriter> {
      return std::make_unique<llama::LlamaWriter>(asked, std::move(head), tokenizer);
    },
    .error = openai::openai_error_response};

}  // namespace quire
