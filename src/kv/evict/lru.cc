// lru - the least recently used leaves first.
#include "kv/evict/evict.h"
#include "kv/evict/ladder.h"

namespace quire {
namespace {

class Lru final : public Evictor {
 public:
  explicit Lru(const EvictOptions& o) : Evictor(o, kRungs), ladder_(lists_, 0, kRungs) {}

 private:
  static constexpr std::uint32_t kRungs = 4096;

  void enter(std::uint32_t id, const EvictEntry*) override {
    ladder_.insert(id, static_cast<std::uint64_t>(at(id).last_use));
  }
  void leave(std::uint32_t id, bool) override { ladder_.erase(id); }
  std::uint32_t choose() override { return ladder_.front(); }

  Ladder<LinkedIds<Node>> ladder_;
};

}  // namespace

extern const EvictPolicy kEvictLru;
const EvictPolicy kEvictLru = {
    "lru", "least recently used first",
    [](const EvictOptions& o) -> std::unique_ptr<Evictor> { return std::make_unique<Lru>(o); }};

}  // namespace quire
