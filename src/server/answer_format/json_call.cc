#include "server/answer_format/json_call.h"

#include "base/json.h"
#include "server/answer_format/call_reader.h"

namespace quire {
namespace {

std::string unquoted(const std::string& inside) {
  const auto parsed = parse_json('"' + inside + '"');
  return parsed.ok() && parsed.value().is_string() ? parsed.value().get<std::string>() : inside;
}

bool is_blank(char c) { return kBlanks.find(c) != kBlanks.npos; }

}  // namespace

JsonWalk JsonCall::add(char c) {
  if (in_string_) {
    if (value_ == Value::arguments) arguments_ += c;
    if (!escaped_ && c == '"') {
      in_string_ = false;
      string_ended();
      return JsonWalk::more;
    }
    escaped_ = !escaped_ && c == '\\';
    if (depth_ == 1 && value_ != Value::arguments) string_ += c;
    return JsonWalk::more;
  }
  if (depth_ == 0) {
    if (c == '{') ++depth_;
    return c == '{' || is_blank(c) ? JsonWalk::more : JsonWalk::bad;
  }
  if (value_ == Value::scalar && c != ',' && c != '}') {
    if (!is_blank(c)) arguments_ += c;
    return JsonWalk::more;
  }
  if (depth_ == 1) return at_top(c);
  if (value_ == Value::arguments) arguments_ += c;
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    if (--depth_ == 1) value_ended();
  }
  return JsonWalk::more;
}

JsonWalk JsonCall::at_top(char c) {
  const bool arguments =
      value_next_ && !has_arguments_ && (key_ == "arguments" || key_ == "parameters");
  switch (c) {
    case '"':
      in_string_ = true;
      string_.clear();
      if (arguments) begin_arguments(Value::text);
      return JsonWalk::more;
    case ':':
      value_next_ = true;
      return JsonWalk::more;
    case ',':
      value_ended();
      return JsonWalk::more;
    case '}':
      depth_ = 0;
      return JsonWalk::done;
    case '{':
    case '[':
      if (!value_next_) return JsonWalk::bad;
      ++depth_;
      if (arguments) {
        begin_arguments(Value::arguments);
        arguments_ += c;
      }
      return JsonWalk::more;
    default:
      if (is_blank(c)) return JsonWalk::more;
      if (!value_next_ || c == ']') return JsonWalk::bad;
      if (arguments) {
        begin_arguments(Value::scalar);
        arguments_ += c;
      }
      return JsonWalk::more;
  }
}

void JsonCall::begin_arguments(Value value) {
  value_ = value;
  has_arguments_ = true;
}

void JsonCall::string_ended() {
  if (depth_ != 1 || value_ == Value::arguments) return;
  if (value_ == Value::text) {
    arguments_ = unquoted(string_);
    value_ended();
  } else if (!value_next_) {
    key_ = unquoted(string_);
  } else if (!named_ && (key_ == "name" || key_ == "tool_name")) {
    name_ = unquoted(string_);
    named_ = true;
  }
}

void JsonCall::value_ended() {
  value_ = Value::other;
  value_next_ = false;
  key_.clear();
}

JsonWalk JsonObject::add(char c) {
  if (in_string_) {
    if (!escaped_ && c == '"') in_string_ = false;
    escaped_ = !escaped_ && c == '\\';
  } else if (depth_ == 0 && c != '{') {
    return JsonWalk::bad;
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && --depth_ == 0) {
    return JsonWalk::done;
  }
  return JsonWalk::more;
}

}  // namespace quire
