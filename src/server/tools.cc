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
  while (!text.empty()) {
    std::size_t used = 0;
    switch (state_) {
      case State::content:
        used = read_content(text);
        break;
      case State::call:
        used = read_call(text);
        break;
      case State::after:
        used = read_after(text);
        break;
    }
    text.remove_prefix(used);
  }
  return std::exchange(out_, {});
}

std::vector<ToolPiece> ToolCallReader::finish() {
  if (state_ == State::call && !begun_)
    give_up();  // not a call after all
  else if (state_ == State::content && (spoke_ || held_.find_first_not_of(kBlanks) != held_.npos))
    content(std::exchange(held_, {}));
  held_.clear();
  return std::exchange(out_, {});
}

void ToolCallReader::content(std::string_view text) {
  if (text.empty()) return;
  spoke_ = true;
  if (!out_.empty() && out_.back().kind == ToolPiece::Kind::content)
    out_.back().text += text;
  else
    out_.push_back({ToolPiece::Kind::content, 0, std::string(text)});
}

std::size_t ToolCallReader::read_content(std::string_view text) {
  const std::size_t before = held_.size();
  held_ += text;
  const std::size_t tag = held_.find(kToolOpen);
  const std::size_t start = held_.find_first_not_of(kBlanks);
  // A bare object counts as a call only where nothing else was said.
  const bool bare = !spoke_ && calls_ == 0 && start != held_.npos && held_[start] == '{';
  if (bare || tag != held_.npos) {
    const std::size_t cut = bare ? start : tag;
    const std::string_view said = std::string_view(held_).substr(0, cut);
    if (spoke_ || said.find_first_not_of(kBlanks) != said.npos) content(said);
    const std::size_t used = (bare ? cut : cut + kToolOpen.size()) - before;
    held_.clear();
    state_ = State::call;
    bare_ = bare;
    raw_.clear(), string_.clear(), key_.clear(), name_.clear(), early_arguments_.clear();
    depth_ = 0;
    in_string_ = escaped_ = value_next_ = in_arguments_ = named_ = begun_ = has_arguments_ = false;
    return used;
  }
  // White space may be all there is before a call, so it waits; so does what may open a tag.
  const std::size_t keep = start == held_.npos ? held_.size() : beginning_of(kToolOpen, held_);
  if (start != held_.npos || spoke_) {
    const std::size_t kept = spoke_ && start == held_.npos ? 0 : keep;
    content(std::string_view(held_).substr(0, held_.size() - kept));
    held_.erase(0, held_.size() - kept);
  }
  return text.size();
}

std::size_t ToolCallReader::read_call(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (depth_ == 0 && c != '{' && kBlanks.find(c) == kBlanks.npos) {  // no object: only text
      raw_ += c;
      give_up();
      return i + 1;
    }
    call_char(c);
    if (depth_ == 0 && !raw_.empty() && raw_.back() == '}') {
      if (!named_) {
        give_up();
        return i + 1;
      }
      if (!has_arguments_) out_.push_back({ToolPiece::Kind::arguments, calls_ - 1, "{}"});
      state_ = State::after;
      return i + 1;
    }
  }
  return text.size();
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
  } else if (key_ == "name" && !named_) {
    const auto parsed = parse_json('"' + string_ + '"');
    name_ = parsed.ok() ? parsed.value().get<std::string>() : string_;
    named_ = true;
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
  content(bare_ ? raw_ : std::string(kToolOpen) + raw_);
  state_ = State::content;
  raw_.clear();
}

std::size_t ToolCallReader::read_after(std::string_view text) {
  // Between calls there is the closing tag and white space; a tag may come in pieces.
  held_ += text;
  const std::size_t start = held_.find_first_not_of(kBlanks);
  if (start == held_.npos) return text.size();
  const std::string_view rest = std::string_view(held_).substr(start);
  if (kToolClose.starts_with(rest) && rest.size() < kToolClose.size()) return text.size();
  const std::size_t skip = rest.starts_with(kToolClose) ? start + kToolClose.size() : start;
  std::string left = held_.substr(skip);
  held_.clear();
  state_ = State::content;
  if (const std::size_t word = left.find_first_not_of(kBlanks); word != left.npos) {
    left.erase(0, word);
    spoke_ = false;
    std::string_view more = left;
    while (!more.empty()) {
      std::size_t used = 0;
      switch (state_) {
        case State::content:
          used = read_content(more);
          break;
        case State::call:
          used = read_call(more);
          break;
        case State::after:
          used = read_after(more);
          break;
      }
      more.remove_prefix(used);
    }
  }
  return text.size();
}

}  // namespace quire
