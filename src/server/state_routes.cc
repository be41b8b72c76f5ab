// The state of the server: health, version, properties, running requests.
#include <fmt/core.h>

#include <cmath>

#include "server/routes.h"

namespace quire {
namespace {

// A setting as people write it: 0.7, not the float next to it.
double rounded(float setting) { return std::round(double{setting} * 1e4) / 1e4; }

}  // namespace

void get_health(Server& server, std::shared_ptr<Call> call) {
  const std::string_view state = server.health();
  Json body{{"status", state}};
  if (server.model_files_changed()) body["model_files"] = "changed";
  call->respond(body, state == "ok" || state == "draining" ? 200 : 503);
}

void get_ready(Server& server, std::shared_ptr<Call> call) {
  if (server.service().draining()) return call->refuse(shutting_down());
  call->respond({{"status", "ready"}});
}

void get_version(Server& server, std::shared_ptr<Call> call) {
  call->respond({{"version", server.options().version}});
}

void get_ping(Server&, std::shared_ptr<Call> call) { call->respond(Json::object()); }

void get_load(Server& server, std::shared_ptr<Call> call) {
  const ServiceStats s = server.service().snapshot();
  call->respond({{"server_load", s.requests_running + s.requests_waiting}});
}

void get_props(Server& server, std::shared_ptr<Call> call) {
  const Runtime& r = server.runtime();
  const ChatTemplate* chat = r.chat_template();
  const SamplingOptions& s = server.sampling().options;
  const AnswerFormat& format = server.answer_format();
  call->respond(
      {{"default_generation_settings",
        {{"n_ctx", r.context()},
         {"temperature", rounded(s.temperature)},
         {"top_k", s.top_k},
         {"top_p", rounded(s.top_p)},
         {"min_p", rounded(s.min_p)},
         {"repeat_penalty", rounded(s.repetition_penalty)},
         {"from_model", server.sampling().from_model},
         {"n_predict", -1}}},
       {"total_slots", server.service().options().sequences_max},
       {"model_path", server.model()},
       {"chat_template", chat ? Json(chat->source()) : Json("")},
       {"tool_call_parser", format.calls ? Json(format.calls->name) : Json("none")},
       {"reasoning_parser", format.reasoning ? Json(format.reasoning->name) : Json("none")},
       {"modalities", {{"vision", false}, {"audio", false}}},
       {"build_info", "quire " + server.options().version},
       {"is_sleeping", false}});
}

void get_slots(Server& server, std::shared_ptr<Call> call) {
  const bool must_be_free = call->request().parameter("fail_on_no_slot").value_or("0") == "1";
  server.with_engine(
      call, [](EngineView& e) { return e.active(); },
      [&server, call, must_be_free](const std::vector<ActiveRequest>& active) {
        const std::uint32_t slots = server.service().options().sequences_max;
        if (must_be_free && active.size() >= slots)
          return call->refuse({.status = 503,
                               .message = "every slot is taken",
                               .type = "unavailable_error",
                               .code = "no_slot",
                               .retry_after_s = 1});
        Json out = Json::array();
        for (std::size_t i = 0; i < active.size(); ++i) {
          const ActiveRequest& a = active[i];
          static constexpr const char* kStates[] = {"waiting", "reading", "answering"};
          out.push_back({{"id", i},
                         {"id_task", static_cast<std::uint64_t>(a.ticket)},
                         {"n_ctx", server.runtime().context()},
                         {"is_processing", a.state != ActiveRequest::State::waiting},
                         {"params", {{"n", a.choices}}},
                         {"next_token", {{"n_decoded", a.generated_tokens}}},
                         {"request_id", a.id},
                         {"tenant", a.tenant},
                         {"state", kStates[static_cast<int>(a.state)]},
                         {"prompt_tokens", a.prompt_tokens},
                         {"cached_tokens", a.cached_tokens},
                         {"computed_tokens", a.computed_tokens},
                         {"preemptions", a.preemptions},
                         {"age_ms", static_cast<double>(a.age) / 1e6}});
        }
        // Idle ones, so that there is always one to look at.
        for (std::size_t i = active.size(); i < slots; ++i)
          out.push_back({{"id", i},
                         {"id_task", -1},
                         {"n_ctx", server.runtime().context()},
                         {"is_processing", false},
                         {"params", Json::object()},
                         {"next_token", Json::object()}});
        call->respond(out);
      });
}

void get_server_info(Server& server, std::shared_ptr<Call> call) {
  const Runtime& r = server.runtime();
  const ServiceOptions& o = server.service().options();
  call->respond({{"version", server.options().version},
                 {"model", server.model()},
                 {"system_fingerprint", server.fingerprint()},
                 {"threads", r.threads()},
                 {"context", r.context()},
                 {"kv_format", r.kv_format()},
                 {"block_size", r.geometry().tokens_per_block},
                 {"step_tokens", o.step_tokens},
                 {"max_num_seqs", o.sequences_max},
                 {"max_queue", o.queue_max}});
}

void not_yet(Server&, std::shared_ptr<Call> call) {
  call->refuse(not_implemented(call->request().path));
}

}  // namespace quire
