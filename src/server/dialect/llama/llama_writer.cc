#include "server/dialect/llama/llama_writer.h"

#include <cmath>

#include "net/http.h"
#include "server/dialect/openai/openai_writer.h"

namespace quire::llama {
namespace {

Json timings(const Usage& u) {
  const double prompt_ms = u.prefill_seconds * 1e3, predicted_ms = u.decode_seconds * 1e3;
  const auto computed = static_cast<double>(u.prompt - u.cached);
  const auto predicted = static_cast<double>(u.completion);
  const auto part = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  return {{"cache_n", u.cached},
          {"prompt_n", u.prompt - u.cached},
          {"prompt_ms", prompt_ms},
          {"prompt_per_token_ms", part(prompt_ms, computed)},
          {"prompt_per_second", part(computed * 1e3, prompt_ms)},
          {"predicted_n", u.completion},
          {"predicted_ms", predicted_ms},
          {"predicted_per_token_ms", part(predicted_ms, predicted)},
          {"predicted_per_second", part(predicted * 1e3, predicted_ms)}};
}

Json bytes_of(std::string_view text) {
  Json out = Json::array();
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

}  // namespace

LlamaWriter::LlamaWriter(const GenerationRequest& asked, AnswerHead head,
                         const Tokenizer& tokenizer)
    : asked_(asked),
      head_(std::move(head)),
      id_(std::string(kLlamaIdPrefix) + head_.id),
      tokenizer_(tokenizer) {}

HttpResponse LlamaWriter::stream_head() const { return sse_head(": keep-alive\n\n"); }

Json LlamaWriter::probabilities(const std::vector<Choice>& tokens) const {
  const auto entry = [this](TokenId token, float logprob) {
    const std::string_view piece = tokenizer_.piece(token);
    return Json{{"id", token},
                {"token", std::string(piece)},
                {"bytes", bytes_of(piece)},
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
  return list;
}

// What an answer says at its end, besides its text.
Json LlamaWriter::last(const Ended& ended, const Usage& u, const Json& kv) const {
  const SamplingOptions& s = asked_.sampling;
  const char* const type = ended.how == FinishReason::length ? "limit"
                           : ended.word.empty()              ? "eos"
                                                             : "word";
  Json out{{"index", 0},
           {"content", ""},
           {"tokens", Json::array()},
           {"id_slot", 0},
           {"stop", true},
           {"model", head_.model},
           {"tokens_predicted", u.completion},
           {"tokens_evaluated", u.prompt},
           {"generation_settings",
            {{"n_predict", asked_.tokens_max ? Json(*asked_.tokens_max) : Json(-1)},
             {"seed", s.seed},
             {"temperature", s.temperature},
             {"top_k", s.top_k},
             {"top_p", s.top_p},
             {"min_p", s.min_p},
             {"typical_p", s.typical_p},
             {"repeat_penalty", s.repetition_penalty},
             {"presence_penalty", s.presence_penalty},
             {"frequency_penalty", s.frequency_penalty},
             {"stop", asked_.stop},
             {"stream", asked_.stream}}},
           {"has_new_line", ended.has_new_line},
           {"truncated", false},
           {"stop_type", type},
           {"stopping_word", ended.word},
           {"tokens_cached", u.cached},
           {"timings", timings(u)}};
  if (asked_.prompts.size() == 1 && !asked_.prompts[0].is_tokens)
    out["prompt"] = asked_.prompts[0].text;
  if (!kv.is_null()) out["kv"] = kv;
  return out;
}

std::string LlamaWriter::piece(const AnswerPiece& piece, const std::vector<PromptInfo>&,
                               const Usage& so_far) {
  if (piece.finish) {
    ended_.how = *piece.finish;
    ended_.word = piece.stop;
  }
  const std::string text = piece.reasoning + piece.text;
  ended_.has_new_line |= text.find('\n') != std::string::npos;
  if (text.empty() && piece.tokens.empty()) return {};
  Json tokens = Json::array();
  if (asked_.return_token_ids)
    for (const Choice& c : piece.tokens) tokens.push_back(c.token);
  Json out{{"index", 0},
           {"content", text},
           {"tokens", std::move(tokens)},
           {"stop", false},
           {"id_slot", 0},
           {"tokens_predicted", so_far.completion},
           {"tokens_evaluated", so_far.prompt}};
  if (asked_.logprobs) out["completion_probabilities"] = probabilities(piece.tokens);
  return sse(dump(out));
}

std::string LlamaWriter::end(const Usage& usage, const Json& kv) {
  return sse(dump(last(ended_, usage, kv)));
}

std::string LlamaWriter::failure(const ApiError& error) {
  return sse(dump(openai::openai_error(error)), "error");
}

Json LlamaWriter::whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>&,
                        const Usage& usage, const Json& kv) {
  const WholeAnswer& a = answers.front();
  const std::string text = a.reasoning + a.text;
  Json out = last({a.finish, a.stop, text.find('\n') != std::string::npos}, usage, kv);
  out["content"] = text;
  if (asked_.return_token_ids) out["tokens"] = a.token_ids;
  if (asked_.logprobs) out["completion_probabilities"] = probabilities(a.tokens);
  return out;
}

}  // namespace quire::llama
