#include "sim/alone.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::uint64_t kCacheBytes = std::uint64_t{4} << 20;
constexpr std::uint32_t kUses = 16;

}  // namespace

Alone::Alone(const ToyEngineOptions& opened) : opened_(opened) {
  opened_.cache_bytes = kCacheBytes;
  opened_.draws = false;
  opened_.nodes = ToyEngineOptions{}.nodes;
  opened_.key_bits = ToyEngineOptions{}.key_bits;
  opened_.tiers.clear();
}

void Alone::empty() {
  if (!engine_ || uses_ == kUses) {
    engine_ = std::make_unique<ToyEngine>(opened_, ServiceOptions{});
    uses_ = 0;
  }
  engine_->engine().drop_snapshots();
  engine_->cache().clear(true);
  const CacheStats left = engine_->cache().stats();
  CHECK(left.sequences == 0 && left.cached_blocks == 0 && left.nodes == 0);
}

const AnswerLog& Alone::answers(std::uint64_t ask, std::uint32_t tokens_max,
                                const std::function<Request()>& make) {
  std::shared_ptr<AnswerLog>& log = answers_[{ask, tokens_max}];
  if (log) return *log;
  empty();
  Request r = make();
  log = std::make_shared<AnswerLog>(r.choices);
  const std::uint64_t before = engine_->engine().counters().steps;
  const ToyEngine::Submitted made = engine_->submit(std::move(r), log, JobId{++uses_});
  if (made.failure.kind != FailureKind::none || !engine_->run() || !log->result) {
    fmt::print(stderr, "ask {} does not finish alone: {}\n", ask,
               log->failure ? log->failure->message : made.failure.message);
    std::abort();
  }
  steps_ += engine_->engine().counters().steps - before;
  return *log;
}

}  // namespace quire
