#include "server/answer_format/marked_calls.h"

#include <algorithm>

#include "server/api_error.h"

namespace quire {
namespace {

class MarkedCalls final : public CallReader {
 public:
  explicit MarkedCalls(const CallSyntax& syntax) : syntax_(syntax) {}

 private:
  enum class State : std::uint8_t { content, item, object, arguments, after, rest };

  void read(bool last) override;
  // Each takes what it can of the input. False: it needs more.
  bool find_calls(bool last);
  bool read_item(bool last);
  bool read_object(bool last);
  bool read_arguments(bool last);
  bool read_after(bool last);
  bool read_rest(bool last);

  void begin_object();
  void next_item() {
    raw_ = input_[0];
    state_ = State::item;
  }
  void end_call(bool has_arguments);
  bool give_up();  // it was no call: it is text

  const CallSyntax syntax_;
  State state_ = State::content;
  std::string raw_;  // what was taken since the mark or the last call
  bool in_list_ = false, told_ = false;
  JsonCall call_;
  JsonObject object_;
};

void MarkedCalls::read(bool last) {
  for (bool more = true; more;) switch (state_) {
      case State::content:
        more = find_calls(last);
        break;
      case State::item:
        more = read_item(last);
        break;
      case State::object:
        more = read_object(last);
        break;
      case State::arguments:
        more = read_arguments(last);
        break;
      case State::after:
        more = read_after(last);
        break;
      case State::rest:
        more = read_rest(last);
        break;
    }
}

bool MarkedCalls::find_calls(bool last) {
  in_list_ = false;
  raw_.clear();
  if (syntax_.bare && !spoke_ && calls() == 0) {
    const std::size_t start = input_.find_first_not_of(kBlanks);
    if (start != input_.npos && input_[start] == '{') {
      lead_.append(input_, 0, start);
      input_.erase(0, start);
      begin_object();
      return true;
    }
  }
  const int mark = read_content(syntax_.begin, last);
  if (mark < 0) return false;
  raw_ = syntax_.begin[static_cast<std::size_t>(mark)];
  state_ = State::item;
  return true;
}

bool MarkedCalls::read_item(bool last) {
  const std::size_t start = std::min(input_.find_first_not_of(kBlanks), input_.size());
  raw_.append(input_, 0, start);
  input_.erase(0, start);
  if (input_.empty()) return last && give_up();
  if (input_[0] == '[' && !in_list_) {
    in_list_ = true;
    raw_ += '[';
    input_.erase(0, 1);
    return true;
  }
  if (input_[0] == '{') {
    begin_object();
    return true;
  }
  if (syntax_.rest != nullptr) {
    state_ = State::rest;
    return true;
  }
  if (syntax_.head == nullptr) return give_up();
  const CallHead head = syntax_.head(std::string_view(input_).substr(0, kHeadBytesMax));
  if (head.found == CallHead::Found::yes && head.bytes < input_.size()) {
    if (input_[head.bytes] != '{') return give_up();
    begin_call(head.name);
    input_.erase(0, head.bytes);
    raw_.clear();
    object_ = {};
    state_ = State::arguments;
    return true;
  }
  if (head.found != CallHead::Found::no && input_.size() < kHeadBytesMax && !last) return false;
  return give_up();
}

void MarkedCalls::begin_object() {
  call_ = {};
  told_ = false;
  state_ = State::object;
}

bool MarkedCalls::read_object(bool last) {
  for (std::size_t i = 0; i < input_.size(); ++i) {
    const JsonWalk walk = call_.add(input_[i]);
    if (!told_) raw_ += input_[i];
    if (!told_ && call_.named()) {
      begin_call(call_.name());
      told_ = true;
      raw_.clear();
    }
    if (told_) argue(call_.take_arguments());
    if (walk == JsonWalk::more) continue;
    input_.erase(0, i + 1);
    if (!told_) return give_up();
    end_call(call_.has_arguments());
    return true;
  }
  input_.clear();
  if (!last) return false;
  if (!told_) return give_up();
  if (!call_.has_arguments()) argue("{}");
  told_ = false;
  state_ = State::content;
  return false;
}

bool MarkedCalls::read_arguments(bool last) {
  for (std::size_t i = 0; i < input_.size(); ++i) {
    if (object_.add(input_[i]) == JsonWalk::more) continue;
    argue(std::string_view(input_).substr(0, i + 1));
    input_.erase(0, i + 1);
    end_call(true);
    return true;
  }
  argue(input_);
  input_.clear();
  return false;
}

void MarkedCalls::end_call(bool has_arguments) {
  if (!has_arguments) argue("{}");
  state_ = State::after;
}

bool MarkedCalls::read_after(bool last) {
  input_.erase(0, std::min(input_.find_first_not_of(kBlanks), input_.size()));
  if (input_.empty()) return false;
  if (in_list_ && (input_[0] == ',' || input_[0] == ']')) {
    if (input_[0] == ']')
      in_list_ = false;
    else
      next_item();
    input_.erase(0, 1);
    return true;
  }
  if (!in_list_ && input_[0] == ';' && syntax_.bare) {  // Llama parts its calls so
    next_item();
    input_.erase(0, 1);
    return true;
  }
  const int mark = mark_at(syntax_.close, input_);
  if (mark == kMayBegin && !last) return false;
  if (mark >= 0)
    input_.erase(0, syntax_.close[static_cast<std::size_t>(mark)].size());
  else
    state_ = State::content;
  return true;
}

bool MarkedCalls::read_rest(bool last) {
  if (!last) return false;
  std::vector<ReadCall> calls;
  if (!syntax_.rest(input_, calls)) return give_up();
  for (const ReadCall& c : calls) {
    begin_call(c.name);
    argue(dump(c.arguments));
  }
  input_.clear();
  state_ = State::content;
  return true;
}

bool MarkedCalls::give_up() {
  state_ = State::content;
  say(std::exchange(lead_, {}) + std::exchange(raw_, {}));
  return true;
}

}  // namespace

std::unique_ptr<CallReader> read_marked_calls(const CallSyntax& syntax) {
  return std::make_unique<MarkedCalls>(syntax);
}

}  // namespace quire
