// A text read whole and in two halves gives the same reasoning, content and calls, in every format. Where
// there is no call, all of it is content.
#include <string>

#include "base/check.h"
#include "server/answer_format/answer_reader.h"

namespace {

using quire::ToolPiece;

std::string read(const quire::AnswerFormat& format, std::string_view text, std::size_t cut) {
  static const quire::Json tools = quire::Json::array(
      {{{"type", "function"},
        {"function",
         {{"name", "f"}, {"parameters", {{"properties", {{"x", {{"type", "string"}}}}}}}}}}});
  quire::AnswerReader reader(format, {tools});
  std::string content, reasoning, calls;
  const auto take = [&](const std::vector<ToolPiece>& pieces) {
    for (const ToolPiece& p : pieces) {
      const bool call = p.kind == ToolPiece::Kind::call;
      if (p.kind == ToolPiece::Kind::content) {
        content += p.text;
      } else if (p.kind == ToolPiece::Kind::reasoning) {
        reasoning += p.text;
      } else {
        CHECK(p.index < reader.calls());
        calls += (call ? "|" : "") + p.text;
      }
    }
  };
  take(reader.add(text.substr(0, cut)));
  take(reader.add(text.substr(cut)));
  take(reader.finish());
  if (format.reasoning == nullptr && format.calls->name != "openai" && reader.calls() == 0)
    CHECK(content == text);
  return content + "\n#" + reasoning + "\n#" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto calls = quire::call_formats();
  const auto reasoning = quire::reasoning_formats();
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::size_t cut = data[0] % (text.size() + 1), which = data[1];
  const std::size_t thinks = which / calls.size() % (reasoning.size() + 1);
  const quire::AnswerFormat format{calls[which % calls.size()],
                                   thinks == 0 ? nullptr : reasoning[thinks - 1]};
  CHECK(read(format, text, text.size()) == read(format, text, cut));
  return 0;
}
