// Routes of saved sessions: to a file and back, under a name or over the wire.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "engine/session_disk.h"
#include "server/kv_parse.h"
#include "server/kv_sessions.h"
#include "server/routes.h"

namespace quire {
namespace {

constexpr std::size_t kExportPiece = 64 << 10;

ApiError store_error(const Error& error) {
  if (error.code == Code::corrupt) return {.message = error.message, .code = "corrupt_kv"};
  if (error.code == Code::unsupported || error.message.starts_with(kOtherModel)) {
    std::string field;
    if (error.message.starts_with(kOtherModel)) {
      field = error.message.substr(kOtherModel.size());
      field.resize(std::min(field.find_first_of(":;"), field.size()));
    }
    return {.status = 409, .message = error.message, .code = "incompatible_kv", .param = field};
  }
  if (error.code == Code::unavailable) {  // it may name a path
    fmt::print(stderr, "error: sessions: {}\n", error.message);
    return {.status = 503,
            .message = "sessions cannot be saved or loaded now; the server's log says why",
            .type = "unavailable_error",
            .code = "tier_unavailable",
            .retry_after_s = 1};
  }
  if (error.code == Code::exhausted || error.code == Code::cancelled) return session_error(error);
  return from_error(error);
}

// Runs `work` on a worker, if this server saves sessions and nobody else does so now.
void with_disk(Server& server, const std::shared_ptr<Call>& call, std::function<void()> work) {
  if (!server.runtime().sessions())
    return post_refusal(
        call, {.message = "sessions are saved in the cache folder; start the server with --kv-dir",
               .code = "tier_unavailable"});
  server.work_for(call, [&server, call, work = std::move(work)] {
    const auto turn = server.turn_on_disk();
    if (!turn.owns_lock())
      return post_refusal(call, {.status = 429,
                                 .message = "another session is being saved or loaded; try again",
                                 .type = "rate_limit_error",
                                 .code = "kv_quota_exceeded",
                                 .retry_after_s = 1});
    work();
  });
}

SessionStore::ParsePolicy policy_parser(Server& server, const std::shared_ptr<Call>& call,
                                        const std::string& tenant) {
  return [&server, call, tenant](const std::string& words) -> Result<KvPolicy> {
    auto parsed = parse_json(words, {.depth_max = 16});
    if (!parsed.ok() || !parsed.value().is_object())
      return Error{Code::corrupt, "session file: its policy is not a JSON object"};
    const Json body{{"kv", std::move(parsed.value())}};
    ParseContext context = server.parse_context(*call);
    context.kv.tenant = tenant;
    Fields f(body);
    KvRequest kv;
    parse_kv(f, "", context.kv, kv);
    if (f.failed()) return Error{Code::corrupt, "session file: policy: " + f.error().message};
    kv.policy.leases.clear();
    return kv.policy;
  };
}

// A session that has come from a file gets its name.
void keep_loaded(Server& server, const std::shared_ptr<Call>& call, Result<LoadedSession> loaded,
                 double seconds) {
  if (!loaded.ok()) return post_refusal(call, store_error(loaded.error()));
  Session session = std::move(loaded.value().session);
  const std::string tenant = session.tenant, name = session.id;
  const auto lease = session.lease;
  const Result<bool> made = server.service().sessions().create(std::move(session));
  if (made.ok() && made.value())
    return show_session(server, call, tenant, name,
                        {{"own_keys", loaded.value().own},
                         {"file_bytes", loaded.value().bytes},
                         {"ms", seconds * 1e3}});
  if (lease)
    server.service().post(
        [lease = *lease](EngineView& e) { (void)e.runtime.cache().release(lease); });
  post_refusal(call, made.ok() ? session_exists(name) : session_error(made.error()));
}

double seconds_since(Nanoseconds began) {
  return static_cast<double>(SteadyClock().now() - began) * 1e-9;
}

// A file on its way to a client, as fast as that reads.
class ExportStream : public std::enable_shared_from_this<ExportStream> {
 public:
  ExportStream(std::shared_ptr<Call> call, std::shared_ptr<const SessionStore::Nameless> file)
      : call_(std::move(call)),
        exchange_(call_->exchange),
        file_(std::move(file)),
        open_(file_->path, O_RDONLY) {}

  void begin() {
    exchange_->drained = [self = shared_from_this()] { self->pump(); };
    exchange_->begin({.headers = {{"Content-Type", "application/vnd.kvcache"}}});
    pump();
  }

 private:
  void pump() {
    if (exchange_->over() || ended_) return;
    std::string piece(kExportPiece, '\0');
    for (;;) {
      const ssize_t n = ::pread(open_.fd, piece.data(), piece.size(), at_);
      if (n <= 0) break;  // a file that ends too early is corrupt to whoever reads it
      at_ += n;
      if (!exchange_->write({piece.data(), static_cast<std::size_t>(n)})) return;
    }
    ended_ = true;
    exchange_->end();
  }

  std::shared_ptr<Call> call_;  // counts as under way
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<const SessionStore::Nameless> file_;
  OpenFile open_;
  off_t at_ = 0;
  bool ended_ = false;
};

}  // namespace

void post_session_save(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const std::string id = call->arguments.front();
    const std::string name = f.text("name", kSessionNameMax).value_or(id);
    const bool dry_run = f.boolean("dry_run").value_or(false);
    f.refuse_unknown();
    if (const Status fine = check_save_name(name); !fine.ok())
      f.refuse("name", fine.error().message);
    if (f.failed()) return post_refusal(call, f.error());
    with_disk(server, call, [&server, call, id, name, dry_run] {
      const Nanoseconds began = SteadyClock().now();
      const Result<Session> s = server.service().sessions().find(session_tenant(*call), id);
      if (!s.ok()) return post_refusal(call, session_error(s.error()));
      if (s.value().busy)
        return post_refusal(call, session_error({Code::unavailable, "a request goes on with it"}));
      if (dry_run)
        return post_answer(
            call, {{"name", name}, {"tokens", s.value().tokens.size()}, {"dry_run", true}});
      const Result<SavedSession> saved = server.saves().save(s.value(), name);
      if (!saved.ok()) return post_refusal(call, store_error(saved.error()));
      post_answer(call, {{"name", name},
                         {"bytes", saved.value().bytes},
                         {"tokens", saved.value().tokens},
                         {"blocks", saved.value().blocks},
                         {"sha256", saved.value().sha256},
                         {"ms", seconds_since(began) * 1e3}});
    });
  });
}

void post_session_load(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const std::string name = f.text("name", kSessionNameMax).value_or("");
    const std::string id = f.text("id", kSessionNameMax).value_or("");
    f.refuse_unknown();
    if (const Status fine = check_save_name(name); !fine.ok())
      f.refuse("name", fine.error().message);
    if (!id.empty())
      if (const Status fine = check_session_name(id); !fine.ok())
        f.refuse("id", fine.error().message);
    if (f.failed()) return post_refusal(call, f.error());
    with_disk(server, call, [&server, call, name, id] {
      const Nanoseconds began = SteadyClock().now();
      const std::string tenant = session_tenant(*call);
      if (!id.empty() && server.service().sessions().policy(tenant, id))
        return post_refusal(call, session_exists(id));
      auto loaded = server.saves().load(tenant, name, id, policy_parser(server, call, tenant));
      if (!loaded.ok() && loaded.error().code == Code::not_found)
        return post_refusal(call, not_found(loaded.error().message, "session_not_found"));
      keep_loaded(server, call, std::move(loaded), seconds_since(began));
    });
  });
}

void get_session_export(Server& server, std::shared_ptr<Call> call) {
  with_disk(server, call, [&server, call] {
    const Result<Session> s =
        server.service().sessions().find(session_tenant(*call), call->arguments.front());
    if (!s.ok()) return post_refusal(call, session_error(s.error()));
    auto file = server.saves().save_nameless(s.value());
    if (!file.ok()) return post_refusal(call, store_error(file.error()));
    call->exchange->post(
        [call, made = file.value()] { std::make_shared<ExportStream>(call, made)->begin(); });
  });
}

void post_session_import(Server& server, std::shared_ptr<Call> call) {
  const std::string id = call->request().parameter("id").value_or("");
  if (!id.empty())
    if (const Status fine = check_session_name(id); !fine.ok())
      return call->refuse(bad_value("id", fine.error().message));
  with_disk(server, call, [&server, call, id] {
    const Nanoseconds began = SteadyClock().now();
    const std::string tenant = session_tenant(*call);
    auto loaded = server.saves().load_bytes(tenant, call->request().body, id,
                                            policy_parser(server, call, tenant));
    call->request().drop_body();
    keep_loaded(server, call, std::move(loaded), seconds_since(began));
  });
}

void get_saves(Server& server, std::shared_ptr<Call> call) {
  with_disk(server, call, [&server, call] {
    const auto all = server.saves().list(session_tenant(*call));
    if (!all.ok()) return post_refusal(call, store_error(all.error()));
    Json data = Json::array();
    for (const SavedSession& s : all.value())
      data.push_back({{"name", s.name}, {"bytes", s.bytes}, {"created", rfc3339(s.changed)}});
    const Json last = data.empty() ? Json() : data.back()["name"];
    post_answer(call, {{"data", std::move(data)}, {"has_more", false}, {"last_id", last}});
  });
}

void delete_save(Server& server, std::shared_ptr<Call> call) {
  with_disk(server, call, [&server, call] {
    const bool dry_run = call->request().parameter("dry_run").value_or("") == "true";
    const auto gone =
        server.saves().remove(session_tenant(*call), call->arguments.front(), dry_run);
    if (!gone.ok())
      return post_refusal(call, gone.error().code == Code::not_found
                                    ? not_found(gone.error().message, "session_not_found")
                                    : store_error(gone.error()));
    post_answer(
        call, {{"name", gone.value().name}, {"bytes", gone.value().bytes}, {"deleted", !dry_run}});
  });
}

}  // namespace quire
