// tests/text/render_main.cc - renders chat templates for scripts: one JSON request per line in, one
// answer per line out.
//
//   {"template": "...", "context": {...}, "now": [2024, 7, 1]}
//   {"text": "...", "segments": [["...", false], ...]}   or   {"error": "...", "code": 0}
#include <iostream>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"

namespace quire {
namespace {

Json answer(const Json& request) {
  const auto failed = [](const Error& e) {
    return Json{{"error", e.message}, {"code", static_cast<int>(e.code)}};
  };
  Result<ChatTemplate> chat = ChatTemplate::parse(request["template"]);
  if (!chat.ok()) return failed(chat.error());
  if (request.contains("now")) {
    std::tm now{};
    now.tm_year = request["now"][0].get<int>() - 1900;
    now.tm_mon = request["now"][1].get<int>() - 1;
    now.tm_mday = request["now"][2].get<int>();
    now.tm_isdst = -1;
    std::mktime(&now);
    chat.value().now = [now] { return now; };
  }
  const Result<std::vector<Segment>> out = chat.value().render_segments(request["context"]);
  if (!out.ok()) return failed(out.error());
  std::string text;
  Json segments = Json::array();
  for (const Segment& s : out.value()) {
    text += s.text;
    segments.push_back({s.text, s.from_data});
  }
  return {{"text", text}, {"segments", segments}};
}

}  // namespace
}  // namespace quire

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const quire::Result<quire::Json> request = quire::parse_json(line, {.depth_max = 200});
    const quire::Json out = request.ok() ? quire::answer(request.value())
                                         : quire::Json{{"error", request.error().message}};
    std::cout << out.dump(-1, ' ', false, quire::Json::error_handler_t::replace) << std::endl;
  }
}
