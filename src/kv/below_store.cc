// Blocks are offered to what lies below memory until they are taken.
#include <algorithm>
#include <bit>

#include "kv/prefix_store.h"

namespace quire {

void PrefixStore::offer(NodeId n, std::uint32_t group, Offer why) {
  if (!below_ || !has(n, group)) return;
  const CacheNode& node = nodes_[raw(n)];
  if (node.below >> group & 1 || node.layout->state >> group & 1) return;
  const CachedBlock& held = block(n, group);
  const std::uint32_t tokens = index_.tokens_per_block();
  const bool taken =
      below_->offer(why, {.key = index_.key(n),
                          .layout = *node.layout,
                          .group = group,
                          .tokens = index_.tokens(n),
                          .bytes = {held.bytes(), node.layout->groups[group].bytes},
                          .tenant = tenants_.at(tenant(n)).name,
                          .hits = node.hits,
                          .recompute_ns = cost_.block_ns(tokens, (index_.depth(n) - 1) * tokens)});
  if (taken) set_below(n, group);
}

bool PrefixStore::offer(const BlockKey& key, Offer why) {
  const NodeId n = index_.find(key);
  if (n == kNoNode || !index_.live(n) || index_.is_root(n)) return true;
  for (std::uint32_t g = 0; g < kGroupsMax; ++g) offer(n, g, why);
  return nodes_[raw(n)].below == index_.present(n);
}

void PrefixStore::not_below(const BlockKey& key, std::uint32_t group) {
  const NodeId n = index_.find(key);
  if (n != kNoNode) nodes_[raw(n)].below &= static_cast<std::uint8_t>(~(1u << group));
}

bool PrefixStore::offer_rest(std::uint32_t& place, Offer why) {
  constexpr std::uint32_t kNodesAtOnce = 16;
  const auto end = static_cast<std::uint32_t>(nodes_.size());
  for (std::uint32_t offered = 0; place < end && offered < kNodesAtOnce; ++place) {
    const NodeId n{place};
    if (!index_.live(n) || index_.is_root(n) || nodes_[place].below == index_.present(n)) continue;
    for (std::uint32_t g = 0; g < kGroupsMax; ++g) offer(n, g, why);
    ++offered;
  }
  return place < end;
}

}  // namespace quire
