// Text to tokens and back, without the engine.
#include <fmt/core.h>

#include "engine/chat.h"
#include "server/prompt.h"
#include "server/routes.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr std::size_t kPiecesMax = std::size_t{1} << 18;  // that are spelled out in one answer

std::string piece_json(std::string_view piece) {
  if (utf8_valid(piece)) return dump(std::string(piece));
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return dump(bytes);
}

// Writes a list, item by item: as values of JSON a million tokens would take tens of megabytes.
template <class Item>
void append_list(std::string& out, std::span<const TokenId> tokens, const Item& item) {
  out += '[';
  for (const TokenId t : tokens) {
    if (out.back() != '[') out += ',';
    item(t);
  }
  out += ']';
}

struct TokensShown {
  bool pieces = false, strings = false;
};

std::string tokens_json(const Runtime& runtime, std::span<const TokenId> tokens,
                        const TokensShown& shown) {
  const Tokenizer& tokenizer = runtime.tokenizer();
  std::string out = R"({"tokens":)";
  const auto to = std::back_inserter(out);
  if (shown.pieces)
    append_list(out, tokens, [&](TokenId t) {
      fmt::format_to(to, R"({{"id":{},"piece":{}}})", t, piece_json(tokenizer.piece(t)));
    });
  else
    append_list(out, tokens, [&](TokenId t) { fmt::format_to(to, "{}", t); });
  fmt::format_to(to, R"(,"count":{},"max_model_len":{})", tokens.size(), runtime.context());
  if (shown.strings) {
    out += R"(,"token_strs":)";
    append_list(out, tokens, [&](TokenId t) { out += dump(std::string(tokenizer.piece(t))); });
  }
  return out + '}';
}

}  // namespace

void post_tokenize(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    std::vector<TokenId> tokens;
    TokensShown shown;
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
      const auto text = f.text(vllm ? "prompt" : "content", prompt_bytes_max(server.runtime()));
      if (!text && !f.failed()) f.refuse("content", "is required", "missing_required_parameter");
      EncodeOptions options{
          .parse_special = f.boolean("parse_special").value_or(server.options().parse_special),
          .add_special = f.boolean(vllm ? "add_special_tokens" : "add_special").value_or(vllm)};
      shown.pieces = f.boolean("with_pieces").value_or(false);
      if (f.failed()) return post_refusal(call, f.error());
      tokens = server.runtime().tokenizer().encode(*text, options);
      if (auto error = stopped()) return post_refusal(call, std::move(*error));
    }
    shown.strings = body.is_object() && body.value("return_token_strs", Json(false)) == true;
    if ((shown.pieces || shown.strings) && tokens.size() > kPiecesMax)
      return post_refusal(
          call, bad_value(shown.pieces ? "with_pieces" : "return_token_strs",
                          fmt::format("must be false for more than {} tokens", kPiecesMax)));
    std::string out = tokens_json(server.runtime(), tokens, shown);
    call->exchange->post([call, out = std::move(out)]() mutable {
      call->exchange->respond(
          {.headers = {{"Content-Type", "application/json"}}, .body = std::move(out)});
    });
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
    std::size_t bytes = 0;
    for (const TokenId t : tokens) bytes += tokenizer.piece(t).size();
    if (!f.failed() && bytes > prompt_bytes_max(server.runtime()))
      f.refuse("tokens", fmt::format("must be a text of at most {} bytes",
                                     prompt_bytes_max(server.runtime())));
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
