// OpenAI's Responses: answers in items, chains by previous_response_id, and what is stored of them.
#include <fmt/core.h>

#include <algorithm>

#include "server/dialect/dialect.h"
#include "server/dialect/openai/openai_parse.h"
#include "server/dialect/openai/openai_writer.h"
#include "server/dialect/responses/responses_parse.h"
#include "server/dialect/responses/responses_writer.h"
#include "server/dialect/responses/turn.h"
#include "server/prompt_fit.h"
#include "server/routes.h"

namespace quire {

extern const Dialect kResponses;

namespace {

using namespace responses;

void post_responses(Server& server, std::shared_ptr<Call> call) {
  server.generate(std::move(call), parse_response);
}

void count_response_tokens(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    GenerationRequest asked;
    std::vector<Prompt> prompts;
    if (auto error = parse_input(body, server.parse_context(*call), asked))
      return post_refusal(call, std::move(*error));
    if (!asked.drop_oldest)
      asked.tokens_max = 0;  // a prompt that fills the context is counted, too
    if (auto error = make_fitting_prompts(asked, server.runtime(), prompts);
        error && (error->code != "context_length_exceeded" || prompts.empty()))
      return post_refusal(call, std::move(*error));
    post_answer(call, {{"object", "response.input_tokens"},
                       {"input_tokens", prompts.front().tokens.size()}});
  });
}

ResponseStore& store_of(Server& server) {
  return static_cast<ResponseStore&>(*server.state_of(kResponses));
}

ApiError no_response(const std::string& id) {
  ApiError e = not_found("there is no response '" + id +
                         "': it was not stored, was deleted, or has expired");
  e.param = "response_id";
  return e;
}

// Reads the response that the path names and runs `show` with what is stored of it, on a worker.
void with_stored(Server& server, std::shared_ptr<Call> call,
                 std::function<void(const Json& stored)> show) {
  server.with_json(call, [&server, call, show = std::move(show)](const Json&) {
    const std::string& id = call->arguments.front();
    const auto stored = store_of(server).find(call->caller.tenant, id);
    const Json json = stored ? read_stored(*stored) : Json();
    if (json.is_null()) return post_refusal(call, no_response(id));
    show(json);
  });
}

void get_response(Server& server, std::shared_ptr<Call> call) {
  if (call->request().parameter("stream").value_or("false") == "true")
    return call->refuse(not_implemented("streaming a stored response", "stream"));
  with_stored(server, call, [call](const Json& stored) { post_answer(call, stored["response"]); });
}

void delete_response(Server& server, std::shared_ptr<Call> call) {
  const std::string id = call->arguments.front();
  const bool there = store_of(server).remove(call->caller.tenant, id, [call, id] {
    post_answer(call, {{"id", id}, {"object", "response.deleted"}, {"deleted", true}});
  });
  if (!there) call->refuse(no_response(id));
}

// Ends a response that runs, and with it the stream of its client. One that is complete stays so.
void cancel_response(Server& server, std::shared_ptr<Call> call) {
  const std::string id = call->arguments.front();
  const std::string rest = id.starts_with(kResponsePrefix) ? id.substr(kResponsePrefix.size()) : id;
  const auto refuse = [&server, call] {
    with_stored(server, call, [call](const Json&) {
      post_refusal(call, bad_value("response_id", "this response is complete"));
    });
  };
  const auto cancelled = [call, id](std::size_t) {
    call->respond(
        {{"id", id}, {"object", "response"}, {"status", "cancelled"}, {"output", Json::array()}});
  };
  cancel_by_id(server, call, "req_" + rest, [=, &server](std::size_t count) {
    if (count > 0) return cancelled(count);
    cancel_by_id(server, call, rest,
                 [=](std::size_t more) { more > 0 ? cancelled(more) : refuse(); });
  });
}

// ?limit=20&order=desc&after=ID
void get_input_items(Server& server, std::shared_ptr<Call> call) {
  with_stored(server, call, [call](const Json& stored) {
    const HttpRequest& request = call->request();
    const std::string limit_text = request.parameter("limit").value_or("20");
    const long limit = std::strtol(limit_text.c_str(), nullptr, 10);
    if (limit < 1 || limit > 100)
      return post_refusal(call, bad_value("limit", "must be between 1 and 100"));
    const std::string order = request.parameter("order").value_or("desc");
    if (order != "asc" && order != "desc")
      return post_refusal(call, bad_value("order", "must be asc or desc"));
    std::vector<const Json*> items;
    for (const Json& item : stored["items"])
      if (item.is_object()) items.push_back(&item);
    if (order == "desc") std::ranges::reverse(items);
    std::size_t first = 0;
    if (const auto after = request.parameter("after")) {
      const auto at = std::ranges::find_if(
          items, [&](const Json* i) { return i->value("id", Json()) == *after; });
      if (at == items.end()) return post_refusal(call, bad_value("after", "names no item"));
      first = static_cast<std::size_t>(at - items.begin()) + 1;
    }
    Json data = Json::array();
    for (std::size_t i = first; i < items.size() && data.size() < static_cast<std::size_t>(limit);
         ++i)
      data.push_back(*items[i]);
    const Json first_id = data.empty() ? Json("") : data.front().value("id", Json(""));
    const Json last_id = data.empty() ? Json("") : data.back().value("id", Json(""));
    const bool more = first + data.size() < items.size();
    post_answer(call, {{"object", "list"},
                       {"data", std::move(data)},
                       {"first_id", first_id},
                       {"last_id", last_id},
                       {"has_more", more}});
  });
}

void compact_response(Server&, std::shared_ptr<Call> call) {
  call->refuse(not_implemented("POST /v1/responses/compact"));
}

constexpr Route kResponsesRoutes[] = {
    {"POST", "/v1/responses", Access::user, post_responses, "chat"},
    {"POST", "/v1/responses/input_tokens", Access::user, count_response_tokens},
    {"POST", "/v1/responses/compact", Access::user, compact_response},
    {"GET", "/v1/responses/{id}", Access::user, get_response},
    {"DELETE", "/v1/responses/{id}", Access::user, delete_response},
    {"POST", "/v1/responses/{id}/cancel", Access::user, cancel_response},
    {"GET", "/v1/responses/{id}/input_items", Access::user, get_input_items},
};
constexpr std::string_view kResponsesIds[] = {kResponsePrefix};

Result<std::shared_ptr<DialectState>> open_responses(const ServerOptions& options) {
  ResponseStoreOptions store{
      .count_max = options.responses_max,
      .bytes_max = options.responses_bytes_max,
      .ttl_s = options.responses_ttl / 1'000'000'000,
      .log = [](const std::string& line) { fmt::print(stderr, "warning: {}\n", line); }};
  if (!options.folder.empty()) store.folder = options.folder + "/responses";
  TRY(std::shared_ptr<DialectState> opened, ResponseStore::open(std::move(store)));
  return opened;
}

}  // namespace

extern const Dialect kResponses = {
    .name = "responses",
    .routes = kResponsesRoutes,
    .claims = nullptr,  // its errors look like OpenAI's others
    .id_prefixes = kResponsesIds,
    .parse = parse_response,
    .parse_conversation = openai::parse_conversation,
    .writer = [](const GenerationRequest& asked, AnswerHead head,
                 const Tokenizer& tokenizer) -> std::unique_ptr<AnswerWriter> {
      return std::make_unique<ResponsesWriter>(asked, std::move(head), tokenizer);
    },
    .error = openai::openai_error_response,
    .open = open_responses};

}  // namespace quire
