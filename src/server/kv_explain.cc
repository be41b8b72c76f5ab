// Why did this request miss? What the engine remembers, as JSON.
#include <fmt/core.h>

#include "server/explain_json.h"
#include "server/routes.h"

namespace quire {
namespace {

const RequestRecord* find_record(const RequestLog& log, const std::string& id,
                                 const Caller& caller) {
  for (const std::string& s : request_ids(id))
    if (const RequestRecord* r = log.find(s))
      return caller.admin || r->tenant == caller.tenant ? r : nullptr;
  return nullptr;
}

Json event_json(const JournalRecord& r, Nanoseconds now) {
  return {{"t", rfc3339(unix_now_ns() + r.time - now)},
          {"event", reason_name(r.reason)},
          {"key", fmt::format("{:016x}", r.key)},
          {"tokens", r.tokens},
          {"bytes", r.bytes},
          {"tier", "cpu"}};
}

Json whole_json(const Explanation& e, const Server& server, Nanoseconds now) {
  Json body = explanation_json(e, server.runtime().tokenizer(), server.options().show_text);
  body["request_id"] = e.request_id.empty() ? Json() : Json(e.request_id);
  body["events"] = Json::array();
  for (const JournalRecord& r : e.events) body["events"].push_back(event_json(r, now));
  return body;
}

ApiError not_remembered(const std::string& id) {
  return not_found("no request " + id + " is remembered (--explain-keep)");
}

// The ids to compare with; none: with whichever is most similar.
std::vector<std::string> compare_ids(const std::string& id) {
  return id.empty() ? std::vector<std::string>() : request_ids(id);
}

Json record_json(const RequestRecord& r, Nanoseconds now) {
  const auto when = [&](Nanoseconds t) {
    return t == 0 ? Json() : Json(rfc3339(unix_now_ns() + t - now));
  };
  return {
      {"request_id", r.id},
      {"tenant", r.tenant},
      {"prompt_cache_key", r.family},
      {"prompt_tokens", r.prompt_tokens},
      {"cached_tokens", r.cached_tokens},
      {"waited_tokens", r.waited_tokens},
      {"generated_tokens", r.done.generated_tokens},
      {"reason", reason_name(r.reason)},
      {"submitted", when(r.submitted)},
      {"admitted", when(r.admitted)},
      {"first_token", when(r.first_token)},
      {"ended", when(r.ended)},
      {"ttft_ms", r.done.first_token_seconds * 1e3},
      {"preemptions", r.done.preemptions},
      {"finish", r.finishes.empty() ? Json() : Json(finish_name(r.finishes.front()))},
      {"error", r.failure.kind == FailureKind::none ? Json() : Json(failure_name(r.failure.kind))}};
}

struct Explained {
  std::optional<Explanation> explanation = {};
  Json record = nullptr;
  Nanoseconds now = 0;
};

}  // namespace

void get_kv_requests(Server& server, std::shared_ptr<Call> call) {
  const std::string wanted = call->request().parameter("limit").value_or("50");
  const std::size_t limit = std::min<std::size_t>(std::strtoul(wanted.c_str(), nullptr, 10), 1000);
  server.with_engine(
      call,
      [limit, caller = call->caller](EngineView& e) {
        Json data = Json::array();
        for (const RequestRecord* r : e.log.latest(caller.admin ? limit : 4 * limit))
          if ((caller.admin || r->tenant == caller.tenant) && data.size() < limit)
            data.push_back(record_json(*r, e.now));
        return data;
      },
      [call](Json& data) {
        const Json last = data.empty() ? Json() : data.back()["request_id"];
        call->respond({{"data", std::move(data)}, {"has_more", false}, {"last_id", last}});
      });
}

void get_kv_request(Server& server, std::shared_ptr<Call> call) {
  const std::string compare = call->request().parameter("compare_to").value_or("");
  server.with_engine(
      call,
      [id = call->arguments.front(), compare, caller = call->caller](EngineView& e) {
        Explained out{.now = e.now};
        if (const RequestRecord* r = find_record(e.log, id, caller)) {
          out.explanation = e.log.explain(r->id, e.runtime.cache().journal(), compare_ids(compare));
          out.record = record_json(*r, e.now);
        }
        return out;
      },
      [&server, call, compare](Explained& seen) {
        if (!seen.explanation) return call->refuse(not_remembered(call->arguments.front()));
        if (seen.explanation->compare_missing) return call->refuse(not_remembered(compare));
        Json body = whole_json(*seen.explanation, server, seen.now);
        body["request"] = std::move(seen.record);
        call->respond(body);
      });
}

void post_kv_explain(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    if (f.find("request_id") || f.find("id"))
      f.refuse(bad_value("request_id",
                         "is not taken here: GET /v1/kv/requests/{id} explains a request that was "
                         "answered. This explains one that may come: send messages, prompt, tokens "
                         "or request",
                         "unsupported_parameter"));
    const std::string compare = f.text("compare_to", 256).value_or("");
    if (f.failed()) return post_refusal(call, f.error());
    GenerationRequest asked;
    Prompt prompt;
    if (auto error = named_prompt(server, *call, body, asked, prompt))
      return post_refusal(call, std::move(*error));
    auto request =
        std::make_shared<Request>(make_request(asked, prompt, server.runtime(), std::string()));
    auto keys = server.service().block_keys(request->prompt, request->kv);
    server.with_engine(
        call,
        [request, keys, compare](EngineView& e) {
          Explained out{.now = e.now};
          Attached attached;
          if (const auto root = e.runtime.find_root(request->kv.tenant, request->kv.storage.get(),
                                                    request->kv.root_adapter()))
            attached = e.runtime.cache().lookup(*root, request->prompt, keys);
          out.explanation = e.log.explain(*request, attached, compare_ids(compare));
          return out;
        },
        [&server, call, compare](Explained& seen) {
          if (seen.explanation->compare_missing) return call->refuse(not_remembered(compare));
          call->respond(whole_json(*seen.explanation, server, seen.now));
        });
  });
}

}  // namespace quire
