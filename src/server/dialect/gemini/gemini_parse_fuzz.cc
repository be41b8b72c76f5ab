// Any JSON as a body of Gemini's: it is accepted within its limits or refused with a 4xx, and an accepted
// conversation is one that templates can take. What is cached of a body and asked again is a body, too.
#include "server/dialect/gemini/gemini_parse.h"

#include "base/check.h"
#include "server/dialect/gemini/cached_contents.h"
#include "server/dialect/gemini/gemini_schema.h"
#include "server/dialect/gemini/gemini_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  using namespace quire::gemini;
  const auto body = parse_json({reinterpret_cast<const char*>(data), size}, kRequestJson);
  if (!body.ok()) return 0;
  Fields f(body.value(), {}, Fields::Spelling::either);
  constexpr std::int64_t kNow = 1'795'000'000'000'000'000;
  if (const auto expires = parse_expiry(f, kNow)) CHECK(*expires > kNow);
  const Json schema = json_schema_of(body.value());
  CHECK(schema.is_object() == body.value().is_object());
  ParseContext context{.vocabulary = 1000, .hidden = 64, .kv = {.kv_format = "f16"}};
  for (const auto parse : {parse_embed, parse_batch_embed}) {
    GenerationRequest asked;
    if (const auto error = parse(body.value(), context, asked)) {
      CHECK(!error->message.empty());
      continue;
    }
    CHECK(!asked.prompts.empty() && asked.embedding.dimensions <= 64);
    for (const PromptInput& p : asked.prompts) CHECK(!p.text.empty());
  }
  for (const bool strict : {false, true}) {
    context.strict_fields = strict;
    GenerationRequest asked;
    if (const auto error = parse_generate(counted_request(body.value()), context, asked)) {
      CHECK(error->status == 400 || error->status == 403 || error->status == 501);
      CHECK(!error->message.empty());
      dump(gemini_error(*error));
      continue;
    }
    CHECK(asked.n >= 1 && asked.n <= 16 && asked.stop.size() <= 16);
    CHECK(asked.sampling.check(1000).ok());
    CHECK(!asked.messages.empty());
    std::string last;
    for (const Json& m : asked.messages) {
      CHECK(m["role"].is_string() && m["content"].is_string());
      CHECK(m["role"] == "tool" || m["role"] != last);
      last = m["role"].get<std::string>();
    }
    Json again{{"contents", body.value().value("contents", Json::array())}};
    if (!without_cache(again, counted_request(body.value()))) CHECK(again["contents"].is_array());
  }
  return 0;
}
