// Cached text: what others were told after the same tokens. The prefix index knows it.
#include "engine/draft/cached.h"

#include "engine/request.h"
#include "kv/cache.h"

namespace quire {
namespace {

class CachedSource final : public DraftSource {
 public:
  explicit CachedSource(const KvCache& cache) : cache_(cache) {}

  std::unique_ptr<DraftSource> fork() const override {
    return std::make_unique<CachedSource>(cache_);
  }
  Guess guess(const Sequence& s, std::span<const TokenId> known, std::uint32_t count,
              std::vector<TokenId>& tokens) override {
    return {cache_.continue_text(s, known, count, tokens)};
  }

 private:
  const KvCache& cache_;
};

}  // namespace

std::unique_ptr<DraftSource> make_cached(const DraftScene& scene) {
  return scene.request.kv.reuse ? std::make_unique<CachedSource>(scene.cache) : nullptr;
}

}  // namespace quire
