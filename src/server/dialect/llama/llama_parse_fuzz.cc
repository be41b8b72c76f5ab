// Any JSON as a body of /completion: it is accepted within its limits or refused with a 4xx.
#include "base/check.h"
#include "server/dialect/llama/llama_parse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto body = parse_json({reinterpret_cast<const char*>(data), size}, kRequestJson);
  if (!body.ok()) return 0;
  ParseContext context{.vocabulary = 1000, .kv = {.kv_format = "f16"}};
  for (const bool strict : {false, true}) {
    context.strict_fields = strict;
    GenerationRequest asked;
    if (const auto error = llama::parse_completion(body.value(), context, asked)) {
      CHECK(error->status == 400 || error->status == 403 || error->status == 501);
      CHECK(!error->message.empty());
      continue;
    }
    CHECK(asked.prompts.size() == 1 && asked.stop.size() <= 16 && asked.n == 1);
    CHECK(asked.sampling.check(1000).ok());
  }
  return 0;
}
