// Pins and leases: prefixes that stay in the cache until they expire or are released. Generation
// requests ask for them (kv.retention), and so do the routes here. The cache knows which tenant a
// lease is of.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "server/kv_select.h"
#include "server/kv_sessions.h"
#include "server/prompt_run.h"
#include "server/routes.h"

namespace quire {
namespace {

ApiError pin_error(const Error& error) {
  if (error.code == Code::exhausted)
    return {.status = 429,
            .message = error.message,
            .type = "rate_limit_error",
            .code = "pin_budget_exceeded",
            .retry_after_s = 1};
  return from_error(error);
}

std::optional<std::uint64_t> pin_number(std::string_view id) {
  if (!id.starts_with("pin_")) return std::nullopt;
  id.remove_prefix(4);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  if (error != std::errc() || end != id.data() + id.size()) return std::nullopt;
  return number;
}

struct Seen {
  Result<LeaseInfo> info;
  Nanoseconds now = 0;
};

std::optional<std::string> tenant_seen_by(const Call& call) {
  if (call.caller.admin) return std::nullopt;  // all of them
  return call.caller.tenant;
}

bool may_see(const Caller& caller, const LeaseInfo& lease) {
  return caller.admin || caller.tenant == lease.tenant;
}

Json lease_json(const LeaseInfo& info, Nanoseconds now) {
  return {
      {"id", fmt::format("pin_{}", static_cast<std::uint64_t>(info.id))},
      {"node", info.node.hex()},
      {"tokens", info.tokens},
      {"bytes", info.bytes},
      {"tier", "cpu"},
      {"tenant", info.tenant},
      {"pin", info.pin},
      {"label", info.label},
      {"expires", info.expires == 0 ? Json() : Json(rfc3339(unix_now_ns() + info.expires - now))}};
}

// The lease, if there is one and the caller may see it. For other callers it does not exist.
Result<LeaseInfo> visible_lease(EngineView& e, std::uint64_t number, const Caller& caller) {
  TRY(LeaseInfo info, e.runtime.cache().lease_info(LeaseId{number}));
  if (!may_see(caller, info))
    return Error{Code::not_found, fmt::format("there is no pin_{}", number)};
  return info;
}

// Does something with a lease on the engine thread, and shows it as it is then.
template <class F>
void with_lease(Server& server, std::shared_ptr<Call> call, F change) {
  const auto number = pin_number(call->arguments.front());
  if (!number) return post_refusal(call, not_found("there is no " + call->arguments.front()));
  server.with_engine(
      call,
      [number = *number, caller = call->caller, change](EngineView& e) -> Seen {
        Result<LeaseInfo> info = visible_lease(e, number, caller);
        if (!info.ok()) return {std::move(info), e.now};
        if (const Status done = change(e.runtime.cache(), LeaseId{number}); !done.ok())
          return {done.error(), e.now};
        Result<LeaseInfo> after = e.runtime.cache().lease_info(LeaseId{number});
        return {after.ok() ? std::move(after) : std::move(info), e.now};
      },
      [call](const Seen& seen) {
        if (!seen.info.ok()) return call->refuse(not_found(seen.info.error().message));
        Json shown = lease_json(seen.info.value(), seen.now);
        if (call->request().method == "DELETE") shown["deleted"] = true;
        call->respond(shown);
      });
}

// Leases what is cached of the prompt; nothing is computed.
Result<LeaseId> lease_cached(KvCache& cache, RootId root, const std::vector<TokenId>& tokens,
                             const std::vector<BlockKey>& keys, const LeaseRequest& request) {
  const std::uint32_t p = cache.geometry(root).tokens_per_block;
  const Attached found = cache.lookup(root, tokens, keys);
  const std::uint32_t whole = found.tokens / p * p;
  // The last token of a prompt is never served, so the blocks of an exact multiple end before it.
  if (whole == 0 || whole + p < tokens.size())
    return Error{Code::not_found,
                 fmt::format("{} of {} tokens are cached; prefill: true computes the rest", whole,
                             tokens.size())};
  TRY(Sequence s, cache.open({.root = root,
                              .token_capacity = static_cast<std::uint32_t>(tokens.size()) + 1,
                              .publish = false}));
  cache.attach(s, tokens, keys);
  return cache.lease(s, request);
}

// The path from the root to a node; of one tenant, or any.
struct NodePath {
  RootId root{};
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
};
Result<NodePath> path_to(const KvCache& cache, std::string_view hex,
                         const std::optional<std::string>& tenant) {
  TRY(const BlockKey node, find_node(cache, hex, tenant));
  struct Step {
    BlockKey parent;
    RootId root;
    std::span<const TokenId> tokens;  // the cache stands still meanwhile
  };
  std::unordered_map<BlockKey, Step, BlockKeyHash> steps;
  cache.tree([&](const NodeInfo& n) {
    if (!tenant || n.tenant == *tenant) steps[n.key] = {n.parent, n.root, n.tokens};
  });
  std::vector<decltype(steps)::const_iterator> up;
  for (auto at = steps.find(node); at != steps.end(); at = steps.find(at->second.parent))
    up.push_back(at);
  NodePath path;
  for (auto at = up.rbegin(); at != up.rend(); ++at) {
    const auto& [key, step] = **at;
    path.root = step.root;
    path.keys.push_back(key);
    path.tokens.insert(path.tokens.end(), step.tokens.begin(), step.tokens.end());
  }
  path.tokens.push_back(0);  // the last token is never served
  return path;
}

Result<LeaseId> lease_node(KvCache& cache, std::string_view hex,
                           const std::optional<std::string>& tenant, const LeaseRequest& request) {
  TRY(const NodePath path, path_to(cache, hex, tenant));
  return lease_cached(cache, path.root, path.tokens, path.keys, request);
}

void show_made(Server& server, const std::shared_ptr<Call>& call, LeaseId id) {
  server.with_engine(
      call,
      [id](EngineView& e) {
        return Seen{e.runtime.cache().lease_info(id), e.now};
      },
      [call](const Seen& seen) {
        if (!seen.info.ok()) return call->refuse(not_found(seen.info.error().message));
        call->respond(lease_json(seen.info.value(), seen.now));
      });
}

}  // namespace

void post_pins(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const Nanoseconds ttl = f.duration("ttl").value_or(0);
    const std::string label = f.text("label", 256).value_or("");
    const bool prefill = f.boolean("prefill").value_or(false);
    if (const auto tier = f.text("tier", 16); tier && *tier != "cpu")
      f.refuse("tier", "must be cpu, which is all this server has", "tier_unavailable");
    const auto node = f.text("node", 64);
    if (node && node->size() < 8) f.refuse("node", "must be at least 8 hex digits");
    if (f.failed()) return post_refusal(call, f.error());

    const auto kept = [&server, call](const Result<LeaseId>& lease) {
      if (!lease.ok()) {
        ApiError error = pin_error(lease.error());
        if (lease.error().code == Code::not_found) error.code = "not_cached";
        return call->refuse(error);
      }
      show_made(server, call, lease.value());
    };
    if (node)
      return server.with_walk(
          call,
          [node = *node, ttl, label, tenant = tenant_seen_by(*call)](EngineView& e) {
            return lease_node(e.runtime.cache(), node, tenant,
                              {.ttl = ttl, .pin = true, .label = label});
          },
          [call, kept](const Result<LeaseId>& lease) {
            call->exchange->post([lease, kept] { kept(lease); });
          });
    GenerationRequest asked;
    Prompt prompt;
    if (auto error = named_prompt(server, *call, body, asked, prompt))
      return post_refusal(call, std::move(*error));
    if (prefill) {
      Request request = make_request(asked, prompt, server.runtime(), call->id);
      if (auto error = claim_session(server, 1, asked, request))
        return post_refusal(call, std::move(*error));
      request.kv.leases.push_back({.ttl = ttl, .pin = true, .label = label});
      return run_prompt(server, call, std::move(request), [&server, call](const Done& d) {
        if (d.leases.empty() || d.leases.back() == LeaseId{})
          return call->refuse(
              pin_error({Code::exhausted,
                         d.lease_problem.empty() ? "nothing could be pinned" : d.lease_problem}));
        show_made(server, call, d.leases.back());
      });
    }
    auto keys = server.service().block_keys(prompt.tokens, asked.kv.policy);
    server.with_engine(
        call,
        [tokens = prompt.tokens, keys, policy = asked.kv.policy, ttl,
         label](EngineView& e) -> Result<LeaseId> {
          const auto root =
              e.runtime.find_root(policy.tenant, policy.storage.get(), policy.root_adapter());
          if (!root) return Error{Code::not_found, "nothing of this tenant is cached"};
          return lease_cached(e.runtime.cache(), *root, tokens, keys,
                              {.ttl = ttl, .pin = true, .label = label});
        },
        kept);
  });
}

void get_pins(Server& server, std::shared_ptr<Call> call) {
  const std::string wanted = call->request().parameter("limit").value_or("100");
  std::size_t limit = 0;
  std::from_chars(wanted.data(), wanted.data() + wanted.size(), limit);
  limit = std::clamp<std::size_t>(limit, 1, 1000);
  const auto after = pin_number(call->request().parameter("after").value_or(""));
  struct All {
    std::vector<LeaseInfo> leases;
    Nanoseconds now = 0;
  };
  server.with_walk(
      call,
      [tenant = tenant_seen_by(*call), after, limit](EngineView& e) {
        return All{e.runtime.cache().leases(tenant, LeaseId{after.value_or(0)}, limit + 1), e.now};
      },
      [call, limit](const All& all) {
        Json data = Json::array();
        for (std::size_t i = 0; i < std::min(limit, all.leases.size()); ++i)
          data.push_back(lease_json(all.leases[i], all.now));
        const Json last = data.empty() ? Json() : data.back()["id"];
        post_answer(call, {{"data", std::move(data)},
                           {"has_more", all.leases.size() > limit},
                           {"last_id", last}});
      });
}

void get_pin(Server& server, std::shared_ptr<Call> call) {
  with_lease(server, call, [](KvCache&, LeaseId) { return Status(); });
}

void patch_pin(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const auto ttl = f.duration("ttl");
    if (!ttl) f.refuse("ttl", "is required", "missing_required_parameter");
    if (f.failed()) return post_refusal(call, f.error());
    with_lease(server, call,
               [ttl = *ttl](KvCache& cache, LeaseId id) { return cache.extend(id, ttl); });
  });
}

void delete_pin(Server& server, std::shared_ptr<Call> call) {
  with_lease(server, call, [](KvCache& cache, LeaseId id) { return cache.release(id); });
}

}  // namespace quire
