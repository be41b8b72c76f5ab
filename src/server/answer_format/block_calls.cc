#include "server/answer_format/block_calls.h"

#include <algorithm>

#include "server/api_error.h"

namespace quire {
namespace {

class BlockCalls final : public CallReader {
 public:
  BlockCalls(const BlockSyntax& syntax, const Json& tools) : syntax_(syntax), tools_(tools) {
    for (const BlockMarks& m : syntax.marks) opens_.push_back(m.open);
  }

 private:
  void read(bool last) override {
    for (bool more = true; more;) more = inside_ ? read_block(last) : find_block(last);
  }

  bool find_block(bool last) {
    if (syntax_.bare_list && !spoke_ && calls() == 0) {
      const std::size_t start = input_.find_first_not_of(kBlanks);
      if (start != input_.npos && input_[start] == '[') {
        lead_.append(input_, 0, start);
        input_.erase(0, start);
        begin({"", ""});
        return true;
      }
    }
    const int mark = read_content(opens_, last);
    if (mark >= 0) begin(syntax_.marks[static_cast<std::size_t>(mark)]);
    return mark >= 0;
  }

  void begin(BlockMarks marks) {
    inside_ = true;
    marks_ = marks;
    searched_ = 0;
  }

  bool read_block(bool last) {
    std::size_t end = input_.npos;
    if (!marks_.close.empty()) end = input_.find(marks_.close, searched_);
    if (end == input_.npos && !last) {
      searched_ = input_.size() - std::min(input_.size(), marks_.close.size());
      return false;
    }
    const bool closed = end != input_.npos;
    if (!closed) end = input_.size();
    const std::string block = input_.substr(0, end);
    input_.erase(0, end + (closed ? marks_.close.size() : 0));
    inside_ = false;
    std::vector<ReadCall> calls;
    if (syntax_.parse(block, tools_, calls) && !calls.empty()) {
      for (const ReadCall& c : calls) {
        begin_call(c.name);
        argue(dump(c.arguments));
      }
    } else {
      say(std::exchange(lead_, {}).append(marks_.open) + block);
      if (closed) say(marks_.close);
    }
    return true;
  }

  const BlockSyntax syntax_;
  const Json tools_;
  std::vector<std::string_view> opens_;
  bool inside_ = false;
  BlockMarks marks_;
  std::size_t searched_ = 0;  // no closing mark begins before it
};

}  // namespace

std::unique_ptr<CallReader> read_block_calls(const BlockSyntax& syntax, const Json& tools) {
  return std::make_unique<BlockCalls>(syntax, tools);
}

}  // namespace quire
