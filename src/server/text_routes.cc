// Text to tokens and back, without the engine.
#include <fmt/core.h>

#include "engine/chat.h"
#include "server/prompt.h"
#include "server/routes.h"
#include "text/utf8.h"

namespace quire {
namespace {

Json piece_json(std::string_view piece) {
  if (utf8_valid(piece)) return std::string(piece);
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

void post_tokenize(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    const Tokenizer& tokenizer = server.runtime().tokenizer();
    std::vector<TokenId> tokens;
    bool pieces = false;
    if (body.is_object() && body.contains("messages")) {
      GenerationRequest asked;
      if (auto error = call->dialect->parse_conversation(body, server.parse_context(*call), asked))
        return post_refusal(call, std::move(*error));
      asked.tokens_max = 0;  // a prompt that fills the context may be counted
      std::vector<Prompt> prompts;
      if (auto error = make_prompts(asked, server.runtime(), prompts);
          error && (error->code != "context_length_exceeded" || prompts.empty()))
        return post_refusal(call, std::move(*error));
      tokens = std::move(prompts.front().tokens);
    } else {
      Fields f(body);
      const bool vllm = f.find("prompt") != nullptr;
      const auto text = f.text(vllm ? "prompt" : "content", std::size_t{64} << 20);
      if (!text && !f.failed()) f.refuse("content", "is required", "missing_required_parameter");
      EncodeOptions options{
          .parse_special = f.boolean("parse_special").value_or(server.options().parse_special),
          .add_special = f.boolean(vllm ? "add_special_tokens" : "add_special").value_or(vllm)};
      pieces = f.boolean("with_pieces").value_or(false);
      if (f.failed()) return post_refusal(call, f.error());
      tokens = tokenizer.encode(*text, options);
      if (auto error = stopped()) return post_refusal(call, std::move(*error));
    }
    Json out{{"tokens", tokens},
             {"count", tokens.size()},
             {"max_model_len", server.runtime().context()}};
    if (pieces) {
      out["tokens"] = Json::array();
      for (const TokenId t : tokens)
        out["tokens"].push_back({{"id", t}, {"piece", piece_json(tokenizer.piece(t))}});
    }
    if (body.is_object() && body.value("return_token_strs", Json(false)) == true) {
      out["token_strs"] = Json::array();
      for (const TokenId t : tokens) out["token_strs"].push_back(std::string(tokenizer.piece(t)));
    }
    post_answer(call, std::move(out));
  });
}

void post_detokenize(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    const Tokenizer& tokenizer = server.runtime().tokenizer();
    Fields f(body);
    const Json& list = f.require("tokens");
    std::vector<TokenId> tokens;
    if (!f.failed() && !list.is_array()) f.refuse("tokens", "must be a list of tokens");
    if (!f.failed())
      for (const Json& t : list) {
        if (!t.is_number_unsigned() || t.get<std::uint64_t>() >= tokenizer.size()) {
          f.refuse("tokens", "must hold tokens of this model");
          break;
        }
        tokens.push_back(t.get<TokenId>());
      }
    if (f.failed()) return post_refusal(call, f.error());
    const std::string text = tokenizer.decode(tokens);
    post_answer(call, {{"content", text}, {"prompt", text}});
  });
}

void post_apply_template(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    GenerationRequest asked;
    std::string text;
    if (auto error = call->dialect->parse_conversation(body, server.parse_context(*call), asked))
      return post_refusal(call, std::move(*error));
    if (auto error = render_text(asked, server.runtime(), text))
      return post_refusal(call, std::move(*error));
    post_answer(call, {{"prompt", text}});
  });
}

}  // namespace quire
