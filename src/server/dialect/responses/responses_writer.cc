#include "server/dialect/responses/responses_writer.h"

#include <fmt/core.h>

#include "net/http.h"
#include "server/access_log.h"
#include "server/dialect/openai/openai_writer.h"
#include "server/dialect/responses/items.h"
#include "server/ids.h"

namespace quire::responses {
namespace {

Json usage_json(const Usage& u) {
  return {
      {"input_tokens", u.prompt},
      {"input_tokens_details", {{"cached_tokens", u.cached}, {"cache_write_tokens", u.written}}},
      {"output_tokens", u.completion},
      {"output_tokens_details", {{"reasoning_tokens", u.reasoning}}},
      {"total_tokens", u.prompt + u.completion}};
}

std::int64_t seconds_now() { return unix_now_ns() / 1'000'000'000; }

}  // namespace

ResponsesWriter::ResponsesWriter(const GenerationRequest& asked, AnswerHead head,
                                 const Tokenizer& tokenizer)
    : asked_(asked),
      head_(std::move(head)),
      id_(std::string(kResponsePrefix) + head_.id),
      tokenizer_(tokenizer),
      turn_(dynamic_cast<Turn&>(*asked_.notes)) {}

std::string_view ResponsesWriter::event_of(Kind kind) {
  return kind == Kind::call        ? "response.function_call_arguments"
         : kind == Kind::reasoning ? "response.reasoning_text"
                                   : "response.output_text";
}

std::vector<HttpHeader> ResponsesWriter::headers(Nanoseconds took) const {
  return {{"openai-processing-ms", std::to_string(took / 1'000'000)}};
}

std::string ResponsesWriter::event(std::string_view type, Json fields) {
  Json all{{"type", type}, {"sequence_number", sequence_++}};
  all.update(fields);
  return sse(dump(all), type);
}

Json ResponsesWriter::response(std::string_view status) const {
  Json r{{"id", id_},
         {"object", "response"},
         {"created_at", head_.created},
         {"completed_at", nullptr},
         {"status", status},
         {"error", nullptr},
         {"incomplete_details", nullptr},
         {"model", head_.model},
         {"output", output_},
         {"usage", nullptr}};
  r.update(turn_.echo);
  return r;
}

std::string ResponsesWriter::begin(const Usage&) {
  const Json so_far = response("in_progress");
  std::string out = event("response.created", {{"response", so_far}});
  out += event("response.in_progress", {{"response", so_far}});
  return out;
}

Json ResponsesWriter::text_part() const {
  if (item_.kind == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", item_.text}};
  return {{"type", "output_text"},
          {"text", item_.text},
          {"annotations", Json::array()},
          {"logprobs", item_.logprobs}};
}

Json ResponsesWriter::item_json(std::string_view status) const {
  if (item_.kind == Kind::call)
    return {{"id", item_.id},     {"type", "function_call"},  {"status", status},
            {"name", item_.name}, {"call_id", item_.call_id}, {"arguments", item_.text}};
  Json content = Json::array();
  if (status != "in_progress") content.push_back(text_part());
  if (item_.kind == Kind::reasoning)
    return {{"id", item_.id},
            {"type", "reasoning"},
            {"summary", Json::array()},
            {"content", std::move(content)},
            {"status", status}};
  return {{"id", item_.id},
          {"type", "message"},
          {"role", "assistant"},
          {"status", status},
          {"content", std::move(content)}};
}

std::string ResponsesWriter::open(Kind kind, std::string name) {
  std::string out = close(true);
  const char* const prefix = kind == Kind::call ? "fc" : kind == Kind::message ? "msg" : "rs";
  item_ = {.kind = kind,
           .id = item_id(prefix, head_.id, turn_.item_count + output_.size()),
           .call_id = kind == Kind::call ? "call_" + random_hex(24) : "",
           .name = std::move(name)};
  out += event("response.output_item.added",
               {{"output_index", output_.size()}, {"item", item_json("in_progress")}});
  if (kind != Kind::call)
    out += event("response.content_part.added", {{"item_id", item_.id},
                                                 {"output_index", output_.size()},
                                                 {"content_index", 0},
                                                 {"part", text_part()}});
  return out;
}

// The one event that comes for every token.
std::string ResponsesWriter::add(std::string_view text, const Json& logprobs) {
  item_.text += text;
  const std::string type = std::string(event_of(item_.kind)) + ".delta";
  std::string data = fmt::format(
      R"({{"type":"{}","sequence_number":{},"item_id":"{}","output_index":{},"delta":{})", type,
      sequence_++, item_.id, output_.size(), dump(Json(text)));
  if (item_.kind != Kind::call) data += R"(,"content_index":0)";
  if (item_.kind == Kind::message) {
    data += R"(,"logprobs":)" + dump(logprobs);
    for (const Json& l : logprobs) item_.logprobs.push_back(l);
  }
  return sse(data + "}", type);
}

std::string ResponsesWriter::close(bool whole) {
  if (item_.kind == Kind::none) return {};
  Json done{{"item_id", item_.id}, {"output_index", output_.size()}};
  Json part = done;
  if (item_.kind == Kind::call) {
    done.update({{"name", item_.name}, {"arguments", item_.text}});
  } else {
    done.update({{"content_index", 0}, {"text", item_.text}});
    part.update({{"content_index", 0}, {"part", text_part()}});
  }
  if (item_.kind == Kind::message) done["logprobs"] = item_.logprobs;
  std::string out = event(std::string(event_of(item_.kind)) + ".done", std::move(done));
  if (item_.kind != Kind::call) out += event("response.content_part.done", std::move(part));
  Json item = item_json(whole ? "completed" : "incomplete");
  out += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(std::move(item));
  item_ = {};
  return out;
}

std::string ResponsesWriter::piece(const AnswerPiece& piece, const std::vector<PromptInfo>&,
                                   const Usage&) {
  if (turn_.prewarm) return {};
  std::string out;
  Json logprobs = Json::array();
  if (asked_.logprobs && !piece.tokens.empty())
    logprobs = openai::token_logprobs(piece.tokens, tokenizer_, asked_.skip_special);
  if (!piece.reasoning.empty()) {
    if (item_.kind != Kind::reasoning) out += open(Kind::reasoning);
    out += add(piece.reasoning, nullptr);
    logprobs = Json::array();  // they are of what is thought
  }
  if (!piece.text.empty() || (!logprobs.empty() && piece.tools.empty())) {
    if (item_.kind != Kind::message) out += open(Kind::message);
    out += add(piece.text, logprobs);
  }
  for (const ToolPiece& t : piece.tools)
    out += t.kind == ToolPiece::Kind::call ? open(Kind::call, t.text) : add(t.text, nullptr);
  if (!piece.finish) return out;
  cut_ = *piece.finish == FinishReason::length;
  const bool silent = item_.kind == Kind::none && output_.empty();
  const bool only_thought = item_.kind == Kind::reasoning && !cut_;
  if (silent || only_thought) out += open(Kind::message);
  return out + close(!cut_);
}

Json ResponsesWriter::diagnostics() const {
  CacheDiagnosis d = why_;
  const bool text_changed = d.change == CacheChange::system || d.change == CacheChange::messages;
  if (asked_.compare_to.empty())
    d.change = CacheChange::unknown_request;
  else if (d.change == CacheChange::unknown_request)
    d.change = CacheChange::unavailable;  // it is stored, but its prompt is no longer remembered
  else if (text_changed && asked_.dropped > 0)
    d.change = CacheChange::compacted;
  return openai_diagnostics(d);
}

Json ResponsesWriter::finished(const Usage& usage, const Json& kv) {
  Json r = response(cut_ ? "incomplete" : "completed");
  r["completed_at"] = cut_ ? Json() : Json(seconds_now());
  if (cut_) r["incomplete_details"] = {{"reason", "max_output_tokens"}};
  r["usage"] = usage_json(usage);
  if (turn_.compares) r["prompt_cache_diagnostics"] = diagnostics();
  if (!kv.is_null()) r["kv"] = kv;
  if (turn_.store) {
    const std::string json = fmt::format(R"({{"items":{},"response":{}}})", turn_.items, dump(r));
    r["store"] = turn_.store->put(turn_.tenant, id_, {.json = json});
  }
  return r;
}

std::string ResponsesWriter::end(const Usage& usage, const Json& kv) {
  const Json r = finished(usage, kv);
  return event(cut_ ? "response.incomplete" : "response.completed", {{"response", r}});
}

std::string ResponsesWriter::failure(const ApiError& error) {
  return event("error", {{"code", error.code.empty() ? "server_error" : error.code},
                         {"message", error.message},
                         {"param", error.param.empty() ? Json() : Json(error.param)}});
}

Json ResponsesWriter::whole(const std::vector<WholeAnswer>& answers,
                            const std::vector<PromptInfo>& prompts, const Usage& usage,
                            const Json& kv) {
  const WholeAnswer& a = answers.front();
  AnswerPiece all{.reasoning = a.reasoning, .text = a.text, .tokens = a.tokens, .finish = a.finish};
  for (std::uint32_t i = 0; i < a.calls.size(); ++i) {
    all.tools.push_back({ToolPiece::Kind::call, i, a.calls[i].name});
    all.tools.push_back({ToolPiece::Kind::arguments, i, a.calls[i].arguments});
  }
  piece(all, prompts, usage);
  return finished(usage, kv);
}

}  // namespace quire::responses
