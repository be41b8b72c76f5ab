#include "server/dialect/gemini/gemini_writer.h"

#include <cmath>

#include "net/http.h"
#include "server/embedding.h"
#include "server/ids.h"

namespace quire::gemini {
namespace {

// As google.rpc.Code names them.
std::string_view status_name(int status) {
  switch (status) {
    case 401:
      return "UNAUTHENTICATED";
    case 403:
      return "PERMISSION_DENIED";
    case 404:
      return "NOT_FOUND";
    case 409:
      return "ABORTED";
    case 429:
      return "RESOURCE_EXHAUSTED";
    case 499:
      return "CANCELLED";
    case 500:
      return "INTERNAL";
    case 501:
      return "UNIMPLEMENTED";
    case 503:
      return "UNAVAILABLE";
    case 504:
      return "DEADLINE_EXCEEDED";
  }
  return "INVALID_ARGUMENT";
}

double finite_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

}  // namespace

Json token_count(std::string_view modality, std::uint64_t tokens) {
  return Json::array({{{"modality", modality}, {"tokenCount", tokens}}});
}

Json gemini_usage(const Usage& u) {
  Json out{{"promptTokenCount", u.prompt},
           {"cachedContentTokenCount", u.cached},
           {"candidatesTokenCount", u.completion - u.reasoning},
           {"totalTokenCount", u.prompt + u.completion},
           {"promptTokensDetails", token_count("TEXT", u.prompt)},
           {"candidatesTokensDetails", token_count("TEXT", u.completion - u.reasoning)}};
  if (u.cached > 0) out["cacheTokensDetails"] = token_count("TEXT", u.cached);
  if (u.reasoning > 0) out["thoughtsTokenCount"] = u.reasoning;
  return out;
}

int gemini_status(const ApiError& error) { return error.status == 408 ? 504 : error.status; }

Json gemini_error(const ApiError& error) {
  const int status = gemini_status(error);
  return {{"error",
           {{"code", status},
            {"message", error.message},
            {"status", status_name(status)},
            {"details", Json::array()}}}};
}

GeminiWriter::GeminiWriter(const GenerationRequest& asked, AnswerHead head,
                           const Tokenizer& tokenizer)
    : head_(std::move(head)),
      id_(std::string(kGeminiIdPrefix) + head_.id),
      choices_(asked.n),
      top_logprobs_(asked.top_logprobs),
      array_(asked.extras.value("array", false)),
      thoughts_(asked.extras.value("thoughts", false)),
      logprobs_(asked.logprobs),
      tokenizer_(tokenizer),
      states_(asked.n) {}

HttpResponse GeminiWriter::stream_head() const {
  if (!array_) return sse_head({});
  return {.headers = {{"Content-Type", "application/json; charset=utf-8"},
                      {"Cache-Control", "no-cache"},
                      {"X-Accel-Buffering", "no"}}};
}

Json GeminiWriter::response(Json candidates, const Usage& usage, const Json& kv) const {
  Json out{{"candidates", std::move(candidates)},
           {"usageMetadata", gemini_usage(usage)},
           {"modelVersion", head_.model},
           {"responseId", id_}};
  if (!kv.is_null()) out["kv"] = kv;
  return out;
}

std::string GeminiWriter::element(const Json& response) {
  const bool first = !std::exchange(begun_, true);
  if (!array_) return sse(dump(response));
  return (first ? "[" : ",\n") + dump(response);
}

Json GeminiWriter::candidate(std::uint32_t index, Json parts,
                             const std::optional<FinishReason>& finish, bool malformed) const {
  // An empty text, so that a client that joins texts finds one.
  if (parts.empty()) parts.push_back({{"text", ""}});
  Json out{{"index", index}, {"content", {{"role", "model"}, {"parts", std::move(parts)}}}};
  if (finish)
    out["finishReason"] = *finish == FinishReason::length ? "MAX_TOKENS"
                          : malformed                     ? "MALFORMED_FUNCTION_CALL"
                                                          : "STOP";
  return out;
}

void GeminiWriter::add_calls(const std::vector<WholeAnswer::Call>& calls, Json& parts,
                             bool& malformed) const {
  for (const WholeAnswer::Call& call : calls) {
    auto arguments = arguments_of(call);
    malformed |= !arguments;
    if (arguments)
      parts.push_back({{"functionCall",
                        {{"id", "call_" + random_hex(24)},
                         {"name", call.name},
                         {"args", std::move(*arguments)}}}});
  }
}

Json GeminiWriter::token_entry(TokenId token, float logprob) const {
  return {{"token", std::string(tokenizer_.piece(token))},
          {"tokenId", token},
          {"logProbability", finite_logprob(logprob)}};
}

Json GeminiWriter::logprobs(const std::vector<Choice>& tokens) const {
  Json chosen = Json::array(), top = Json::array();
  for (const Choice& c : tokens) {
    chosen.push_back(token_entry(c.token, c.logprob));
    Json candidates = Json::array();
    for (const TokenLogprob& t : c.alternatives)
      candidates.push_back(token_entry(t.token, t.logprob));
    top.push_back({{"candidates", std::move(candidates)}});
  }
  Json out{{"chosenCandidates", std::move(chosen)}};
  if (top_logprobs_ > 0) out["topCandidates"] = std::move(top);
  return out;
}

std::string GeminiWriter::piece(const AnswerPiece& piece, const std::vector<PromptInfo>&,
                                const Usage& so_far) {
  ChoiceState& state = states_[piece.index];
  Json parts = Json::array();
  if (thoughts_ && !piece.reasoning.empty())
    parts.push_back({{"text", piece.reasoning}, {"thought", true}});
  if (!piece.text.empty()) parts.push_back({{"text", piece.text}});
  add_calls(state.calls.add(piece.tools, piece.finish.has_value()), parts, state.malformed);
  const bool tokens = logprobs_ && !piece.tokens.empty();
  if (parts.empty() && !tokens && !piece.finish) return {};  // a call that is not whole yet

  Json next = candidate(piece.index, std::move(parts), piece.finish, state.malformed);
  if (tokens) {
    next["logprobsResult"] = logprobs(piece.tokens);
    for (const Choice& c : piece.tokens) state.logprobs += finite_logprob(c.logprob);
    state.tokens += piece.tokens.size();
  }
  if (piece.finish && state.tokens > 0)
    next["avgLogprobs"] = state.logprobs / static_cast<double>(state.tokens);
  Json candidates = Json::array({std::move(next)});
  if (piece.finish && ++finished_ == choices_) {
    held_ = std::move(candidates);
    return {};
  }
  return element(response(std::move(candidates), so_far, nullptr));
}

std::string GeminiWriter::end(const Usage& usage, const Json& kv) {
  std::string out = element(response(std::exchange(held_, Json::array()), usage, kv));
  if (array_) out += "]\n";
  return out;
}

std::string GeminiWriter::failure(const ApiError& error) {
  std::string out = element(gemini_error(error));
  if (array_) out += "]\n";
  return out;
}

Json GeminiWriter::whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>&,
                         const Usage& usage, const Json& kv) {
  Json candidates = Json::array();
  for (const WholeAnswer& a : answers) {
    Json parts = Json::array();
    bool malformed = false;
    if (thoughts_ && !a.reasoning.empty())
      parts.push_back({{"text", a.reasoning}, {"thought", true}});
    if (!a.text.empty()) parts.push_back({{"text", a.text}});
    add_calls(a.calls, parts, malformed);
    Json next = candidate(a.index, std::move(parts), a.finish, malformed);
    if (logprobs_) {
      next["avgLogprobs"] = a.mean_logprob;
      next["logprobsResult"] = logprobs(a.tokens);
    }
    candidates.push_back(std::move(next));
  }
  return response(std::move(candidates), usage, kv);
}

Json GeminiEmbedWriter::whole(const std::vector<WholeAnswer>&,
                              const std::vector<PromptInfo>& prompts, const Usage& usage,
                              const Json& kv) {
  Json all = Json::array();
  for (const PromptInfo& p : prompts)
    all.push_back({{"values", shape_embedding(p.pooled, asked_.embedding)}});
  Json out = Json::object();
  if (asked_.extras.contains("batch"))
    out["embeddings"] = std::move(all);
  else
    out["embedding"] = std::move(all.front());
  out["usageMetadata"] = {{"promptTokenCount", usage.prompt}};
  if (!kv.is_null()) out["kv"] = kv;
  return out;
}

}  // namespace quire::gemini
