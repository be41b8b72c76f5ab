// server/kv_select.h - which cached blocks a call means: {"node"}, {"tokens"}, {"tenant"},
// {"older_than"}, {"session"}, {"all"}.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/service.h"
#include "server/fields.h"
#include "server/server.h"

namespace quire {

struct Selector {
  enum class Kind : std::uint8_t { all, node, tokens, tenant, older_than };
  Kind kind = Kind::all;
  std::string node;            // hex digits, 8 to 64
  std::vector<BlockKey> keys;  // tokens: of the whole blocks, first to last
  std::string tenant;
  Nanoseconds age = 0;
};

// Reads "select" of a body; without one: everything, where that is the default.
Selector parse_selector(Fields& body, Server& server, Call& call, bool all_by_default);

// The nodes that it means, parents before children. Engine thread; walks the cache.
Result<std::vector<BlockKey>> selected_nodes(EngineView& e, const Selector& selector);

// Engine thread. Not found: the node is not cached, or the digits fit several.
// `below`: from the tiers, too; of a part of the cache, what is in memory as well.
Result<Evicted> evict_selected(EngineView& e, const Selector& selector, bool force, bool dry_run,
                               bool below = false);

// The one node whose key begins with these digits; of one tenant, or any.
Result<BlockKey> find_node(const KvCache& cache, std::string_view hex,
                           const std::optional<std::string>& tenant = std::nullopt);

}  // namespace quire
