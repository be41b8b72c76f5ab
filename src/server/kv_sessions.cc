// Routes of sessions: listed, made, shown, forked, rewound, deleted.
#include "server/kv_sessions.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "engine/job.h"
#include "server/fields.h"
#include "server/prompt_run.h"
#include "server/routes.h"

namespace quire {
namespace {

constexpr std::size_t kSessionWordsMax = 4096;  // bytes

// A session and what the cache has of it.
struct SessionSeen {
  Result<Session> session;
  std::optional<LeaseInfo> leased;
};

Json policy_json(const std::string& words) {
  auto parsed = parse_json(words, {.depth_max = 16});
  return parsed.ok() ? std::move(parsed.value()) : Json::object();
}

Json session_json(const Session& s, std::size_t tokens, const std::optional<LeaseInfo>& leased,
                  std::uint32_t tokens_per_block) {
  return {{"id", s.id},
          {"tokens", tokens},
          {"turns", s.turns.size()},
          {"node", leased ? Json(leased->node.hex()) : Json()},
          {"bytes", leased ? leased->bytes : 0},
          {"tiers", {{"cpu", leased ? leased->tokens / tokens_per_block : 0}}},
          {"created", rfc3339(s.created)},
          {"last_used", rfc3339(s.last_used)},
          {"parent", s.parent.empty() ? Json() : Json(s.parent)},
          {"policy", policy_json(s.policy)},
          {"busy", s.busy}};
}

std::optional<LeaseInfo> lease_of(EngineView& e, const Session& s) {
  if (!s.lease) return std::nullopt;
  auto info = e.runtime.cache().lease_info(*s.lease);
  return info.ok() ? std::optional(std::move(info.value())) : std::nullopt;
}

// A new session keeps its text's blocks, too, as far as they are cached.
void lease_text(Server& server, const std::shared_ptr<Call>& call, const std::string& tenant,
                const std::string& id) {
  Result<Session> found = server.service().sessions().find(tenant, id);
  if (!found.ok()) return post_refusal(call, session_error(found.error()));
  auto session = std::make_shared<Session>(std::move(found.value()));
  auto keys = server.service().block_keys(session->tokens, session->kv);
  server.with_engine(
      call,
      [&server, session, keys = std::move(keys)](EngineView& e) {
        KvCache& cache = e.runtime.cache();
        const auto root = e.runtime.find_root(session->tenant, session->kv.storage.get(),
                                              session->kv.root_adapter());
        if (!root || keys.empty()) return true;
        const std::vector<KeyChange> changes = key_changes(session->kv, session->tokens);
        Result<Sequence> s =
            cache.open({.root = *root,
                        .token_capacity = static_cast<std::uint32_t>(session->tokens.size()) + 1,
                        .publish = false,
                        .changes = changes});
        if (!s.ok()) return true;
        cache.attach(s.value(), session->tokens, keys);
        const auto lease = cache.lease(s.value(), {.label = kSessionLabel + session->id});
        if (!lease.ok()) return true;
        if (const auto old =
                server.service().sessions().set_lease(session->tenant, session->id, lease.value()))
          (void)cache.release(*old);
        return true;
      },
      [&server, call, tenant, id](bool) { show_session(server, call, tenant, id); });
}

}  // namespace

ApiError session_error(const Error& error) {
  ApiError e = from_error(error);
  if (error.code == Code::not_found) e.code = "session_not_found";
  if (error.code == Code::unavailable)
    e = {.status = 409, .message = error.message, .code = "session_busy", .retry_after_s = 1};
  if (error.code == Code::exhausted)
    e = {.status = 429,
         .message = error.message,
         .type = "rate_limit_error",
         .code = "kv_quota_exceeded",
         .retry_after_s = 1};
  return e;
}

ApiError session_exists(const std::string& id) {
  return {.status = 409,
          .message = fmt::format("there is a session '{}'; delete it, or take another name", id),
          .code = "session_exists"};
}

std::string session_tenant(Call& call) {
  if (call.caller.admin)
    if (const auto named = call.request().parameter("tenant")) return *named;
  return call.caller.tenant;
}

std::optional<ApiError> claim_session(Server& server, std::size_t prompts, GenerationRequest& asked,
                                      Request& request) {
  KvRequest& kv = asked.kv;
  if (kv.session.empty()) return std::nullopt;
  if (prompts != 1) return bad_value("kv.session", "goes with one prompt");
  if (std::max({request.choices, request.beams, 1u}) > 1)
    return bad_value("kv.session", "goes with one answer; leave out n, best_of and beams");
  if (kv.session_words.size() > kSessionWordsMax)
    return bad_value("kv", fmt::format("is too long for a session: {} bytes of {}",
                                       kv.session_words.size(), kSessionWordsMax));
  auto turn = server.service().sessions().begin(kv.policy.tenant, kv.session,
                                                {.prompt = request.prompt,
                                                 .kv = kv.policy,
                                                 .policy = kv.session_words,
                                                 .fork = kv.session_fork});
  if (!turn.ok()) {
    ApiError error = session_error(turn.error());
    error.param = "kv.session";
    return error;
  }
  kv.session = turn.value()->id();
  kv.session_how = how_name(turn.value()->how());
  request.kv.producer = turn.value()->producer();
  request.session = std::move(turn.value());
  return std::nullopt;
}

void show_session(Server& server, std::shared_ptr<Call> call, const std::string& tenant,
                  const std::string& id, Json more) {
  server.with_engine(
      call,
      [&server, tenant, id](EngineView& e) -> SessionSeen {
        Result<Session> s = server.service().sessions().find(tenant, id);
        if (!s.ok()) return {std::move(s), std::nullopt};
        auto leased = lease_of(e, s.value());
        return {std::move(s), std::move(leased)};
      },
      [&server, call, tenant, id, more = std::move(more)](const SessionSeen& seen) {
        if (!seen.session.ok()) return call->refuse(session_error(seen.session.error()));
        const Session& s = seen.session.value();
        Json shown = session_json(s, s.tokens.size(), seen.leased,
                                  server.runtime().geometry().tokens_per_block);
        shown["children"] = server.service().sessions().children(tenant, id);
        if (call->request().parameter("tokens") == "true") shown["token_ids"] = s.tokens;
        shown.update(more);
        call->respond(shown);
      });
}

void get_sessions(Server& server, std::shared_ptr<Call> call) {
  const std::string wanted = call->request().parameter("limit").value_or("100");
  std::size_t limit = 0;
  std::from_chars(wanted.data(), wanted.data() + wanted.size(), limit);
  limit = std::clamp<std::size_t>(limit, 1, 1000);
  struct Listed {
    Sessions::Page page;
    std::vector<std::optional<LeaseInfo>> leased;
  };
  server.with_walk(
      call,
      [&server, tenant = session_tenant(*call),
       after = call->request().parameter("after").value_or(""), limit](EngineView& e) {
        Listed all{server.service().sessions().list(tenant, after, limit), {}};
        for (const Session& s : all.page.sessions) all.leased.push_back(lease_of(e, s));
        return all;
      },
      [&server, call](const Listed& all) {
        Json data = Json::array();
        for (std::size_t i = 0; i < all.page.sessions.size(); ++i)
          data.push_back(session_json(all.page.sessions[i], all.page.tokens[i], all.leased[i],
                                      server.runtime().geometry().tokens_per_block));
        const Json last = data.empty() ? Json() : data.back()["id"];
        post_answer(call,
                    {{"data", std::move(data)}, {"has_more", all.page.more}, {"last_id", last}});
      });
}

void get_session(Server& server, std::shared_ptr<Call> call) {
  const std::string tenant = session_tenant(*call), id = call->arguments.front();
  show_session(server, std::move(call), tenant, id);
}

// With messages (or a prompt, or tokens) it reads them; else the session is a name and a policy.
void post_sessions(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const std::string id = f.text("id", kSessionNameMax).value_or("");
    const bool dry_run = f.boolean("dry_run").value_or(false);
    bool reads = false;
    for (const char* name : {"messages", "prompt", "tokens", "request"})
      reads = reads || f.find(name) != nullptr;
    if (const Status fine = check_session_name(id); !fine.ok())
      f.refuse("id", fine.error().message);
    if (f.failed()) return post_refusal(call, f.error());
    GenerationRequest asked;
    Prompt prompt;
    if (reads) {
      if (auto error = named_prompt(server, *call, body, asked, prompt))
        return post_refusal(call, std::move(*error));
    } else {
      const ParseContext context = server.parse_context(*call);
      parse_kv(f, context.kv_header, context.kv, asked.kv);
      if (f.failed()) return post_refusal(call, f.error());
    }
    KvRequest& kv = asked.kv;
    if (!kv.session.empty())
      return post_refusal(call, bad_value("kv.session", "is what `id` says; leave it out"));
    const std::string tenant = kv.policy.tenant;
    Sessions& sessions = server.service().sessions();
    if (sessions.policy(tenant, id)) return post_refusal(call, session_exists(id));
    if (dry_run)
      return post_answer(call, {{"id", id}, {"tokens", prompt.tokens.size()}, {"dry_run", true}});
    kv.session = id;
    if (!reads) {
      const Result<bool> made = sessions.create(
          {.tenant = tenant, .id = id, .kv = kv.policy, .policy = kv.session_words});
      if (!made.ok()) return post_refusal(call, session_error(made.error()));
      if (!made.value()) return post_refusal(call, session_exists(id));
      return show_session(server, call, tenant, id);
    }
    Request request = make_request(asked, prompt, server.runtime(), call->id);
    if (auto error = claim_session(server, 1, asked, request))
      return post_refusal(call, std::move(*error));
    run_prompt(server, call, std::move(request), [&server, call, tenant, id](const Done& done) {
      show_session(
          server, call, tenant, id,
          {{"cached_tokens", done.cached_tokens}, {"computed_tokens", done.computed_tokens}});
    });
  });
}

void delete_session(Server& server, std::shared_ptr<Call> call) {
  struct Gone {
    Result<Session> session;
  };
  const bool dry_run = call->request().parameter("dry_run").value_or("") == "true";
  server.with_engine(
      call,
      [&server, tenant = session_tenant(*call), id = call->arguments.front(),
       dry_run](EngineView& e) -> Gone {
        Sessions& sessions = server.service().sessions();
        Gone gone{dry_run ? sessions.find(tenant, id) : sessions.remove(tenant, id)};
        if (gone.session.ok() && !dry_run && gone.session.value().lease)
          (void)e.runtime.cache().release(*gone.session.value().lease);
        return gone;
      },
      [call, dry_run](const Gone& gone) {
        if (!gone.session.ok()) return call->refuse(session_error(gone.session.error()));
        const Session& s = gone.session.value();
        Json shown{{"id", s.id}, {"tokens", s.tokens.size()}, {"deleted", !dry_run}};
        if (dry_run) shown["dry_run"] = true;
        call->respond(shown);
      });
}

void post_session_fork(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const std::string to = f.text("id", kSessionNameMax).value_or("");
    const auto at = f.integer("at_token", 0, 0xffffffff);
    const bool dry_run = f.boolean("dry_run").value_or(false);
    f.refuse_unknown();
    if (const Status fine = check_session_name(to); !fine.ok())
      f.refuse("id", fine.error().message);
    if (f.failed()) return post_refusal(call, f.error());
    const std::string tenant = session_tenant(*call), id = call->arguments.front();
    Sessions& sessions = server.service().sessions();
    const auto at_token =
        at ? std::optional(static_cast<std::uint32_t>(*at)) : std::optional<std::uint32_t>();
    if (dry_run) {
      const Result<Session> from = sessions.find(tenant, id);
      if (!from.ok()) return post_refusal(call, session_error(from.error()));
      if (sessions.policy(tenant, to)) return post_refusal(call, session_exists(to));
      const std::size_t all = from.value().tokens.size();
      return post_answer(call, {{"id", to},
                                {"parent", id},
                                {"tokens", std::min<std::size_t>(at_token.value_or(all), all)},
                                {"dry_run", true}});
    }
    const Result<bool> made = sessions.fork(tenant, id, to, at_token);
    if (!made.ok()) return post_refusal(call, session_error(made.error()));
    if (!made.value()) return post_refusal(call, session_exists(to));
    lease_text(server, call, tenant, to);
  });
}

void post_session_truncate(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const auto at = f.integer("at_token", 0, 0xffffffff);
    const auto last = f.integer("last_turns", 1, 0xffffffff);
    const bool dry_run = f.boolean("dry_run").value_or(false);
    f.refuse_unknown();
    if (at.has_value() == last.has_value()) f.refuse("at_token", "or last_turns: give one of them");
    if (f.failed()) return post_refusal(call, f.error());
    const std::string tenant = session_tenant(*call), id = call->arguments.front();
    Sessions::Rewind to;
    if (at) to.at_token = static_cast<std::uint32_t>(*at);
    if (last) to.last_turns = static_cast<std::uint32_t>(*last);
    const Result<std::uint32_t> left =
        server.service().sessions().truncate(tenant, id, to, dry_run);
    if (!left.ok()) return post_refusal(call, session_error(left.error()));
    if (dry_run)
      return post_answer(call, {{"id", id}, {"tokens", left.value()}, {"dry_run", true}});
    lease_text(server, call, tenant, id);
  });
}

}  // namespace quire
