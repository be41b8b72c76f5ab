#include "server/answer_format/python_calls.h"

#include <cctype>
#include <string>

#include "server/answer_format/call_reader.h"

namespace quire {
namespace {

constexpr int kLiteralDepthMax = 64;

class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  bool calls(std::vector<ReadCall>& out) {
    const bool list = take('[');
    for (;;) {
      ReadCall call;
      if (!one_call(call)) return false;
      out.push_back(std::move(call));
      blanks();
      if (list && take(']')) break;
      if (at_ == text_.size()) return !list;
      if (!take(',') && !take(';') && list) return false;
      if (list && take(']')) break;
    }
    blanks();
    return at_ == text_.size();
  }

 private:
  void blanks() {
    while (at_ < text_.size() && kBlanks.find(text_[at_]) != kBlanks.npos) ++at_;
  }
  bool take(char c) {
    blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string_view word(bool dots) {
    blanks();
    const std::size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '_' || (dots && text_[at_] == '.')))
      ++at_;
    return text_.substr(start, at_ - start);
  }

  bool one_call(ReadCall& call) {
    call.name = word(true);
    if (call.name.empty() || !take('(')) return false;
    if (take(')')) return true;
    for (;;) {
      const std::string name(word(false));
      if (name.empty() || call.arguments.size() >= kArgumentsMax || !take('=') ||
          !value(call.arguments[name], 0))
        return false;
      if (take(')')) return true;
      if (!take(',')) return false;
      if (take(')')) return true;
    }
  }

  bool value(Json& out, int depth) {
    blanks();
    if (at_ == text_.size() || depth > kLiteralDepthMax) return false;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return text(out);
    if (c == '[' || c == '(') return list(out, c == '[' ? ']' : ')', depth);
    if (c == '{') return object(out, depth);
    if (c == '-' || c == '+' || std::isdigit(static_cast<unsigned char>(c)) != 0)
      return number(out);
    const std::string_view w = word(false);
    if (w == "True" || w == "true")
      out = true;
    else if (w == "False" || w == "false")
      out = false;
    else if (w == "None" || w == "null")
      out = nullptr;
    else
      return false;
    return true;
  }

  bool list(Json& out, char close, int depth) {
    ++at_;
    out = Json::array();
    while (!take(close)) {
      Json item;
      if (!value(item, depth + 1)) return false;
      out.push_back(std::move(item));
      if (take(',')) continue;
      return take(close);
    }
    return true;
  }

  bool object(Json& out, int depth) {
    ++at_;
    out = Json::object();
    while (!take('}')) {
      Json key, item;
      if (out.size() >= kArgumentsMax) return false;
      if (!value(key, depth + 1) || !key.is_string() || !take(':') || !value(item, depth + 1))
        return false;
      out[key.get<std::string>()] = std::move(item);
      if (take(',')) continue;
      return take('}');
    }
    return true;
  }

  bool number(Json& out) {
    if (text_[at_] == '+') ++at_;
    const std::size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '.' || text_[at_] == '-' || text_[at_] == '+'))
      ++at_;
    auto parsed = parse_json(text_.substr(start, at_ - start));
    if (!parsed.ok() || !parsed.value().is_number()) return false;
    out = std::move(parsed.value());
    return true;
  }

  bool text(Json& out) {
    const char quote = text_[at_++];
    std::string s;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] != '\\') {
        s += text_[at_++];
        continue;
      }
      if (++at_ == text_.size()) return false;
      const char c = text_[at_++];
      switch (c) {
        case 'n':
          s += '\n';
          break;
        case 't':
          s += '\t';
          break;
        case 'r':
          s += '\r';
          break;
        case '\\':
        case '\'':
        case '"':
          s += c;
          break;
        default:
          (s += '\\') += c;
      }
    }
    if (at_ == text_.size()) return false;
    ++at_;
    out = std::move(s);
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

bool parse_python_calls(std::string_view text, std::vector<ReadCall>& calls) {
  return PythonReader(text).calls(calls);
}

}  // namespace quire
