#include "engine/spilling.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/loading.h"
#include "engine/stepper.h"
#include "kv/below.h"
#include "kv/layout.h"

namespace quire {
namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;
constexpr Nanoseconds kWriteAgain = kSecond / 10;  // after a tier did not take a block
constexpr Nanoseconds kWritesMax = 10 * kSecond;   // without a block that was taken
constexpr Nanoseconds kLookMax = 2 * kSecond;      // for what tiers still have
constexpr std::uint32_t kStallsMax = 3;            // in a row
constexpr std::uint32_t kLossesMax = 4;            // of each block, on average

}  // namespace

SpillMemory spill_memory(const Runtime& runtime, const KvPolicy& policy) {
  return {.resident_bytes = policy.resident,
          .cache_bytes = runtime.kv_cache_bytes(),
          .memory_page = runtime.memory_page(),
          .step_tokens = runtime.executor().traits().rows_max,
          .window_tokens = runtime.executor().traits().cold_tokens};
}

Spilling::Spilling(Runtime& runtime, const SpillShape& shape, RootId root, std::string tenant)
    : runtime_(runtime),
      shape_(shape),
      root_(root),
      tenant_(std::move(tenant)),
      geometry_(runtime.cache().geometry(root)),
      layout_(layout_digest(geometry_)),
      tokens_(geometry_.tokens_per_block),
      blocks_(std::make_shared<Blocks>()),
      reader_(runtime.cache(), *runtime.tiers(), runtime.clock(), geometry_, shape, tenant_,
              blocks_->source) {
  for (std::uint32_t g = 0; g < geometry_.groups.size(); ++g)
    rewinds_ &= g == shape_.group || geometry_.groups[g].open_only();
}

Spilling::~Spilling() = default;

std::unique_ptr<Program> Spilling::fork() const {
  return std::make_unique<Spilling>(runtime_, shape_, root_, tenant_);
}

void Spilling::know(std::uint32_t blocks) {
  while (blocks_->source.size() < blocks) blocks_->source.emplace_back();
  blocks_->writing.resize(blocks_->source.size());
}

// Blocks up to the first that no tier has are cold from now on.
std::optional<std::uint32_t> Spilling::take_stored(Stepper&, Sequence& s,
                                                   const PromptRecords& records,
                                                   std::span<const TierPlace> places) {
  know(records.blocks());
  for (std::uint32_t b = 0; b < records.blocks(); ++b) {
    const std::size_t at = records.at(b, shape_.group);
    blocks_->source[b] = {records.identities[at], places[at]};
  }
  const std::uint32_t before = s.length();
  adopt(s);
  return s.length() - before;
}

// Tokens that are known, and whose blocks are stored, become cold blocks of the sequence.
bool Spilling::adopt(Sequence& s) {
  KvCache& cache = runtime_.cache();
  const std::uint32_t limit = cache.serve_limit(s) / tokens_;
  std::uint32_t end = whole(s);
  while (end < limit && stored(end)) ++end;
  if (end == whole(s) || end * tokens_ <= s.length() || !rewinds_) return true;
  for (std::uint32_t b = cache.cold_blocks(s, shape_.group); b < whole(s); ++b)
    if (!stored(b)) return false;  // cold blocks are the first ones: wait until it is written
  cache.adopt_cold(s, end);
  reader_.set_blocks(end);
  return true;
}

// Offers every block that is whole and not stored yet.
void Spilling::save(Sequence& s) {
  if (s.faulted()) return;
  KvCache& cache = runtime_.cache();
  const Nanoseconds now = runtime_.clock().now();
  const std::uint32_t end = std::min(whole(s), s.pure_until() / tokens_);
  know(end);
  if (blocks_->refused > 0) {
    refused_at_ = now;
    blocks_->refused = 0;
  }
  if (refused_at_ > 0 && now - refused_at_ < kWriteAgain) return;
  const auto keys = cache.chain_keys(s);
  for (std::uint32_t b = cache.cold_blocks(s, shape_.group); b < end; ++b) {
    ColdSource& source = blocks_->source[b];
    if (source.place != kNowhere || blocks_->writing[b]) continue;
    const OfferedBlock block = cache.offered(s, shape_.group, b);
    const auto kept = [blocks = blocks_, b](TierPlace place) {
      blocks->writing[b] = false;
      blocks->source[b].place = place;
      ++(place == kNowhere ? blocks->refused : blocks->kept);
    };
    if (!runtime_.tiers()->keep(block, kept)) return;
    if (!source.of)
      source.of = std::make_shared<const RecordIdentity>(
          TierLink::identity(runtime_.secret(), keys[b], layout_, block.tokens, shape_.group));
    blocks_->writing[b] = true;
  }
}

// Lets the oldest blocks go that are stored, until `keep` are left.
void Spilling::cool(Sequence& s, std::uint32_t keep) {
  KvCache& cache = runtime_.cache();
  const std::uint32_t all = whole(s);
  std::uint32_t cold = cache.cold_blocks(s, shape_.group);
  while (all - cold > keep && stored(cold)) ++cold;
  cache.cool(s, shape_.group, cold);
  reader_.set_blocks(cold);
}

void Spilling::after_step(Stepper&, Sequence& s) {
  stalls_ = 0;
  save(s);
}

Program::Work Spilling::work(Stepper&, Sequence& s, double&) {
  if (!problem_.empty()) return Work::failed;
  if (const auto lost = reader_.take_lost()) return recover(s, *lost);
  if (looking_) {
    if (blocks_->unanswered > 0 && runtime_.clock().now() - waiting_since_ < kLookMax)
      return Work::waits;
    go_back(s);
  }
  save(s);
  cool(s, shape_.kept_blocks());
  if (adopt(s) && whole(s) - reader_.blocks() <= shape_.kept_blocks()) {
    waiting_since_ = 0;
    return Work::none;
  }
  return waits_too_long() ? Work::failed : Work::waits;
}

bool Spilling::waits_too_long() {
  const Nanoseconds now = runtime_.clock().now();
  if (waiting_since_ == 0 || ended_ != blocks_->kept) waiting_since_ = now;
  ended_ = blocks_->kept;
  if (now - waiting_since_ < kWritesMax) return false;
  problem_ = fmt::format(
      "kv.resident: no tier takes the blocks of this sequence; {} of its blocks are stored. Is the "
      "folder of --kv-dir full, or gone?",
      std::ranges::count_if(blocks_->source,
                            [](const ColdSource& b) { return b.place != kNowhere; }));
  return true;
}

// A block could not be read. What tiers still have is asked, all at once.
Program::Work Spilling::recover(Sequence& s, const ColdReader::Lost& lost) {
  if (lost.stalled && ++stalls_ >= kStallsMax)
    problem_ = "kv.resident: a tier does not answer; this sequence cannot go on without it";
  if (lost_blocks_ >= kLossesMax * std::max(whole(s), 16u))
    problem_ = fmt::format(
        "kv.resident: a tier loses blocks of this sequence faster than they are computed again "
        "(tokens from {} on); is --kv-disk too small for it?",
        lost.block * tokens_);
  if (!problem_.empty()) return Work::failed;
  if (!lost.stalled) {
    blocks_->source[lost.block].place = kNowhere;
    ask_tiers(reader_.blocks());
  }
  return Work::waits;
}

void Spilling::ask_tiers(std::uint32_t blocks) {
  TierLink& link = *runtime_.tiers();
  std::vector<RecordName> names;
  for (std::uint32_t b = 0; b < blocks; ++b) {
    names.push_back(blocks_->source[b].of->name);
    blocks_->source[b].place = kNowhere;
  }
  looking_ = true;
  waiting_since_ = runtime_.clock().now();
  blocks_->unanswered += link.tiers();
  for (TierPlace p = 0; p < link.tiers(); ++p)
    link.find(p, names, [p, known = blocks_](std::span<const std::uint8_t> there) {
      --known->unanswered;
      for (std::size_t b = 0; b < there.size(); ++b)
        if (there[b] != 0) known->source[b].place = std::min(known->source[b].place, p);
    });
}

// To the first block that is lost. Those that follow are adopted when it has been computed.
void Spilling::go_back(Sequence& s) {
  looking_ = false;
  waiting_since_ = 0;
  std::uint32_t first = 0, missing = 0;
  for (std::uint32_t b = reader_.blocks(); b-- > 0;)
    if (!stored(b)) first = b, ++missing;
  lost_blocks_ += missing;
  if (missing == 0) return;
  runtime_.cache().lose(s, rewinds_ ? first : 0);
  reader_.set_blocks(std::min(reader_.blocks(), s.length() / tokens_));
}

Status Spilling::before_step(Stepper&, Sequence& s) {
  if (reader_.blocks() == 0 || reader_.lend(s)) return {};
  return Error{Code::exhausted, "the KV cache has no room to bring cold blocks"};
}

// Not past a block that is stored: it will be adopted.
std::uint32_t Spilling::rows_max(std::uint32_t past) const {
  const std::uint32_t first = past / tokens_;
  std::uint32_t end = first + 1;
  while (end < first + shape_.chunk_blocks && !stored(end)) ++end;
  return end * tokens_ - past;
}

void Spilling::reset(Sequence&) {
  reader_.set_blocks(0);
  reader_.let_go();
  waiting_since_ = 0;
}

void Spilling::report(ProgramReport& r) const {
  r.bytes_beside += reader_.ring_bytes();
  r.cold_bytes += reader_.reads().bytes;
  r.cold_hidden_bytes += reader_.reads().hidden;
  r.cold_blocks += reader_.blocks();
  r.lost_blocks += lost_blocks_;
}

}  // namespace quire
