// Ollama's entry: /api/chat and /api/generate, streamed as lines of JSON, and the model as its
// clients see it.
#include "server/access_log.h"
#include "server/dialect/dialect.h"
#include "server/dialect/ollama/ollama_parse.h"
#include "server/dialect/ollama/ollama_routes.h"
#include "server/dialect/ollama/ollama_writer.h"
#include "server/routes.h"
#include "server/server.h"

namespace quire {
namespace ollama {
namespace {

// A model that is to be loaded is loaded already.
void answer_load(Server& server, const std::shared_ptr<Call>& call, const Json& body,
                 bool generate) {
  Fields f(body);
  std::string name = f.text("model", 1024).value_or("");
  if (f.failed()) return post_refusal(call, f.error());
  name = served_name(server, name.empty() ? server.model() : name);
  if (!server.serves(name)) return post_refusal(call, no_model(name));
  const Json* const keep = f.find("keep_alive");
  const bool unload = keep != nullptr && (*keep == 0 || *keep == "0");
  Json out{{"model", name}, {"created_at", rfc3339(unix_now_ns())}};
  if (generate)
    out["response"] = "";
  else
    out["message"] = {{"role", "assistant"}, {"content", ""}};
  out["done"] = true;
  out["done_reason"] = unload ? "unload" : "load";
  post_answer(call, std::move(out));
}

void generate_or_load(Server& server, std::shared_ptr<Call> call, ParseRequest* parse) {
  server.with_json(call, [&server, call, parse](const Json& body) {
    if (asks_to_load(body)) return answer_load(server, call, body, parse == parse_generate);
    GenerationRequest asked;
    if (auto error = parse(body, server.parse_context(*call), asked))
      return post_refusal(call, std::move(*error));
    asked.model = served_name(server, asked.model);
    if (!server.serves(asked.model)) return post_refusal(call, no_model(asked.model));
    server.answer(call, std::move(asked));
  });
}

void post_ollama_chat(Server& server, std::shared_ptr<Call> call) {
  generate_or_load(server, std::move(call), parse_chat);
}

void post_ollama_generate(Server& server, std::shared_ptr<Call> call) {
  generate_or_load(server, std::move(call), parse_generate);
}

// No text: the model is loaded, and there is nothing to embed.
void post_ollama_embed(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    const auto empty = [&body](const char* name) {
      const auto at = body.find(name);
      return at == body.end() || at->is_null() || *at == "" || *at == Json::array();
    };
    GenerationRequest asked;
    const bool nothing = body.is_object() && empty("input") && empty("prompt");
    if (!nothing)
      if (auto error = parse_embed(body, server.parse_context(*call), asked))
        return post_refusal(call, std::move(*error));
    if (nothing) {
      Fields f(body);
      asked.model = f.text("model", 1024).value_or("");
      if (f.failed()) return post_refusal(call, f.error());
    }
    asked.model = served_name(server, asked.model.empty() ? server.model() : asked.model);
    if (!server.serves(asked.model)) return post_refusal(call, no_model(asked.model));
    if (nothing) return post_answer(call, {{"model", asked.model}, {"embeddings", Json::array()}});
    if (asked.extras["cut"] == true)  // the first tokens of each text are embedded
      for (PromptInput& p : asked.prompts)
        p.text_tokens_max = std::max(2u, server.runtime().context()) - 1;
    server.answer(call, std::move(asked));
  });
}

std::optional<ApiError> parse_ollama(const Json& body, const ParseContext& context,
                                     GenerationRequest& asked) {
  return (body.contains("messages") ? parse_chat : parse_generate)(body, context, asked);
}

bool claims_ollama(const HttpRequest& request) { return request.path.starts_with("/api/"); }

HttpResponse ollama_error_response(const ApiError& error, std::string_view) {
  HttpResponse r = json_response(ollama_error(error), error.status);
  if (error.retry_after_s > 0)
    r.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  return r;
}

constexpr Route kOllamaRoutes[] = {
    {"POST", "/api/chat", Access::user, post_ollama_chat, "chat"},
    {"POST", "/api/generate", Access::user, post_ollama_generate, "text_completion"},
    {"POST", "/api/embed", Access::user, post_ollama_embed, "embeddings"},
    {"POST", "/api/embeddings", Access::user, post_ollama_embed, "embeddings"},
    {"GET", "/api/tags", Access::user, get_tags},
    {"GET", "/api/ps", Access::user, get_running},
    {"POST", "/api/show", Access::user, post_show},
    {"GET", "/api/version", Access::open, get_api_version},
    // Models are files that this server was started with.
    {"POST", "/api/pull", Access::user, not_yet},
    {"POST", "/api/push", Access::admin, not_yet},
    {"POST", "/api/create", Access::admin, not_yet},
    {"POST", "/api/copy", Access::admin, not_yet},
    {"DELETE", "/api/delete", Access::admin, not_yet},
};

}  // namespace
}  // namespace ollama

extern const Dialect kOllama = {
    .name = "ollama",
    .routes = ollama::kOllamaRoutes,
    .claims = ollama::claims_ollama,
    .id_prefixes = {},
    .parse = ollama::parse_ollama,
    .parse_conversation = ollama::parse_conversation,
    .writer = [](const GenerationRequest& asked, AnswerHead head,
                 const Tokenizer& tokenizer) -> std::unique_ptr<AnswerWriter> {
      if (asked.embedding.pooling != Pooling::none)
        return std::make_unique<ollama::OllamaEmbedWriter>(asked, std::move(head));
      return std::make_unique<ollama::OllamaWriter>(asked, std::move(head), tokenizer);
    },
    .error = ollama::ollama_error_response};

}  // namespace quire
