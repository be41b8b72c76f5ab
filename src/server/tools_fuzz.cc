// A text read whole and in two halves gives the same calls; nothing but tags and white space around
// calls is lost.
#include "server/tools.h"

#include <string>

#include "base/check.h"

namespace {

std::string read(std::string_view text, std::size_t cut) {
  quire::ToolCallReader reader;
  std::string content, calls;
  const auto take = [&](const std::vector<quire::ToolPiece>& pieces) {
    for (const quire::ToolPiece& p : pieces) {
      CHECK(p.kind == quire::ToolPiece::Kind::content || p.index < reader.calls());
      if (p.kind == quire::ToolPiece::Kind::content)
        content += p.text;
      else
        calls += (p.kind == quire::ToolPiece::Kind::call ? "|" : "") + p.text;
    }
  };
  take(reader.add(text.substr(0, cut)));
  take(reader.add(text.substr(cut)));
  take(reader.finish());
  if (reader.calls() == 0 && text.find_first_not_of(" \t\r\n") != text.npos) CHECK(content == text);
  return content + "\n#" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  CHECK(read(text, text.size()) == read(text, data[0] % (text.size() + 1)));
  return 0;
}
