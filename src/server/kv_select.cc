#include "server/kv_select.h"

#include <algorithm>
#include <unordered_set>

#include "engine/sessions.h"
#include "server/prompt.h"

namespace quire {

Selector parse_selector(Fields& body, Server& server, Call& call, bool all_by_default) {
  Selector out;
  auto f = body.object("select");
  if (!f) {
    if (!all_by_default) body.refuse("select", "is required", "missing_required_parameter");
    return out;
  }
  if (const auto node = f->text("node", 64)) {
    out.kind = Selector::Kind::node;
    out.node = *node;
    f->boolean("subtree");  // what follows a block is of no use without it
    if (node->size() < 8) f->refuse("node", "must be at least 8 hex digits");
  } else if (const Json* tokens = f->find("tokens")) {
    out.kind = Selector::Kind::tokens;
    GenerationRequest asked;
    const ParseContext context = server.parse_context(call);
    KvPolicy policy;
    policy.tenant = call.caller.tenant;
    if (auto error = parse_prompts(*tokens, context.vocabulary, asked); error)
      f->refuse(bad_value(f->path("tokens"), "must be a list of tokens"));
    else
      out.keys = server.service().block_keys(asked.prompts.front().tokens, policy);
    if (!f->failed() && out.keys.empty())
      f->refuse("tokens", "are fewer than a block", "not_cached");
  } else if (const auto tenant = f->text("tenant", 128)) {
    out.kind = Selector::Kind::tenant;
    out.tenant = *tenant;
  } else if (const auto age = f->duration("older_than")) {
    out.kind = Selector::Kind::older_than;
    out.age = *age;
  } else if (const auto session = f->text("session", kSessionNameMax)) {
    out.kind = Selector::Kind::tokens;
    const auto found = server.service().sessions().find(call.caller.tenant, *session);
    if (!found.ok())
      f->refuse(not_found(found.error().message, "session_not_found"));
    else
      out.keys = server.service().block_keys(found.value().tokens, found.value().kv);
    if (!f->failed() && out.keys.empty())
      f->refuse("session", "has fewer tokens than a block", "not_cached");
  } else if (f->find("pin")) {
    f->refuse(not_implemented("selecting by pin", f->path("select")));
  } else if (!f->boolean("all").value_or(false)) {
    f->refuse("all", "give node, tokens, session, tenant, older_than or all");
  }
  f->refuse_unknown();
  return out;
}

Result<BlockKey> find_node(const KvCache& cache, std::string_view hex,
                           const std::optional<std::string>& tenant) {
  std::vector<BlockKey> found;
  std::string wanted(hex);
  std::ranges::transform(wanted, wanted.begin(),
                         [](char c) { return c >= 'A' && c <= 'F' ? char(c + 32) : c; });
  // Most keys differ in their first digit, and spelling all 64 takes long.
  const auto begins = [&](const BlockKey& key) {
    const auto first = static_cast<unsigned>(key.bytes[0]) >> 4;
    return !wanted.empty() && wanted[0] == "0123456789abcdef"[first] &&
           key.hex().starts_with(wanted);
  };
  cache.tree([&](const NodeInfo& n) {
    if ((!tenant || n.tenant == *tenant) && found.size() < 2 && begins(n.key))
      found.push_back(n.key);
  });
  if (found.empty()) return Error{Code::not_found, "no cached node begins with " + wanted};
  if (found.size() > 1) return Error{Code::invalid, "several nodes begin with " + wanted};
  return found.front();
}

Result<std::vector<BlockKey>> selected_nodes(EngineView& e, const Selector& selector) {
  const KvCache& cache = e.runtime.cache();
  std::vector<BlockKey> nodes;
  // What tokens name is the way to their last block; a node comes with all that follows it.
  if (selector.kind == Selector::Kind::tokens) {
    const std::unordered_set<BlockKey, BlockKeyHash> wanted(selector.keys.begin(),
                                                            selector.keys.end());
    cache.tree([&](const NodeInfo& n) {
      if (wanted.contains(n.key)) nodes.push_back(n.key);
    });
  } else {
    BlockKey node;
    if (selector.kind == Selector::Kind::node) {
      TRY(node, find_node(cache, selector.node));
    }
    std::unordered_set<BlockKey, BlockKeyHash> inside;
    cache.tree([&](const NodeInfo& n) {
      const bool named =
          selector.kind == Selector::Kind::all || n.key == node ||
          (selector.kind == Selector::Kind::tenant && n.tenant == selector.tenant) ||
          (selector.kind == Selector::Kind::older_than && n.last_used < e.now - selector.age);
      if (!named && !inside.contains(n.parent)) return;
      inside.insert(n.key);
      nodes.push_back(n.key);
    });
  }
  if (nodes.empty()) return Error{Code::not_found, "nothing of it is cached"};
  return nodes;
}

Result<Evicted> evict_selected(EngineView& e, const Selector& selector, bool force, bool dry_run,
                               bool below) {
  KvCache& cache = e.runtime.cache();
  TierLink* const tiers = below && !dry_run ? e.runtime.tiers() : nullptr;
  if (selector.kind == Selector::Kind::all) {
    if (!dry_run) e.drop_snapshots();
    if (tiers) tiers->clear();
    return cache.clear(force, dry_run);
  }
  BlockKey node;
  if (selector.kind == Selector::Kind::node) {
    TRY(node, find_node(cache, selector.node));
  } else if (selector.kind == Selector::Kind::tokens) {
    node = selector.keys.back();
  } else if (selector.kind == Selector::Kind::tenant) {
    if (!dry_run) e.drop_snapshots();
  }
  std::unordered_set<BlockKey, BlockKeyHash> selected;
  std::vector<BlockKey> tops;
  cache.tree([&](const NodeInfo& n) {
    const bool inside = selected.contains(n.parent);
    const bool named =
        (selector.kind == Selector::Kind::tenant && n.tenant == selector.tenant) ||
        (selector.kind == Selector::Kind::older_than && n.last_used < e.now - selector.age) ||
        n.key == node;
    if (!inside && !named) return;
    selected.insert(n.key);
    if (!inside) tops.push_back(n.key);
  });
  if (tops.empty() && selector.kind == Selector::Kind::tokens)
    return Error{Code::not_found, "these tokens are not cached"};
  if (tiers) tiers->erase({selected.begin(), selected.end()});
  Evicted sum;
  for (const BlockKey& key : tops) {
    const auto done = cache.evict(key, force, dry_run);
    if (!done.ok()) continue;  // went with one of the others
    sum.blocks += done.value().blocks;
    sum.bytes += done.value().bytes;
    sum.in_use += done.value().in_use;
    sum.pinned += done.value().pinned;
  }
  return sum;
}

}  // namespace quire
