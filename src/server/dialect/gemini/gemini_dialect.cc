// Gemini's entry: generateContent, streamGenerateContent, countTokens, embeddings and cachedContents. Paths work
// under /v1, /v1beta and /v1alpha (server/router.h).
#include "server/dialect/dialect.h"
#include "server/dialect/gemini/cached_routes.h"
#include "server/dialect/gemini/gemini_parse.h"
#include "server/dialect/gemini/gemini_writer.h"
#include "server/prompt.h"
#include "server/server.h"

namespace quire {
namespace gemini {
namespace {

enum class Sent : std::uint8_t { whole, events, array };

void generate_content(Server& server, std::shared_ptr<Call> call, Sent how) {
  const std::string model = model_name(call->arguments.front());
  server.generate(call, [&server, call, how, model](const Json& body, const ParseContext& context,
                                                    GenerationRequest& asked) {
    std::optional<CachedContent> cached;
    std::optional<ApiError> error;
    if (names_cached_content(body)) {
      Json own = body;
      error = take_cached_content(server, *call, model, own, cached);
      if (!error) error = parse_generate(own, context, asked);
    } else {
      error = parse_generate(body, context, asked);
    }
    asked.model = model;
    asked.stream = how != Sent::whole;
    asked.extras["array"] = how == Sent::array;
    return error;
  });
}

void post_generate(Server& server, std::shared_ptr<Call> call) {
  generate_content(server, std::move(call), Sent::whole);
}

void post_stream_generate(Server& server, std::shared_ptr<Call> call) {
  const bool events = call->request().parameter("alt").value_or("") == "sse";
  generate_content(server, std::move(call), events ? Sent::events : Sent::array);
}

void embed(Server& server, std::shared_ptr<Call> call, ParseRequest* parse) {
  const std::string model = model_name(call->arguments.front());
  server.generate(call, [parse, model](const Json& body, const ParseContext& context,
                                       GenerationRequest& asked) {
    auto error = parse(body, context, asked);
    asked.model = model;
    return error;
  });
}

void post_embed(Server& server, std::shared_ptr<Call> call) {
  embed(server, std::move(call), parse_embed);
}

void post_batch_embed(Server& server, std::shared_ptr<Call> call) {
  embed(server, std::move(call), parse_batch_embed);
}

// The whole prompt counts, cached or not, as usageMetadata counts it.
void post_count(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    const std::string model = model_name(call->arguments.front());
    if (!server.serves(model))
      return post_refusal(call,
                          not_found("models/" + model + " is not served here", "model_not_found"));
    Json request = counted_request(body);
    std::optional<CachedContent> cached;
    GenerationRequest asked;
    std::vector<Prompt> prompts;
    auto error = take_cached_content(server, *call, model, request, cached);
    if (!error) error = parse_conversation(request, server.parse_context(*call), asked);
    asked.tokens_max = 0;
    if (!error) error = make_prompts(asked, server.runtime(), prompts);
    if (error && (error->code != "context_length_exceeded" || prompts.empty()))
      return post_refusal(call, std::move(*error));
    const std::size_t tokens = prompts.front().tokens.size();
    post_answer(call, {{"totalTokens", tokens},
                       {"cachedContentTokenCount", cached ? cached->tokens : 0},
                       {"promptTokensDetails", token_count("TEXT", tokens)}});
  });
}

// What comes by none of the routes below, or for no route's handler.
bool claims_gemini(const HttpRequest& request) {
  std::string_view path = request.path;
  if (path.starts_with("/v1beta/") || path.starts_with("/v1alpha/")) return true;
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  if (path.starts_with("/cachedContents")) return true;
  if (!path.starts_with("/models")) return false;
  return (request.method == "POST" && path.find(':') != path.npos) ||
         !request.header("x-goog-api-key").empty() || !request.header("x-goog-api-client").empty();
}

HttpResponse gemini_error_response(const ApiError& error, std::string_view) {
  HttpResponse r = json_response(gemini_error(error), gemini_status(error));
  if (error.retry_after_s > 0)
    r.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  return r;
}

constexpr Route kGeminiRoutes[] = {
    {"POST", "/v1/models/{id*}:generateContent", Access::user, post_generate, "generate_content"},
    {"POST", "/v1/models/{id*}:streamGenerateContent", Access::user, post_stream_generate,
     "generate_content"},
    {"POST", "/v1/models/{id*}:countTokens", Access::user, post_count},
    {"POST", "/v1/models/{id*}:embedContent", Access::user, post_embed, "embeddings"},
    {"POST", "/v1/models/{id*}:batchEmbedContents", Access::user, post_batch_embed, "embeddings"},
    {"POST", "/v1/cachedContents", Access::user, post_cached_content},
    {"GET", "/v1/cachedContents", Access::user, get_cached_contents},
    {"GET", "/v1/cachedContents/{id}", Access::user, get_cached_content},
    {"PATCH", "/v1/cachedContents/{id}", Access::user, patch_cached_content},
    {"DELETE", "/v1/cachedContents/{id}", Access::user, delete_cached_content},
};
constexpr std::string_view kGeminiIds[] = {kGeminiIdPrefix};

}  // namespace
}  // namespace gemini

extern const Dialect kGemini = {
    .name = "gemini",
    .routes = gemini::kGeminiRoutes,
    .claims = gemini::claims_gemini,
    .id_prefixes = gemini::kGeminiIds,
    .parse = gemini::parse_generate,
    .parse_conversation = gemini::parse_conversation,
    .writer = [](const GenerationRequest& asked, AnswerHead head,
                 const Tokenizer& tokenizer) -> std::unique_ptr<AnswerWriter> {
      if (asked.embedding.pooling != Pooling::none)
        return std::make_unique<gemini::GeminiEmbedWriter>(asked, std::move(head));
      return std::make_unique<gemini::GeminiWriter>(asked, std::move(head), tokenizer);
    },
    .error = gemini::gemini_error_response,
    .open = [](const ServerOptions&) -> Result<std::shared_ptr<DialectState>> {
      return std::shared_ptr<DialectState>(std::make_shared<gemini::CachedContents>());
    }};

}  // namespace quire
