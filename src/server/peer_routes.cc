// Routes that clients of SGLang use, over what this server has.
#include <fmt/core.h>

#include "server/prompt_run.h"
#include "server/routes.h"

namespace quire {
namespace {

// Further prompts of a request are called ID-1, ID-2 ...
bool is_part_of(std::string_view part, std::string_view id) {
  if (!part.starts_with(id)) return false;
  part.remove_prefix(id.size());
  return part.empty() ||
         (part.front() == '-' && part.find_first_not_of("0123456789", 1) == part.npos);
}

}  // namespace

void get_model_info(Server& server, std::shared_ptr<Call> call) {
  const Runtime& r = server.runtime();
  call->respond({{"model_path", server.model()},
                 {"tokenizer_path", server.model()},
                 {"is_generation", true},
                 {"context_length", r.context()},
                 {"vocab_size", r.tokenizer().size()}});
}

// Generates one token, so that a model that does not answer is noticed.
void get_health_generate(Server& server, std::shared_ptr<Call> call) {
  if (server.service().draining()) return call->refuse(shutting_down());
  const TokenId bos = server.runtime().tokenizer().bos();
  Request request{.id = call->id, .prompt = {bos == kNoToken ? 0 : bos}};
  request.kv = {.reuse = false, .write = KvWrite::none, .tenant = call->caller.tenant};
  server.with_json(
      call, [&server, call, request = std::make_shared<Request>(std::move(request))](const Json&) {
        run_prompt(
            server, call, std::move(*request),
            [call](const Done&) {
              call->respond({{"status", "ok"}});
            },
            1);
      });
}

// Empties the cache, unless something runs.
void flush_cache(Server& server, std::shared_ptr<Call> call) {
  struct Flushed {
    std::size_t active = 0;
    Evicted evicted = {};
  };
  server.with_engine(
      call,
      [](EngineView& e) {
        Flushed out{.active = e.active().size()};
        if (out.active > 0) return out;
        e.drop_snapshots();
        out.evicted = e.runtime.cache().clear();
        return out;
      },
      [call](const Flushed& f) {
        if (f.active > 0)
          return call->refuse(
              {.message = fmt::format("{} requests run or wait; nothing was flushed", f.active),
               .code = "requests_running"});
        call->exchange->respond(
            {.headers = {{"Content-Type", "text/plain; charset=utf-8"}},
             .body = f.evicted.pinned > 0 ? "Cache flushed, but for pins.\n" : "Cache flushed.\n"});
      });
}

void abort_request(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const auto id = f.text("rid", 256);
    if (!id && !f.failed())
      f.refuse("rid", "is required: an x-request-id", "missing_required_parameter");
    if (f.failed()) return post_refusal(call, f.error());
    cancel_by_id(server, call, *id, [call](std::size_t cancelled) {
      call->respond({{"success", cancelled > 0}, {"aborted", cancelled}});
    });
  });
}

void cancel_by_id(Server& server, std::shared_ptr<Call> call, std::string id,
                  std::function<void(std::size_t cancelled)> then) {
  server.with_engine(
      call,
      [id = std::move(id), caller = call->caller](EngineView& e) {
        std::vector<Ticket> found;
        for (const ActiveRequest& a : e.active()) {
          const bool his = caller.admin || a.tenant == caller.tenant;
          if (his && is_part_of(a.id, id)) found.push_back(a.ticket);
        }
        return found;
      },
      [&server, then = std::move(then)](const std::vector<Ticket>& found) {
        for (const Ticket t : found) server.service().cancel(t);
        then(found.size());
      });
}

}  // namespace quire
