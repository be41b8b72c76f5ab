// Any JSON as a body of Ollama's: it is accepted within its limits or refused with a 4xx, and an accepted
// conversation is one that templates can take.
#include "server/dialect/ollama/ollama_parse.h"

#include "base/check.h"
#include "server/dialect/ollama/ollama_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto body = parse_json({reinterpret_cast<const char*>(data), size}, kRequestJson);
  if (!body.ok()) return 0;
  ParseContext context{.vocabulary = 1000, .kv = {.kv_format = "f16"}};
  ollama::asks_to_load(body.value());
  for (const auto parse : {ollama::parse_chat, ollama::parse_generate}) {
    for (const bool strict : {false, true}) {
      context.strict_fields = strict;
      GenerationRequest asked;
      if (const auto error = parse(body.value(), context, asked)) {
        CHECK(error->status == 400 || error->status == 403 || error->status == 501);
        CHECK(!error->message.empty());
        dump(ollama::ollama_error(*error));
        continue;
      }
      CHECK(asked.n == 1 && asked.best_of == 1 && asked.stop.size() <= 16);
      CHECK(asked.sampling.check(1000).ok());
      CHECK(asked.chat ? !asked.messages.empty() : asked.prompts.size() == 1);
      for (const TokenId t : asked.before) CHECK(t < 1000);
      for (const Json& m : asked.messages) CHECK(m["role"].is_string() && m["content"].is_string());
    }
  }
  GenerationRequest embedded;
  if (body.value().is_object() && !ollama::parse_embed(body.value(), context, embedded))
    CHECK(!embedded.prompts.empty() && embedded.tokens_max == 0);
  return 0;
}
