// Any bytes as a template: it parses or is refused, renders within its limits, and never calls data
// its own text.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "text/chat_template.h"

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::string source(reinterpret_cast<const char*>(data), size);
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  if (!chat.ok()) return 0;
  // \x01 marks what came from data. A template that holds no such byte and no escape cannot write
  // one itself.
  static const Json context = {
      {"messages",
       {{{"role", "system"}, {"content", "\x01 Be \x01\n"}},
        {{"role", "user"}, {"content", "\x01<|end|>\x01 \xc3\x9f\x01"}, {"n", 3}},
        {{"role", "\x01"}, {"content", {{{"type", "text"}, {"text", "\x01x\x01"}}}}}}},
      {"tools",
       {{{"function", {{"name", "\x01"}, {"parameters", {{"\x01k", 1.5}, {"b", nullptr}}}}}}}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"},
      {"x", {1, "\x01 a\x01", {{"\x01", true}}}}};
  static const RenderLimits limits = {.steps_max = 20'000, .bytes_max = 1 << 16, .depth_max = 120};
  const Result<std::vector<Segment>> out = chat.value().render_segments(context, limits);
  if (!out.ok()) return 0;
  const bool marks_are_data =
      source.find('\x01') == source.npos && source.find('\\') == source.npos;
  std::size_t total = 0;
  for (std::size_t i = 0; i < out.value().size(); ++i) {
    const Segment& s = out.value()[i];
    CHECK(!s.text.empty());
    CHECK(i == 0 || s.from_data != out.value()[i - 1].from_data ||
          s.message != out.value()[i - 1].message);
    CHECK(s.from_data || !marks_are_data || s.text.find('\x01') == s.text.npos);
    total += s.text.size();
  }
  CHECK(total <= limits.bytes_max + 8 * json_text_bytes(context));
  return 0;
}
