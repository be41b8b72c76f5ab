#include "server/dialect/ollama/ollama_writer.h"

#include <cmath>

#include "net/http.h"
#include "server/access_log.h"

namespace quire::ollama {
namespace {

std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace

Json ollama_error(const ApiError& error) { return {{"error", error.message}}; }

OllamaWriter::OllamaWriter(const GenerationRequest& asked, AnswerHead head,
                           const Tokenizer& tokenizer)
    : head_(std::move(head)),
      generate_(asked.extras.value("generate", false)),
      logprobs_(asked.logprobs),
      context_(generate_ && asked.return_token_ids),
      tokenizer_(tokenizer) {}

HttpResponse OllamaWriter::stream_head() const {
  return {.headers = {{"Content-Type", "application/x-ndjson"},
                      {"Cache-Control", "no-cache"},
                      {"X-Accel-Buffering", "no"}}};
}

Json OllamaWriter::line(const std::string& text, const std::string& thinking, Json calls) const {
  Json out{{"model", head_.model}, {"created_at", rfc3339(unix_now_ns())}};
  if (generate_) {
    out["response"] = text;
    if (!thinking.empty()) out["thinking"] = thinking;
  } else {
    Json& message = out["message"] = {{"role", "assistant"}, {"content", text}};
    if (!thinking.empty()) message["thinking"] = thinking;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
  }
  out["done"] = false;
  return out;
}

Json OllamaWriter::calls_json(const std::vector<WholeAnswer::Call>& calls) const {
  Json out = Json::array();
  for (const WholeAnswer::Call& call : calls)
    if (auto arguments = arguments_of(call))
      out.push_back({{"function", {{"name", call.name}, {"arguments", std::move(*arguments)}}}});
  return out;
}

void OllamaWriter::add_logprobs(const std::vector<Choice>& tokens, Json& to) const {
  const auto entry = [this](TokenId token, float logprob) {
    return Json{{"token", std::string(tokenizer_.piece(token))},
                {"logprob", std::isfinite(logprob) ? logprob : -9999.0}};
  };
  Json list = Json::array();
  for (const Choice& c : tokens) {
    Json next = entry(c.token, c.logprob);
    next["top_logprobs"] = Json::array();
    for (const TokenLogprob& t : c.alternatives)
      next["top_logprobs"].push_back(entry(t.token, t.logprob));
    list.push_back(std::move(next));
  }
  to["logprobs"] = std::move(list);
}

void OllamaWriter::finish(FinishReason how, const Usage& usage, const Json& kv, Json& to) const {
  to["done"] = true;
  to["done_reason"] = how == FinishReason::length ? "length" : "stop";
  to["total_duration"] = SteadyClock().now() - began_;
  to["load_duration"] = 0;  // the model was loaded when the server began
  to["prompt_eval_count"] = usage.prompt;
  to["prompt_eval_duration"] = nanoseconds(usage.prefill_seconds);
  to["eval_count"] = usage.completion;
  to["eval_duration"] = nanoseconds(usage.decode_seconds);
  if (!kv.is_null()) to["kv"] = kv;
}

std::string OllamaWriter::piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                                const Usage&) {
  if (context_ && tokens_.empty()) tokens_ = prompts[piece.prompt].tokens;
  if (context_)
    for (const Choice& c : piece.tokens) tokens_.push_back(c.token);
  tokens_.insert(tokens_.end(), piece.silent.begin(), piece.silent.end());
  if (piece.finish) finish_ = *piece.finish;
  Json calls = calls_json(calls_.add(piece.tools, piece.finish.has_value()));
  const bool logprobs = logprobs_ && !piece.tokens.empty();
  if (piece.text.empty() && piece.reasoning.empty() && calls.empty() && !logprobs) return {};
  Json out = line(piece.text, piece.reasoning, std::move(calls));
  if (logprobs) add_logprobs(piece.tokens, out);
  return dump(out) + "\n";
}

std::string OllamaWriter::end(const Usage& usage, const Json& kv) {
  Json out = line("", "", Json::array());
  finish(finish_, usage, kv, out);
  if (context_) out["context"] = tokens_;
  return dump(out) + "\n";
}

std::string OllamaWriter::failure(const ApiError& error) {
  return dump(ollama_error(error)) + "\n";
}

Json OllamaWriter::whole(const std::vector<WholeAnswer>& answers,
                         const std::vector<PromptInfo>& prompts, const Usage& usage,
                         const Json& kv) {
  const WholeAnswer& a = answers.front();
  Json out = line(a.text, a.reasoning, calls_json(a.calls));
  if (logprobs_) add_logprobs(a.tokens, out);
  finish(a.finish, usage, kv, out);
  if (context_) {
    std::vector<TokenId> tokens = prompts[a.prompt].tokens;
    tokens.insert(tokens.end(), a.token_ids.begin(), a.token_ids.end());
    out["context"] = std::move(tokens);
  }
  return out;
}

}  // namespace quire::ollama
