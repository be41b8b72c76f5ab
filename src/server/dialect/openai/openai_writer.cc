#include "server/dialect/openai/openai_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "net/http.h"
#include "server/ids.h"
#include "text/utf8.h"

namespace quire::openai {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";

std::uint64_t characters_in(std::string_view text) {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

// The name that most servers give it, and the one that newer clients read.
Json reasoning_fields(const std::string& text) {
  return {{"reasoning_content", text}, {"reasoning", text}};
}

Json token_ids(const AnswerPiece& piece) {
  Json ids = Json::array();
  for (const Choice& c : piece.tokens) ids.push_back(c.token);
  for (const TokenId t : piece.silent) ids.push_back(t);
  return ids;
}

double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

}  // namespace

Json openai_usage(const Usage& u, bool chat) {
  Json out{{"prompt_tokens", u.prompt},
           {"completion_tokens", u.completion},
           {"total_tokens", u.prompt + u.completion},
           {"prompt_tokens_details",
            {{"cached_tokens", u.cached}, {"cache_write_tokens", u.written}, {"audio_tokens", 0}}}};
  if (chat)
    out["completion_tokens_details"] = {{"reasoning_tokens", u.reasoning},
                                        {"audio_tokens", 0},
                                        {"accepted_prediction_tokens", u.predicted},
                                        {"rejected_prediction_tokens", u.mispredicted}};
  return out;
}

Json openai_error(const ApiError& error) {
  const auto or_null = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

HttpResponse openai_error_response(const ApiError& error, std::string_view) {
  HttpResponse r = json_response(openai_error(error), error.status);
  if (error.retry_after_s > 0)
    r.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  if (error.status == 501) r.headers.push_back({"x-should-retry", "false"});
  if (error.status == 401) r.headers.push_back({"WWW-Authenticate", "Bearer"});
  return r;
}

OpenAiWriter::OpenAiWriter(const GenerationRequest& asked, AnswerHead head,
                           const Tokenizer& tokenizer)
    : asked_(asked),
      head_(std::move(head)),
      id_(std::string(asked_.chat ? kChatIdPrefix : kTextIdPrefix) + head_.id),
      old_functions_(asked_.extras.value("old_functions", false)),
      tokenizer_(tokenizer) {
  chunk_head_ =
      fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":{},"system_fingerprint":"{}",)",
                  id_, asked_.chat ? "chat.completion.chunk" : "text_completion", head_.created,
                  dump(head_.model), head_.system_fingerprint);
}

std::vector<HttpHeader> OpenAiWriter::headers(Nanoseconds took) const {
  return {{"openai-processing-ms", std::to_string(took / 1'000'000)}};
}

std::string_view OpenAiWriter::finish_name(FinishReason finish) const {
  switch (finish) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::tool_calls:
      return old_functions_ ? "function_call" : "tool_calls";
  }
  return "stop";
}

std::string OpenAiWriter::chunk(std::string_view choices, const Usage* usage,
                                const Json& kv) const {
  std::string out = chunk_head_;
  (out += "\"choices\":[").append(choices) += ']';
  if (asked_.include_usage)
    (out += ",\"usage\":") += usage ? dump(openai_usage(*usage, asked_.chat)) : "null";
  if (!kv.is_null()) (out += ",\"kv\":") += dump(kv);
  out += '}';
  return sse(out);
}

std::string OpenAiWriter::piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                                const Usage& so_far) {
  if (states_.size() <= piece.index) states_.resize(piece.index + 1);
  ChoiceState& state = states_[piece.index];
  if (asked_.chat) return chat_piece(piece, state, so_far);

  const PromptInfo& prompt = prompts[piece.prompt];
  const PromptInfo* echoed = asked_.echo && !state.begun ? &prompt : nullptr;
  std::string text = echoed ? echo_text(prompt) + piece.text : piece.text;
  Json choice{{"index", piece.index}, {"text", std::move(text)}};
  choice["logprobs"] =
      asked_.logprobs ? text_logprobs(piece.tokens, echoed, state.characters) : Json();
  choice["finish_reason"] = piece.finish ? Json(finish_name(*piece.finish)) : Json();
  if (asked_.return_token_ids) {
    if (!state.begun) choice["prompt_token_ids"] = prompt.tokens;
    choice["token_ids"] = token_ids(piece);
  }
  if (!state.begun && asked_.prompt_logprobs >= 0 && !asked_.echo)
    choice["prompt_logprobs"] = prompt_logprobs(prompt);
  state.begun = true;
  return chunk(dump(choice), asked_.continuous_usage ? &so_far : nullptr);
}

std::string OpenAiWriter::chat_piece(const AnswerPiece& piece, ChoiceState& state,
                                     const Usage& so_far) {
  const Usage* usage = asked_.continuous_usage ? &so_far : nullptr;
  std::string out;
  std::string ids;  // those of the piece, in the first chunk that has text, or else the last one
  if (asked_.return_token_ids) ids = ",\"token_ids\":" + dump(token_ids(piece));
  const auto send = [&](Json delta, const Json& logprobs, const char* finish) {
    const bool begins = delta.contains("role");
    out += chunk(fmt::format(R"({{"index":{},"delta":{},"logprobs":{},"finish_reason":{}{}}})",
                             piece.index, dump(delta), dump(logprobs), finish, begins ? "" : ids),
                 usage);
    if (!begins) ids.clear();
  };
  Json logprobs = asked_.logprobs && !piece.tokens.empty() ? chat_logprobs(piece.tokens) : Json();
  if (!state.begun) {
    state.begun = true;
    send({{"role", "assistant"}, {"content", ""}}, nullptr, "null");
  }
  if (!piece.reasoning.empty()) {
    send(reasoning_fields(piece.reasoning), logprobs, "null");
    logprobs = nullptr;
  }
  if (!piece.text.empty() || (!logprobs.is_null() && piece.tools.empty())) {
    send({{"content", piece.text}}, logprobs, "null");
    logprobs = nullptr;
  }
  for (const ToolPiece& t : piece.tools) {
    const bool first = t.kind == ToolPiece::Kind::call;
    Json delta;
    if (old_functions_) {
      delta["function_call"] =
          first ? Json{{"name", t.text}, {"arguments", ""}} : Json{{"arguments", t.text}};
    } else {
      Json call{{"index", t.index}};
      if (first) {
        call["id"] = "call_" + random_hex(24);
        call["type"] = "function";
        call["function"] = {{"name", t.text}, {"arguments", ""}};
      } else {
        call["function"] = {{"arguments", t.text}};
      }
      delta["tool_calls"] = Json::array({std::move(call)});
    }
    send(std::move(delta), logprobs, "null");
    logprobs = nullptr;
  }
  if (piece.finish || (piece.tokens.size() > 0 && !ids.empty()))
    send(Json::object(), nullptr,
         piece.finish ? fmt::format("\"{}\"", finish_name(*piece.finish)).c_str() : "null");
  return out;
}

std::string OpenAiWriter::end(const Usage& usage, const Json& kv) {
  std::string out;
  if (asked_.include_usage || !kv.is_null())
    out += chunk("", asked_.include_usage ? &usage : nullptr, kv);
  return out.append(kDone);
}

std::string OpenAiWriter::failure(const ApiError& error) {
  return sse(dump(openai_error(error))).append(kDone);
}

Json token_logprobs(const std::vector<Choice>& tokens, const Tokenizer& tokenizer,
                    bool skip_special) {
  const auto token_entry = [&](TokenId token, float logprob, bool shown) -> Json {
    const std::string_view piece = tokenizer.piece(token);
    Json bytes = Json::array();
    if (shown)
      for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
    return {
        {"token", std::string(piece)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
  };
  Json list = Json::array();
  for (const Choice& c : tokens) {
    // Tokens that leave no text have no bytes, so that the bytes join to the text.
    const bool shown = !(skip_special && tokenizer.is_special(c.token));
    Json entry = token_entry(c.token, c.logprob, shown);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& t : c.alternatives)
      entry["top_logprobs"].push_back(token_entry(t.token, t.logprob, true));
    list.push_back(std::move(entry));
  }
  return list;
}

Json OpenAiWriter::chat_logprobs(const std::vector<Choice>& tokens) const {
  return {{"content", token_logprobs(tokens, tokenizer_, asked_.skip_special)},
          {"refusal", nullptr}};
}

Json OpenAiWriter::text_logprobs(const std::vector<Choice>& tokens, const PromptInfo* echoed,
                                 std::uint64_t& characters) const {
  Json names = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  const auto add = [&](TokenId token, const Json& logprob, const std::vector<TokenLogprob>& others,
                       bool shown) {
    const std::string piece(tokenizer_.piece(token));
    names.push_back(piece);
    logprobs.push_back(logprob);
    offsets.push_back(characters);
    if (shown) characters += characters_in(piece);
    if (logprob.is_null()) {
      tops.push_back(nullptr);
      return;
    }
    Json top = Json::object();
    for (const TokenLogprob& t : others)
      top[std::string(tokenizer_.piece(t.token))] = finite(t.logprob);
    top[piece] = logprob;
    tops.push_back(std::move(top));
  };
  if (echoed != nullptr)
    for (std::size_t i = 0; i < echoed->logprobs.size(); ++i) {
      const PromptLogprob& p = echoed->logprobs[i];
      add(p.token, i == 0 ? Json() : Json(finite(p.logprob)), p.alternatives, true);
    }
  for (const Choice& c : tokens)
    add(c.token, finite(c.logprob), c.alternatives,
        !(asked_.skip_special && tokenizer_.is_special(c.token)));
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

std::string OpenAiWriter::echo_text(const PromptInfo& prompt) const {
  return tokenizer_.decode(prompt.tokens, {.skip_special = false});
}

// As vLLM has them: by token id, the prompt's own token and the most likely ones.
Json OpenAiWriter::prompt_logprobs(const PromptInfo& prompt) const {
  Json out = Json::array();
  for (std::size_t i = 0; i < prompt.logprobs.size(); ++i) {
    const PromptLogprob& p = prompt.logprobs[i];
    if (i == 0) {
      out.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    std::uint32_t rank = 1;
    for (const TokenLogprob& t : p.alternatives)
      entry[std::to_string(t.token)] = {{"logprob", finite(t.logprob)},
                                        {"rank", rank++},
                                        {"decoded_token", std::string(tokenizer_.piece(t.token))}};
    if (!entry.contains(std::to_string(p.token)))
      entry[std::to_string(p.token)] = {{"logprob", finite(p.logprob)},
                                        {"rank", nullptr},
                                        {"decoded_token", std::string(tokenizer_.piece(p.token))}};
    out.push_back(std::move(entry));
  }
  return out;
}

Json OpenAiWriter::chat_choice(const WholeAnswer& answer) const {
  Json message{
      {"role", "assistant"},
      {"content", answer.text.empty() && !answer.calls.empty() ? Json() : Json(answer.text)},
      {"refusal", nullptr},
      {"annotations", Json::array()}};
  if (!answer.reasoning.empty()) message.update(reasoning_fields(answer.reasoning));
  if (!answer.calls.empty() && old_functions_) {
    message["function_call"] = {{"name", answer.calls.front().name},
                                {"arguments", answer.calls.front().arguments}};
  } else if (!answer.calls.empty()) {
    Json calls = Json::array();
    for (const WholeAnswer::Call& c : answer.calls)
      calls.push_back({{"id", "call_" + random_hex(24)},
                       {"type", "function"},
                       {"function", {{"name", c.name}, {"arguments", c.arguments}}}});
    message["tool_calls"] = std::move(calls);
  }
  return {{"index", answer.index},
          {"message", std::move(message)},
          {"logprobs", asked_.logprobs ? chat_logprobs(answer.tokens) : Json()},
          {"finish_reason", finish_name(answer.finish)}};
}

Json OpenAiWriter::whole(const std::vector<WholeAnswer>& answers,
                         const std::vector<PromptInfo>& prompts, const Usage& usage,
                         const Json& kv) {
  Json choices = Json::array();
  for (const WholeAnswer& a : answers) {
    const PromptInfo& prompt = prompts[a.prompt];
    Json choice;
    if (asked_.chat) {
      choice = chat_choice(a);
    } else {
      std::uint64_t characters = 0;
      choice = {
          {"index", a.index},
          {"text", asked_.echo ? echo_text(prompt) + a.text : a.text},
          {"logprobs", asked_.logprobs
                           ? text_logprobs(a.tokens, asked_.echo ? &prompt : nullptr, characters)
                           : Json()},
          {"finish_reason", finish_name(a.finish)}};
    }
    if (asked_.return_token_ids) {
      choice["token_ids"] = a.token_ids;
      if (!asked_.chat) choice["prompt_token_ids"] = prompt.tokens;
    }
    if (!asked_.chat && asked_.prompt_logprobs >= 0 && !(asked_.echo && asked_.logprobs))
      choice["prompt_logprobs"] = prompt_logprobs(prompt);
    choices.push_back(std::move(choice));
  }
  Json out{{"id", id_},
           {"object", asked_.chat ? "chat.completion" : "text_completion"},
           {"created", head_.created},
           {"model", head_.model},
           {"choices", std::move(choices)},
           {"usage", openai_usage(usage, asked_.chat)}};
  if (asked_.chat) {
    out["service_tier"] = asked_.extras.value("service_tier", "default");
    if (asked_.return_token_ids) out["prompt_token_ids"] = prompts.front().tokens;
    if (asked_.prompt_logprobs >= 0) out["prompt_logprobs"] = prompt_logprobs(prompts.front());
  }
  out["system_fingerprint"] = head_.system_fingerprint;
  if (!kv.is_null()) out["kv"] = kv;
  return out;
}

}  // namespace quire::openai
