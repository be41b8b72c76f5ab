// priority - the lowest priority leaves first, whatever its use; among equals the least recently
// used.
#include "kv/evict/ranked.h"

namespace quire {
namespace {
std::uint32_t rank_by_priority(const EvictEntry& e) { return e.priority; }
}  // namespace

extern const EvictPolicy kEvictPriority;
const EvictPolicy kEvictPriority = {"priority", "lowest priority first, then least recently used",
                                    [](const EvictOptions& o) -> std::unique_ptr<Evictor> {
                                      return std::make_unique<Ranked<101, rank_by_priority>>(o);
                                    }};

}  // namespace quire
