#include "lab/load/dialogue.h"

namespace quire::load {
namespace {

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::uint64_t count_of(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value && value->is_number_unsigned() ? value->get<std::uint64_t>() : 0;
}

void append_text(const Json& object, const char* key, std::string& to) {
  if (const Json* value = member(object, key); value && value->is_string())
    to += value->get_ref<const std::string&>();
}

}  // namespace

std::string_view api_route(Api api) {
  return api == Api::chat ? "/chat/completions" : "/completions";
}

void Dialogue::say(const Part& part) {
  if (options_->api == Api::token_ids) {
    const auto ids = make_ids(part.seed, part.tokens, options_->vocabulary);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    return;
  }
  const std::string text = part_text(part, options_->calibration);
  // Parts of one speaker are one message.
  if (!messages_.empty() && messages_.back().role == part.role)
    messages_.back().text += ' ' + text;
  else
    messages_.push_back({part.role, text});
}

std::string Dialogue::body(std::uint32_t output_tokens, bool stream) const {
  Json body{{"model", options_->model}};
  if (options_->api == Api::token_ids) {
    body["prompt"] = ids_;
  } else if (options_->api == Api::chat) {
    Json& messages = body["messages"] = Json::array();
    for (const Message& m : messages_) messages.push_back({{"role", m.role}, {"content", m.text}});
  } else {
    std::string prompt;
    for (const Message& m : messages_) prompt += (prompt.empty() ? "" : "\n") + m.text;
    body["prompt"] = prompt;
  }
  body["max_tokens"] = output_tokens;
  body["temperature"] = 0;
  if (stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  if (options_->ignore_eos) body["ignore_eos"] = true;
  body.update(options_->extra);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<Usage> read_usage(const Json& answer) {
  const Json* usage = member(answer, "usage");
  if (!usage) return std::nullopt;
  Usage u{count_of(*usage, "prompt_tokens"), count_of(*usage, "completion_tokens"), std::nullopt};
  if (const Json* details = member(*usage, "prompt_tokens_details");
      details && member(*details, "cached_tokens"))
    u.cached = count_of(*details, "cached_tokens");
  return u;
}

Chunk read_chunk(std::string_view data) {
  Chunk chunk;
  if (data == "[DONE]") return chunk;
  const auto json = parse_json(data);
  if (!json.ok()) {
    chunk.error = "a chunk is not JSON: " + json.error().message;
    return chunk;
  }
  const Json& answer = json.value();
  if (const Json* error = member(answer, "error")) chunk.error = error->dump();
  chunk.usage = read_usage(answer);
  const Json* choices = member(answer, "choices");
  if (!choices || !choices->is_array() || choices->empty()) return chunk;
  const Json& choice = choices->front();
  append_text(choice, "text", chunk.text);
  if (const Json* delta = member(choice, "delta")) {
    append_text(*delta, "reasoning_content", chunk.text);
    append_text(*delta, "content", chunk.text);
  }
  return chunk;
}

}  // namespace quire::load
