// clairvoyant - whatever is used again last leaves first (Belady). It asks the replay for the
// future, so no server can have it: an upper bound for the others.
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "kv/evict/evict.h"

namespace quire {
namespace {

class Clairvoyant final : public Evictor {
 public:
  explicit Clairvoyant(const EvictOptions& o) : Evictor(o, 1), next_use_(o.next_use) {
    CHECK(next_use_);
  }

 private:
  void enter(std::uint32_t id, const EvictEntry*) override {
    lists_[id].rank = static_cast<double>(next_use_(at(id).key));
    order_.emplace(-lists_[id].rank, id);
  }
  void leave(std::uint32_t id, bool) override { order_.erase({-lists_[id].rank, id}); }
  std::uint32_t choose() override { return order_.begin()->second; }

  std::function<Nanoseconds(std::uint64_t)> next_use_;
  std::set<std::pair<double, std::uint32_t>> order_;
};

}  // namespace

extern const EvictPolicy kEvictClairvoyant;
const EvictPolicy kEvictClairvoyant = {"clairvoyant",
                                       "used again last first; knows the future, for replay only",
                                       [](const EvictOptions& o) -> std::unique_ptr<Evictor> {
                                         return std::make_unique<Clairvoyant>(o);
                                       }};

}  // namespace quire
