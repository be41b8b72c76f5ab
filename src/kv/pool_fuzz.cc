// Random holders of blocks, compared with plain counts per block; every block carries its number in
// its bytes.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "kv/pool.h"

using namespace quire;

namespace {
constexpr std::size_t kPage = 4096;

struct Fenced {
  BlockFence fence;
  BlockId id;
};

struct Listener final : PoolListener {
  std::map<std::uint64_t, int> idle;  // by owner
  void block_idle(BlockId, std::uint64_t owner) override { CHECK(++idle[owner] == 1); }
  void block_busy(BlockId, std::uint64_t owner) override { CHECK(--idle[owner] == 0); }
};

void write(const BlockRef& b, std::uint64_t value) {
  std::memcpy(b.bytes() + 96, &value, sizeof value);
}
std::uint64_t read(const std::byte* bytes) {
  std::uint64_t value;
  std::memcpy(&value, bytes + 96, sizeof value);
  return value;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Arena arena(std::move(reserve_host_memory({.bytes = 64 * kPage, .page_bytes = kPage}).value()),
              {.budget_bytes = 6 * kPage, .poison = true});
  Listener listener;
  BlockPool pool(arena, {.blocks_max = 40, .listener = &listener});
  const SizeClass classes[] = {arena.size_class(512), arena.size_class(1300)};
  {
    std::vector<BlockRef> refs;
    std::vector<CachedBlock> cached;
    std::vector<Fenced> fences;
    std::vector<BlockId> ever;
    std::vector<std::uint64_t> steps;
    std::uint64_t counter = 0;
    std::map<std::uint32_t, std::uint64_t> value;  // by block index
    const auto same = [](BlockId id) { return [id](const auto& h) { return h.id() == id; }; };
    for (std::size_t i = 0; i + 1 < size; i += 2) {
      const std::uint8_t op = data[i], arg = data[i + 1];
      const auto of = [&](auto& v) -> auto& { return v[arg % v.size()]; };
      const auto erase = [&](auto& v) {
        v.erase(v.begin() + static_cast<std::ptrdiff_t>(arg % v.size()));
      };
      if (op < 70) {
        if (BlockRef b = pool.take(classes[arg % 2]); !b.empty()) {
          write(b, ++counter);
          pool.set_owner(b.id(), counter);
          value[b.id().index] = counter;
          ever.push_back(b.id());
          refs.push_back(std::move(b));
        }
      } else if (op < 90 && !refs.empty()) {
        refs.push_back(of(refs).share());
      } else if (op < 140 && !refs.empty()) {
        erase(refs);
      } else if (op < 160 && !refs.empty()) {
        if (!pool.cached(of(refs).id())) cached.push_back(pool.cache(of(refs).id()));
      } else if (op < 175 && !cached.empty()) {
        erase(cached);
      } else if (op < 185 && !cached.empty()) {
        refs.push_back(of(cached).share());
      } else if (op < 195 && !refs.empty()) {
        fences.push_back({pool.fence(of(refs).id()), of(refs).id()});
      } else if (op < 200 && !cached.empty()) {
        fences.push_back({pool.fence(of(cached).id()), of(cached).id()});
      } else if (op < 212 && !fences.empty()) {
        erase(fences);
      } else if (op < 218) {
        if (pool.steps_in_flight() < 2) steps.push_back(pool.submit_step());
      } else if (op < 228 && !steps.empty()) {
        pool.complete_step(steps.front());
        steps.erase(steps.begin());
      } else if (op < 238 && !ever.empty()) {
        const BlockId id = of(ever);
        const bool held = std::any_of(refs.begin(), refs.end(), same(id)) ||
                          std::any_of(cached.begin(), cached.end(), same(id));
        BlockRef b = pool.hold(id);
        CHECK(b.empty() == !held);
      } else if (op < 250 && !refs.empty()) {  // empty a slab: move what may move
        const SlabId slab = arena.slab_of(of(refs).offset());
        arena.drain(slab);
        bool all = true;
        pool.for_each_block(slab,
                            [&](BlockId id) { all = pool.movable(id) && pool.move(id) && all; });
        if (!all) arena.stop_draining(slab);
      } else {
        arena.set_budget((arg % 8) * kPage);
      }
      std::uint64_t referenced = 0, idle = 0, fenced = 0;
      for (const BlockId id : ever) {
        const auto readers =
            static_cast<std::uint32_t>(std::count_if(refs.begin(), refs.end(), same(id)));
        const bool in_index = std::any_of(cached.begin(), cached.end(), same(id));
        const bool fence =
            std::any_of(fences.begin(), fences.end(), [&](const Fenced& f) { return f.id == id; });
        const BlockState state = pool.state(id);
        referenced += readers > 0;
        idle += readers == 0 && in_index && !fence;
        fenced += state == BlockState::fenced;
        CHECK((state == BlockState::referenced) == (readers > 0));
        CHECK((state == BlockState::cached) == (readers == 0 && in_index && !fence));
        if (readers == 0 && fence) CHECK(state == BlockState::fenced);
        if (steps.empty() && readers == 0 && !fence && !in_index) CHECK(!pool.alive(id));
        if (state != BlockState::free) {
          CHECK(pool.readers(id) == readers);
          CHECK(read(arena.at(pool.offset(id))) == value[id.index]);  // its bytes are still its own
          CHECK(listener.idle[pool.owner(id)] == (state == BlockState::cached));
        }
      }
      const Ledger l = pool.ledger();
      CHECK(l.referenced == referenced && l.cached == idle && l.fenced == fenced);
      CHECK(pool.check_ledger().ok());
      if (ever.size() > 60) {
        std::erase_if(ever, [&](BlockId id) { return !pool.alive(id); });
      }
    }
    for (const std::uint64_t step : steps) pool.complete_step(step);
  }
  CHECK(pool.ledger().free == pool.ledger().total);
  return 0;
}
