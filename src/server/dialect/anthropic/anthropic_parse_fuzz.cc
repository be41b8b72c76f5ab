// Any JSON as a request body: it is accepted within its limits or refused with a 4xx or 501. An accepted
// conversation is one that templates can take, and its breakpoints lie within it, in the order of
// their times.
#include "base/check.h"
#include "server/dialect/anthropic/anthropic_parse.h"
#include "server/dialect/anthropic/anthropic_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  using namespace quire::anthropic;
  const auto body = parse_json({reinterpret_cast<const char*>(data), size});
  if (!body.ok()) return 0;
  ParseContext context{.vocabulary = 1000, .model = "m", .kv = {.kv_format = "f16"}};
  refused_by_version(body.value(), "2026-10-21");
  for (const auto parse : {parse_messages, parse_conversation}) {
    for (const bool strict : {false, true}) {
      context.strict_fields = strict;
      GenerationRequest asked;
      const auto error = parse(body.value(), context, asked);
      if (error) {
        CHECK(error->status == 400 || error->status == 403 || error->status == 404 ||
              error->status == 501);
        CHECK(!error_response(*error, "req_1").body.empty());
        continue;
      }
      CHECK(asked.chat && !asked.messages.empty());
      CHECK(asked.sampling.check(1000).ok() || parse == parse_conversation);
      CHECK(asked.stop.size() <= 16 && asked.breakpoints.size() <= 4);
      for (const Json& m : asked.messages) CHECK(m["role"].is_string() && m["content"].is_string());
      for (const ConversationPart& p : asked.parts)
        CHECK(p.message == ConversationPart::kTools || p.message < asked.messages.size());
      for (std::size_t i = 0; i < asked.breakpoints.size(); ++i) {
        const CacheBreakpoint& b = asked.breakpoints[i];
        CHECK(b.ttl > 0 && (i == 0 || b.ttl <= asked.breakpoints[i - 1].ttl));
        CHECK(b.message == ConversationPart::kTools || b.message < asked.messages.size());
        CHECK(b.end == ConversationPart::kWhole ||
              b.end <= asked.messages[b.message]["content"].get_ref<const std::string&>().size());
      }
    }
  }
  return 0;
}
