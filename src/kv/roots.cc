// Roots, layouts and sizes of blocks: what a request may bring that was never seen before. Each table
// is bounded. What nobody uses makes way for another: first of the same tenant, if that has its fill;
// then what has nothing cached; then of the tenant that has most.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <tuple>

#include "kv/core.h"
#include "kv/planted.h"

namespace quire {
namespace {

// Compared in full, because different roots may have equal keys.
bool same(const RootIdentity& a, const RootIdentity& b) {
  return a.weights == b.weights && a.adapter == b.adapter && a.layout == b.layout &&
         a.position_scheme == b.position_scheme && a.tokens_per_block == b.tokens_per_block &&
         a.numerics == b.numerics && a.tenant == b.tenant;
}

std::uint32_t root_slot(RootId id) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id));
}

// Of all caches of this process: a model may have seen geometries of several.
std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

Error no_place(std::string_view what, std::uint32_t most) {
  return {Code::exhausted,
          fmt::format("there is no place for another {}: {} are in use; ask again later, or for "
                      "storage that others use too",
                      what, most)};
}

bool uses(const CacheLayout& layout, SizeClass c) {
  for (std::uint32_t g = 0; g < layout.group_count; ++g)
    if (layout.groups[g].size_class == c || layout.groups[g].page_class == c) return true;
  return false;
}

}  // namespace

RootId CacheCore::id_of(std::uint32_t slot) const {
  return static_cast<RootId>(std::uint64_t{roots[slot].generation} << 32 | slot);
}

const CacheCore::Root* CacheCore::find_root(RootId id) const {
  const std::uint32_t slot = root_slot(id);
  return slot < roots.size() && roots[slot].layout && id_of(slot) == id ? &roots[slot] : nullptr;
}

const CacheCore::Root& CacheCore::at(RootId id) const {
  const Root* root = find_root(id);
  CHECK(root != nullptr);
  return *root;
}
CacheCore::Root& CacheCore::at(RootId id) {
  return const_cast<Root&>(static_cast<const CacheCore*>(this)->at(id));
}

void CacheCore::leave_root(RootId id) {
  Root& root = at(id);
  CHECK(root.users > 0);
  --root.users;
  root.last_used = clock.now();
}

RootIdentity CacheCore::whole_identity(const RootIdentity& identity, const Geometry& geometry,
                                       const Digest& layout) const {
  RootIdentity whole = identity;
  whole.layout = layout;
  whole.tokens_per_block = geometry.tokens_per_block;
  if (planted(Bug::drop_tenant)) whole.tenant.clear();
  return whole;
}

std::optional<RootId> CacheCore::find_root(const RootIdentity& whole, const BlockKey& key) const {
  const auto [from, to] = root_slots.equal_range(key);
  for (auto it = from; it != to; ++it)
    if (same(roots[it->second].identity, whole)) return id_of(it->second);
  return std::nullopt;
}

Result<RootId> CacheCore::root(const RootIdentity& identity, const Geometry& geometry) {
  const Digest digest = layout_digest(geometry);
  RootIdentity whole = whole_identity(identity, geometry, digest);
  const BlockKey key = root_key(options.secret, whole);
  if (const std::optional<RootId> known = find_root(whole, key)) {
    at(*known).last_used = clock.now();
    return *known;
  }
  const Tenants::Tenant* owner = store.tenants().find(whole.tenant);
  if (owner && owner->roots >= options.tenant_roots_max &&
      !forget_root(RootsOf::tenant, whole.tenant))
    return no_place("way of storing what this tenant caches", options.tenant_roots_max);
  if (root_slots.size() >= options.roots_max && !forget_root(RootsOf::all, whole.tenant))
    return no_place("tenant or way of storing", options.roots_max);
  TRY(CacheLayout * layout, layout_for(geometry, digest));
  if (free_roots.empty()) {
    free_roots.push_back(static_cast<std::uint32_t>(roots.size()));
    roots.push_back({});
  }
  const std::uint32_t slot = free_roots.back();
  const Result<TenantSlot> tenant = store.tenants().intern(whole.tenant);
  const NodeId node = tenant.ok() ? store.add_root(slot, tenant.value(), *layout) : kNoNode;
  if (node == kNoNode) {
    if (layout->roots == 0)
      std::erase_if(layouts, [&](const auto& l) { return l.get() == layout; });
    if (!tenant.ok()) return tenant.error();
    store.tenants().forget_if_unused(tenant.value());
    return Error{Code::exhausted, "the prefix index is full of what is in use or pinned"};
  }
  free_roots.pop_back();
  ++layout->roots;
  root_slots.emplace(key, slot);
  roots[slot] = {std::move(whole), key, node, layout, roots[slot].generation, 0, clock.now()};
  return id_of(slot);
}

Result<CacheLayout*> CacheCore::layout_for(const Geometry& geometry, const Digest& digest) {
  for (const auto& l : layouts)
    if (l->digest == digest) return l.get();
  if (geometry.tokens_per_block != options.tokens_per_block)
    return Error{Code::invalid,
                 fmt::format("the geometry has blocks of {} tokens, this cache has blocks of {}",
                             geometry.tokens_per_block, options.tokens_per_block)};
  if (geometry.groups.empty() || geometry.groups.size() > kGroupsMax)
    return Error{Code::invalid, fmt::format("a layout has 1 to {} layer groups, this one has {}",
                                            kGroupsMax, geometry.groups.size())};
  if (layouts.size() >= options.layouts_max && !forget_root(RootsOf::lone_layouts, {}))
    return no_place("way of storing", options.layouts_max);
  auto made = std::make_unique<CacheLayout>();
  made->geometry = geometry;
  made->serial = next_serial();
  made->digest = digest;
  made->exact = geometry.exact() && !geometry.sparse();
  for (std::uint32_t i = 0; i < geometry.groups.size(); ++i) {
    const LayerGroup& g = geometry.groups[i];
    if (g.kind == GroupKind::window && g.window == 0)
      return Error{Code::invalid, fmt::format("layer group {} slides, but its window is 0", i)};
    const bool chain = g.kind == GroupKind::full || g.kind == GroupKind::latent;
    const std::size_t bytes = geometry.block_bytes(g);
    if (bytes > arena.memory().reserved_bytes())
      return Error{Code::exhausted, fmt::format("a block of layer group {} has {} bytes, which "
                                                "this cache can never hold",
                                                i, bytes)};
    const std::optional<SizeClass> c = class_for(bytes, *made);
    if (!c) return no_place("size of blocks", options.size_classes_max);
    made->groups[i] = {g.kind, *c, arena.class_bytes(*c), g.sink_blocks, g.open_only(), *c};
    ++made->group_count;
    if (chain) {
      const std::optional<SizeClass> page = class_for(geometry.page_bytes(g), *made);
      if (!page) return no_place("size of blocks", options.size_classes_max);
      made->groups[i].page_class = *page;
    }
    const std::uint32_t bit = 1u << i;
    (g.kind == GroupKind::window || g.kind == GroupKind::recent ? made->windowed
     : chain                                                    ? made->chain
                                                                : made->state) |= bit;
  }
  layouts.push_back(std::move(made));
  needed.resize(arena.class_count());
  return layouts.back().get();
}

std::optional<SizeClass> CacheCore::class_for(std::size_t bytes, const CacheLayout& making) {
  for (;;) {
    if (arena.find_class(bytes) || arena.class_count() < options.size_classes_max) {
      const SizeClass c = arena.size_class(bytes);
      store.add_class(c);
      return c;
    }
    for (std::uint32_t i = 0; i < arena.class_count(); ++i) {
      const SizeClass c{i};
      const bool used = uses(making, c) ||
                        std::ranges::any_of(layouts, [&](const auto& l) { return uses(*l, c); });
      if (!used && arena.recycle_class(c, bytes)) return c;
    }
    if (!forget_root(RootsOf::lone_layouts, {})) return std::nullopt;
  }
}

// Forgets one of these roots that nobody uses, and what it has cached. False: each is in use, or
// something of it was asked to stay.
bool CacheCore::forget_root(RootsOf which, const std::string& tenant) {
  tick();
  std::vector<bool> kept(roots.size());
  for (const Step& step : steps)
    for (std::size_t i = 0; step.live && i < step.items.size(); ++i)
      kept[root_slot(step.items[i].root)] = true;
  for (const Lease& l : leases)
    if (l.live) kept[store.node(l.node).root] = true;

  using Rank = std::tuple<bool, std::size_t, Nanoseconds, std::uint32_t>;  // least goes first
  std::vector<Rank> candidates;
  for (std::uint32_t i = 0; i < roots.size(); ++i) {
    const Root& r = roots[i];
    if (!r.layout || kept[i] || (r.users > 0 && !planted(Bug::forget_used_root))) continue;
    if (which == RootsOf::tenant && r.identity.tenant != tenant) continue;
    if (which == RootsOf::lone_layouts && r.layout->roots > 1) continue;
    candidates.emplace_back(store.index().children(r.node) > 0,
                            roots.size() - store.tenants().at(store.tenant(r.node)).roots,
                            r.last_used, i);
  }
  std::ranges::sort(candidates);
  for (const Rank& candidate : candidates) {
    const std::uint32_t slot = std::get<3>(candidate);
    store.sweep(roots[slot].node, Reason::evicted_capacity, false);
    if (store.index().children(roots[slot].node) > 0) continue;  // a step may still read it
    remove_root(slot);
    return true;
  }
  return false;
}

void CacheCore::remove_root(std::uint32_t slot) {
  Root& r = roots[slot];
  store.remove_root(r.node);
  const auto [from, to] = root_slots.equal_range(r.key);
  root_slots.erase(std::find_if(from, to, [&](const auto& at) { return at.second == slot; }));
  if (--r.layout->roots == 0)
    std::erase_if(layouts, [&](const auto& l) { return l.get() == r.layout; });
  r = {.identity = {},
       .key = {},
       .node = kNoNode,
       .layout = nullptr,
       .generation = r.generation + 1,
       .users = 0,
       .last_used = 0};
  free_roots.push_back(slot);
}

Result<RootId> KvCache::root(const RootIdentity& identity, const Geometry& geometry) {
  core_->tick();
  return core_->root(identity, geometry);
}
std::optional<RootId> KvCache::find_root(const RootIdentity& identity,
                                         const Geometry& geometry) const {
  const RootIdentity whole = core_->whole_identity(identity, geometry, layout_digest(geometry));
  return core_->find_root(whole, quire::root_key(core_->options.secret, whole));
}
bool KvCache::alive(RootId root) const { return core_->find_root(root) != nullptr; }
const Geometry& KvCache::geometry(RootId root) const { return core_->at(root).layout->geometry; }
std::uint64_t KvCache::geometry_serial(RootId root) const { return core_->at(root).layout->serial; }
const BlockKey& KvCache::root_key(RootId root) const { return core_->at(root).key; }

RootHold::RootHold(KvCache& cache, RootId root) : core_(&cache.core()), root_(root) {
  ++core_->at(root).users;
}
RootHold::~RootHold() {
  if (core_) core_->leave_root(root_);
}

}  // namespace quire
