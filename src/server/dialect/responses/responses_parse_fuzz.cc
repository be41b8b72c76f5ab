// Any JSON as a request body, and as a stored response that a request continues: it is accepted within
// its limits or refused with an error of the client's, and what is accepted can be rendered.
#include "server/dialect/responses/responses_parse.h"

#include "base/check.h"
#include "server/dialect/responses/turn.h"

namespace {

void check_response_body(const quire::Json& body, quire::ParseContext& context) {
  using namespace quire;
  for (const bool strict : {false, true}) {
    context.strict_fields = strict;
    GenerationRequest asked;
    if (const auto error = responses::parse_response(body, context, asked)) {
      CHECK(error->status == 400 || error->status == 403 || error->status == 404 ||
            error->status == 501);
      CHECK(!error->message.empty());
      continue;
    }
    CHECK(asked.n == 1 && asked.best_of == 1 && !asked.beam_search);
    CHECK(asked.sampling.check(1000).ok());
    CHECK(!asked.messages.empty());
    for (const Json& m : asked.messages) CHECK(m["role"].is_string() && m["content"].is_string());
    const auto& turn = dynamic_cast<const responses::Turn&>(*asked.notes);
    const auto items = parse_json(turn.items);
    CHECK(items.ok() && items.value().size() == turn.item_count);
    // What was accepted once is accepted as the beginning of a chain.
    const std::string stored = "{\"items\":" + turn.items + ",\"response\":{\"output\":[]}}";
    const auto store = std::static_pointer_cast<responses::ResponseStore>(context.state);
    CHECK(!responses::read_stored({.json = stored}).is_null());
    if (!store->put("", "resp_self", {.json = stored})) continue;
    GenerationRequest next;
    const Json follows{{"input", "x"}, {"previous_response_id", "resp_self"}};
    CHECK(!responses::parse_response(follows, context, next));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto body = parse_json(text);
  if (!body.ok()) return 0;
  static const std::shared_ptr<responses::ResponseStore> store =
      responses::ResponseStore::open({}).value();
  ParseContext context{
      .vocabulary = 1000, .kv = {.kv_format = "f16"}, .answer_id = "f", .state = store};
  store->put("", "resp_1",
             {.json = R"({"items":[{"id":"msg_1_0","type":"message","role":"user","content":"hi"}],
                          "response":{"output":[{"id":"fc_1_1","type":"function_call","call_id":"c",
                          "name":"f","arguments":"{}"}]}})"});
  check_response_body(body.value(), context);
  if (store->put("", "resp_any", {.json = text}))
    check_response_body({{"input", "x"}, {"previous_response_id", "resp_any"}}, context);
  return 0;
}
