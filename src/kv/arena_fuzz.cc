// Random work on an arena of three or four classes, compared with a map from address to size.
#include <cstring>
#include <map>

#include "kv/arena.h"

using namespace quire;

namespace {
constexpr std::size_t kPage = 4096;

struct Model {
  std::map<std::size_t, std::pair<std::size_t, std::uint32_t>> live;  // start -> bytes, tag

  void add(std::size_t start, std::size_t bytes, std::uint32_t tag) {
    const auto next = live.lower_bound(start);
    CHECK(next == live.end() || start + bytes <= next->first);
    CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second.first <= start);
    live[start] = {bytes, tag};
  }
};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto owned = std::make_unique<FailingMemory>(
      std::move(reserve_host_memory({.bytes = 64 * kPage, .page_bytes = kPage}).value()));
  FailingMemory& memory = *owned;
  Arena arena(std::move(owned), {.budget_bytes = 16 * kPage, .poison = true});
  const SizeClass classes[] = {arena.size_class(256), arena.size_class(1300),
                               arena.size_class(3000), arena.size_class(9000)};
  Model model;
  const auto release =
      [&](std::map<std::size_t, std::pair<std::size_t, std::uint32_t>>::iterator at) {
        const auto offset = static_cast<ArenaOffset>(at->first / kArenaUnit);
        CHECK(arena.tag(offset) == at->second.second);
        arena.free(offset);
        return model.live.erase(at);
      };
  for (std::size_t i = 0; i + 1 < size; i += 2) {
    const std::uint8_t op = data[i], arg = data[i + 1];
    if (op < 120) {
      const SizeClass c = classes[arg % 4];
      const std::uint64_t room = arena.available(c);
      const std::uint64_t failures = memory.failures();
      if (const auto at = arena.allocate(c, op * 256u + arg)) {
        CHECK(room > 0);
        model.add(static_cast<std::size_t>(*at) * kArenaUnit, arena.class_bytes(c),
                  op * 256u + arg);
        std::memset(arena.at(*at), arg, arena.class_bytes(c));
      } else {
        CHECK(room == 0 || memory.failures() > failures);  // it says no only when it said so before
      }
    } else if (op < 220 && !model.live.empty()) {
      auto at = model.live.begin();
      std::advance(at, arg % model.live.size());
      release(at);
    } else if (op < 230 && !model.live.empty()) {  // empty a slab
      auto at = model.live.begin();
      std::advance(at, arg % model.live.size());
      const SlabId slab = arena.slab_of(static_cast<ArenaOffset>(at->first / kArenaUnit));
      arena.drain(slab);
      if (op & 1) {
        arena.stop_draining(slab);
      } else {
        const std::uint64_t before = memory.committed_bytes();
        const std::uint64_t bytes = arena.slab(slab).page_count * kPage;
        arena.for_each_live(slab, [&](ArenaOffset o) {
          const auto found = model.live.find(static_cast<std::size_t>(o) * kArenaUnit);
          CHECK(found != model.live.end());
          release(found);
        });
        CHECK(memory.committed_bytes() == before - bytes);
      }
    } else if (op < 240) {
      arena.set_budget((arg % 32) * kPage);
    } else if (op < 245) {
      arena.trim();
    } else if (op < 250) {
      memory.fail_after(arg % 4);
    } else {
      memory.never_fail();
    }
    const Status ok = arena.check();
    CHECK(ok.ok());
    std::uint64_t bytes = 0;
    for (const auto& [start, extent] : model.live) bytes += extent.first;
    CHECK(arena.stats().in_use_bytes == bytes);
    CHECK(arena.stats().committed_bytes == memory.committed_bytes());
  }
  while (!model.live.empty()) release(model.live.begin());
  arena.trim();
  CHECK(memory.committed_bytes() == 0);
  return 0;
}
