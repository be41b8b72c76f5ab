#include "server/tools.h"

#include <algorithm>

#include "server/api_error.h"

namespace quire {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// How many of the text's last bytes could begin `tag`.
std::size_t beginning_of(std::string_view tag, std::string_view text) {
  for (std::size_t n = std::min(tag.size() - 1, text.size()); n > 0; --n)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}

std::string calls_as_text(const Json& calls) {
  std::string text;
  for (const Json& call : calls) {
    if (!text.empty()) text += '\n';
    text += std::string(kToolOpen) + "\n" + dump(call["function"]) + "\n" + std::string(kToolClose);
  }
  return text;
}

}  // namespace

Json messages_with_tools(const Json& messages, const Json& tools) {
  Json out = Json::array();
  std::size_t first = 0;
  if (!tools.is_null()) {
    std::string about = "You may call functions. Each line describes one:\n";
    for (const Json& tool : tools) about += dump(tool["function"]) + "\n";
    about +=
        "To call a function, write its name and arguments as JSON between these tags, once per "
        "call:\n<tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n</tool_call>";
    if (!messages.empty() && messages.front()["role"] == "system") {
      about += "\n\n" + messages.front()["content"].get<std::string>();
      first = 1;
    }
    out.push_back({{"role", "system"}, {"content", about}});
  }
  for (std::size_t i = first; i < messages.size(); ++i) {
    Json m = messages[i];
    if (m["role"] == "tool") {
      m = {{"role", "user"},
           {"content",
            "<tool_response>\n" + m["content"].get<std::string>() + "\n</tool_response>"}};
    } else if (m.contains("tool_calls")) {
      std::string text = m["content"].get<std::string>();
      if (!text.empty()) text += '\n';
      m = {{"role", m["role"]}, {"content", text + calls_as_text(m["tool_calls"])}};
    }
    out.push_back(std::move(m));
  }
  return out;
}

std::vector<ToolPiece> ToolCallReader::add(std::string_view text) {
  input_ += text;
  read(false);
  return std::exchange(out_, {});
}

std::vector<ToolPiece> ToolCallReader::finish() {
  read(true);
  return std::exchange(out_, {});
}

void ToolCallReader::read(bool last) {
  for (bool more = true; more;) switch (state_) {
      case State::content:
        more = read_content(last);
        break;
      case State::call:
        more = read_call(last);
        break;
      case State::after:
        more = read_after(last);
        break;
    }
}

void ToolCallReader::say(std::string_view text) {
  if (text.empty()) return;
  spoke_ = true;
  if (!out_.empty() && out_.back().kind == ToolPiece::Kind::content)
    out_.back().text += text;
  else
    out_.push_back({ToolPiece::Kind::content, 0, std::string(text)});
}

bool ToolCallReader::read_content(bool last) {
  const std::size_t start = input_.find_first_not_of(kBlanks);
  if (!spoke_ && start == input_.npos) {  // white space may be all there is before a call
    if (last && calls_ == 0) say(input_);
    if (last || calls_ > 0) input_.clear();
    return false;
  }
  if (!spoke_ && calls_ > 0 && start > 0) {  // or after one
    input_.erase(0, start);
    return true;
  }
  // A bare object counts as a call only where nothing else was said.
  if (!spoke_ && calls_ == 0 && input_[start] == '{') {
    open_call(start, 0, true);
    return true;
  }
  if (const std::size_t tag = input_.find(kToolOpen); tag != input_.npos) {
    open_call(tag, kToolOpen.size(), false);
    return true;
  }
  const std::size_t keep = last ? 0 : beginning_of(kToolOpen, input_);
  if (!spoke_ && start >= input_.size() - keep) return false;
  say(std::string_view(input_).substr(0, input_.size() - keep));
  input_.erase(0, input_.size() - keep);
  return false;
}

void ToolCallReader::open_call(std::size_t lead, std::size_t skip, bool bare) {
  lead_ = input_.substr(0, lead);
  if (spoke_ || lead_.find_first_not_of(kBlanks) != lead_.npos) say(std::exchange(lead_, {}));
  input_.erase(0, lead + skip);
  state_ = State::call;
  bare_ = bare;
  for (std::string* s : {&raw_, &string_, &key_, &name_, &early_arguments_}) s->clear();
  depth_ = 0;
  in_string_ = escaped_ = value_next_ = in_arguments_ = begun_ = has_arguments_ = false;
}

bool ToolCallReader::read_call(bool last) {
  for (std::size_t i = 0; i < input_.size(); ++i) {
    const char c = input_[i];
    const bool no_object = depth_ == 0 && c != '{' && kBlanks.find(c) == kBlanks.npos;
    if (no_object)
      raw_ += c;
    else
      call_char(c);
    const bool closed = depth_ == 0 && c == '}';
    if (!no_object && !closed) continue;
    input_.erase(0, i + 1);
    if (no_object || !begun_) {
      give_up();
    } else {
      if (!has_arguments_) out_.push_back({ToolPiece::Kind::arguments, calls_ - 1, "{}"});
      state_ = State::after;
      spoke_ = false;
    }
    return true;
  }
  input_.clear();
  if (last && !begun_) give_up();
  return false;
}

bool ToolCallReader::read_after(bool last) {
  input_.erase(0, std::min(input_.find_first_not_of(kBlanks), input_.size()));
  if (input_.size() < kToolClose.size() && kToolClose.starts_with(input_) && !last) return false;
  if (input_.starts_with(kToolClose)) input_.erase(0, kToolClose.size());
  state_ = State::content;
  return true;
}

// Walks the object {"name": string, "arguments": value} and passes the value's bytes on as they
// are.
void ToolCallReader::call_char(char c) {
  raw_ += c;
  const bool was_in_arguments = in_arguments_;
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
      string_ += c;
    } else if (c == '\\') {
      escaped_ = true;
      string_ += c;
    } else if (c == '"') {
      in_string_ = false;
      string_ended();
    } else {
      string_ += c;
    }
  } else if (c == '"') {
    in_string_ = true;
    string_.clear();
    if (depth_ == 1 && value_next_ && (key_ == "arguments" || key_ == "parameters"))
      in_arguments_ = true;
  } else if (c == ':' && depth_ == 1) {
    value_next_ = true;
    return;
  } else if (c == '{' || c == '[') {
    if (depth_ == 1 && value_next_ && (key_ == "arguments" || key_ == "parameters"))
      in_arguments_ = true;
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
    if (depth_ == 0) in_arguments_ = false;  // a number, true or null ended with the object
  } else if (c == ',' && depth_ == 1) {
    value_ended();
    return;
  }
  const bool plain_value = depth_ == 1 && value_next_ && !in_string_ && !was_in_arguments &&
                           kBlanks.find(c) == kBlanks.npos && c != '"' && c != '}' && c != ']';
  if (plain_value && (key_ == "arguments" || key_ == "parameters")) in_arguments_ = true;
  if ((in_arguments_ || was_in_arguments) && depth_ > 0) {
    has_arguments_ = true;
    if (begun_) {
      if (!out_.empty() && out_.back().kind == ToolPiece::Kind::arguments)
        out_.back().text += c;
      else
        out_.push_back({ToolPiece::Kind::arguments, calls_ - 1, std::string(1, c)});
    } else {
      early_arguments_ += c;
    }
  }
  // The value of "arguments" is whole: what follows is not part of it.
  if (in_arguments_ && depth_ == 1 && !in_string_ && (c == '}' || c == ']' || c == '"'))
    value_ended();
}

void ToolCallReader::string_ended() {
  if (depth_ != 1) return;
  if (!value_next_) {
    key_ = string_;
  } else if (key_ == "name" && !begun_) {
    const auto parsed = parse_json('"' + string_ + '"');
    name_ = parsed.ok() ? parsed.value().get<std::string>() : string_;
    begin_call();
  }
}

void ToolCallReader::value_ended() {
  in_arguments_ = value_next_ = false;
  key_.clear();
}

void ToolCallReader::begin_call() {
  begun_ = true;
  out_.push_back({ToolPiece::Kind::call, calls_++, name_});
  if (!early_arguments_.empty())
    out_.push_back({ToolPiece::Kind::arguments, calls_ - 1, std::exchange(early_arguments_, {})});
}

void ToolCallReader::give_up() {
  say(lead_ + (bare_ ? "" : std::string(kToolOpen)) + raw_);
  state_ = State::content;
}

}  // namespace quire
