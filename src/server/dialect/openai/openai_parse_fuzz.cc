// Any JSON as a request body: it is accepted within its limits or refused with a 4xx or 501, and an
// accepted conversation is one that templates can take.
#include "server/dialect/openai/openai_parse.h"

#include "base/check.h"
#include "server/dialect/openai/openai_embed.h"
#include "server/dialect/openai/openai_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  using namespace quire::openai;
  const auto body = parse_json({reinterpret_cast<const char*>(data), size});
  if (!body.ok()) return 0;
  ParseContext context{.vocabulary = 1000, .hidden = 64, .kv = {.kv_format = "f16"}};
  for (const auto parse : {parse_chat, parse_completion, parse_embeddings, parse_rerank}) {
    for (const bool strict : {false, true}) {
      context.strict_fields = strict;
      GenerationRequest asked;
      const auto error = parse(body.value(), context, asked);
      if (error) {
        CHECK(error->status == 400 || error->status == 403 || error->status == 404 ||
              error->status == 501);
        CHECK(!error->message.empty());
        dump(openai_error(*error));
        continue;
      }
      CHECK(asked.n >= 1 && asked.n <= 16 && asked.best_of <= 16);
      CHECK(asked.sampling.check(1000).ok());
      CHECK(asked.stop.size() <= 16);
      CHECK(asked.embedding.dimensions <= 64 && asked.prompts.size() <= 1024);
      CHECK(asked.chat ? !asked.messages.empty() : !asked.prompts.empty());
      for (const Json& m : asked.messages) CHECK(m["role"].is_string() && m["content"].is_string());
    }
  }
  return 0;
}
