// Pins: prefixes that stay in the cache until they expire or are let go.
#include <fmt/core.h>

#include <charconv>

#include "server/kv_select.h"
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

Json pin_json(const PinBook::Pin& pin, std::uint64_t number, const LeaseInfo& info,
              Nanoseconds now) {
  return {
      {"id", fmt::format("pin_{}", number)},
      {"node", info.node.hex()},
      {"tokens", info.tokens},
      {"bytes", info.bytes},
      {"tier", "cpu"},
      {"label", pin.label},
      {"expires", info.expires == 0 ? Json() : Json(rfc3339(unix_now_ns() + info.expires - now))}};
}

// Shows the pin as the cache has it now; forgets it when the cache has.
void show_pin(Server& server, std::shared_ptr<Call> call, std::uint64_t number, int status) {
  const auto pin = server.pins().find(number, call->caller);
  if (!pin) return call->refuse(not_found(fmt::format("there is no pin_{}", number)));
  server.with_engine(
      call,
      [number](EngineView& e) {
        return Seen{e.runtime.cache().lease_info(LeaseId{number}), e.now};
      },
      [&server, call, number, pin = *pin, status](const Seen& seen) {
        if (!seen.info.ok()) {
          server.pins().remove(number);
          return call->refuse(not_found(fmt::format("pin_{} has expired", number)));
        }
        call->respond(pin_json(pin, number, seen.info.value(), seen.now), status);
      });
}

// Leases what is cached of the prompt; nothing is computed.
Result<LeaseId> lease_cached(EngineView& e, const std::vector<TokenId>& tokens,
                             const std::vector<BlockKey>& keys, const KvPolicy& policy,
                             Nanoseconds ttl) {
  KvCache& cache = e.runtime.cache();
  TRY(const RootId root, e.runtime.tenant_root(policy.tenant, policy.storage.get()));
  const std::uint32_t p = e.runtime.geometry().tokens_per_block;
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
  return cache.lease(s, {.ttl = ttl, .pin = true});
}

// The tokens from the root to this node.
Result<std::vector<TokenId>> path_tokens(const KvCache& cache, std::string_view hex) {
  TRY(const BlockKey node, find_node(cache, hex));
  struct Step {
    BlockKey parent;
    std::span<const TokenId> tokens;  // the cache stands still meanwhile
  };
  std::unordered_map<BlockKey, Step, BlockKeyHash> steps;
  cache.tree([&](const NodeInfo& n) { steps[n.key] = {n.parent, n.tokens}; });
  std::vector<std::span<const TokenId>> path;
  for (auto at = steps.find(node); at != steps.end(); at = steps.find(at->second.parent))
    path.push_back(at->second.tokens);
  std::vector<TokenId> tokens;
  for (auto part = path.rbegin(); part != path.rend(); ++part)
    tokens.insert(tokens.end(), part->begin(), part->end());
  return tokens;
}

void keep_pin(Server& server, const std::shared_ptr<Call>& call, LeaseId id, std::string label) {
  const auto number = static_cast<std::uint64_t>(id);
  server.pins().add(number, {std::move(label), call->caller.tenant});
  show_pin(server, call, number, 200);
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

    const auto kept = [&server, call, label](const Result<LeaseId>& lease) {
      if (!lease.ok()) {
        ApiError error = pin_error(lease.error());
        if (lease.error().code == Code::not_found) error.code = "not_cached";
        return call->refuse(error);
      }
      keep_pin(server, call, lease.value(), label);
    };
    if (node) {
      if (!call->caller.admin)
        return post_refusal(call, forbidden("pinning a node needs an admin key"));
      return server.with_engine(
          call,
          [node = *node, ttl](EngineView& e) -> Result<LeaseId> {
            TRY(std::vector<TokenId> tokens, path_tokens(e.runtime.cache(), node));
            return lease_cached(e, tokens, {}, {}, ttl);
          },
          kept);
    }
    GenerationRequest asked;
    Prompt prompt;
    if (auto error = named_prompt(server, *call, body, asked, prompt))
      return post_refusal(call, std::move(*error));
    if (prefill) {
      Request request = make_request(asked, prompt, server.runtime(), call->id);
      request.kv.retention.push_back({.ttl = ttl, .pin = true});
      return run_prompt(server, call, std::move(request), [&server, call, label](const Done& d) {
        if (d.leases.empty())
          return call->refuse(
              pin_error({Code::exhausted,
                         d.lease_problem.empty() ? "nothing could be pinned" : d.lease_problem}));
        keep_pin(server, call, d.leases.back(), label);
      });
    }
    auto keys = server.service().block_keys(prompt.tokens, asked.kv.policy);
    server.with_engine(
        call,
        [tokens = prompt.tokens, keys, policy = asked.kv.policy, ttl](EngineView& e) {
          return lease_cached(e, tokens, keys, policy, ttl);
        },
        kept);
  });
}

void get_pins(Server& server, std::shared_ptr<Call> call) {
  const auto pins = server.pins().all(call->caller);
  struct All {
    std::vector<Seen> seen;
  };
  server.with_engine(
      call,
      [pins](EngineView& e) {
        All all;
        for (const auto& [number, pin] : pins)
          all.seen.push_back({e.runtime.cache().lease_info(LeaseId{number}), e.now});
        return all;
      },
      [&server, call, pins](const All& all) {
        Json data = Json::array();
        for (std::size_t i = 0; i < pins.size(); ++i) {
          const auto& [number, pin] = pins[i];
          if (all.seen[i].info.ok())
            data.push_back(pin_json(pin, number, all.seen[i].info.value(), all.seen[i].now));
          else
            server.pins().remove(number);
        }
        const Json last = data.empty() ? Json() : data.back()["id"];
        call->respond({{"data", std::move(data)}, {"has_more", false}, {"last_id", last}});
      });
}

void get_pin(Server& server, std::shared_ptr<Call> call) {
  const auto number = pin_number(call->arguments.front());
  if (!number) return call->refuse(not_found("there is no " + call->arguments.front()));
  show_pin(server, call, *number, 200);
}

void patch_pin(Server& server, std::shared_ptr<Call> call) {
  server.with_json(call, [&server, call](const Json& body) {
    Fields f(body);
    const auto ttl = f.duration("ttl");
    const auto number = pin_number(call->arguments.front());
    if (!ttl) f.refuse("ttl", "is required", "missing_required_parameter");
    if (f.failed()) return post_refusal(call, f.error());
    if (!number || !server.pins().find(*number, call->caller))
      return post_refusal(call, not_found("there is no " + call->arguments.front()));
    server.with_engine(
        call,
        [number = *number, ttl = *ttl](EngineView& e) {
          return e.runtime.cache().extend(LeaseId{number}, ttl);
        },
        [&server, call, number = *number](const Status& done) {
          if (!done.ok()) return call->refuse(not_found(done.error().message));
          show_pin(server, call, number, 200);
        });
  });
}

void delete_pin(Server& server, std::shared_ptr<Call> call) {
  const auto number = pin_number(call->arguments.front());
  if (!number || !server.pins().find(*number, call->caller))
    return call->refuse(not_found("there is no " + call->arguments.front()));
  server.pins().remove(*number);
  server.with_engine(
      call,
      [number = *number](EngineView& e) { return e.runtime.cache().release(LeaseId{number}); },
      [call](const Status& done) {
        if (!done.ok()) return call->refuse(not_found(done.error().message));
        call->respond({{"id", call->arguments.front()}, {"deleted", true}});
      });
}

}  // namespace quire
