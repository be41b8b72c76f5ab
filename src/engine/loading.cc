#include "engine/loading.h"

#include <algorithm>

#include "kv/layout.h"
#include "kv/planted.h"
#include "kv/tier/block_segments.h"

namespace quire {
namespace {

// Of one prompt at a time. A tier serves a batch as a whole, so others wait for this much.
constexpr std::uint64_t kInFlightBytes = 16 << 20, kReadBytes = 4 << 20;
constexpr std::uint32_t kRowsAtLeast = 128;  // of a step, where blocks are on their way

}  // namespace

std::shared_ptr<const PromptRecords> prompt_records(const KeySecret& secret,
                                                    const Geometry& geometry,
                                                    std::span<const BlockKey> keys,
                                                    std::span<const TokenId> prompt) {
  auto made = std::make_shared<PromptRecords>();
  made->tokens_per_block = geometry.tokens_per_block;
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
    const LayerGroup& group = geometry.groups[g];
    if (group.kind == GroupKind::state) return nullptr;
    made->column.push_back(group.open_only() ? PromptRecords::kNone : made->columns++);
    made->segments.push_back(group.open_only() ? std::vector<RecordSegment>()
                                               : TierLink::segments(geometry, g));
  }
  const Digest layout = layout_digest(geometry);
  for (std::size_t block = 0; block < keys.size(); ++block)
    for (std::uint32_t g = 0; g < made->groups(); ++g) {
      if (made->column[g] == PromptRecords::kNone) continue;
      auto of = std::make_shared<const RecordIdentity>(TierLink::identity(
          secret, keys[block], layout,
          prompt.subspan(block * made->tokens_per_block, made->tokens_per_block), g));
      made->names.push_back(of->name);
      made->identities.push_back(std::move(of));
    }
  return made;
}

void Stored::answer(TierPlace from, std::span<const std::uint8_t> there) {
  --unanswered;
  known = true;
  for (std::size_t i = 0; i < there.size(); ++i)
    if (there[i] != 0) place[i] = std::min(place[i], from);
}

bool Stored::all() const {
  return unanswered == 0 || (known && std::ranges::find(place, kNowhere) == place.end());
}

struct Loading::Blocks {
  std::uint32_t first = 0;
  std::vector<Block> all;
  std::uint64_t in_flight = 0;  // bytes
  std::uint64_t ended = 0, failed = 0;
  bool given_up = false;

  // A read of this block has ended.
  void end_part(std::uint32_t block, TierPlace place, TierOutcome outcome, TierLink& link) {
    Block& b = all[block - first];
    b.spoilt |= outcome != TierOutcome::ok && !planted(Bug::adopt_failed);
    if (--b.parts > 0) return;
    ++ended;
    if (b.spoilt) {
      ++failed;
      link.load_failed(place);
    }
    if (b.spoilt || given_up || b.state == State::taken) b.room = {};
    if (b.state == State::coming) b.state = b.spoilt ? State::failed : State::there;
  }
};

Loading::Loading(TierLink& link, KvCache& cache, std::shared_ptr<const PromptRecords> records,
                 std::vector<TierPlace> places, const Plan& plan, std::string tenant,
                 Nanoseconds now)
    : link_(link),
      cache_(cache),
      records_(std::move(records)),
      places_(std::move(places)),
      plan_(plan),
      tenant_(std::move(tenant)),
      tokens_per_block_(records_->tokens_per_block),
      blocks_(std::make_shared<Blocks>()),
      next_(plan.end),
      began_(now),
      progress_(now) {
  blocks_->first = plan.first;
  blocks_->all.resize(plan.end - plan.first);
}

Loading::~Loading() {
  blocks_->given_up = true;
  for (Block& b : blocks_->all)
    if (b.parts == 0 || planted(Bug::free_while_read)) b.room = {};
}

Loading::State Loading::state(std::uint32_t block) const {
  return block < plan_.first || block >= plan_.end ? State::failed
                                                   : blocks_->all[block - blocks_->first].state;
}

bool Loading::failed() const { return blocks_->failed > 0; }

// Rooms for all groups that the sequence wants of a block.
bool Loading::land(const Sequence& s, std::uint32_t block) {
  Block& b = blocks_->all[block - blocks_->first];
  for (std::uint32_t g = 0; g < records_->groups(); ++g) {
    if (!cache_.wants(s, g, block, plan_.end * tokens_per_block_)) continue;
    std::optional<Landing> room = cache_.land(s, g);
    if (!room) {
      b.room = {};
      return false;
    }
    b.room[g] = std::move(*room);
  }
  return true;
}

// From the last block to the first, as far as computing has not come.
void Loading::ask(const Sequence& s) {
  while (next_ > std::max(plan_.first, place(s)) && blocks_->in_flight < kInFlightBytes) {
    std::vector<SegmentRead> reads;
    std::vector<std::pair<std::uint32_t, TierPlace>> owners;
    std::uint64_t bytes = 0;
    while (next_ > std::max(plan_.first, place(s)) && bytes < kReadBytes) {
      const std::uint32_t block = next_ - 1;
      if (!land(s, block)) {  // no room: what is left is computed
        plan_.first = next_;
        break;
      }
      --next_;
      Block& b = blocks_->all[block - blocks_->first];
      b.state = State::coming;
      for (std::uint32_t g = 0; g < records_->groups(); ++g) {
        if (b.room[g].empty()) continue;
        const std::size_t record = records_->at(block, g);
        const TierPlace place = places_[record];
        b.remote |= link_.traits(place).shared;
        std::uint32_t number = 0;
        for (const std::span<std::byte> part :
             cut_block<std::byte>(records_->segments[g], b.room[g].bytes())) {
          reads.push_back({records_->identities[record], number++, part, tenant_, place});
          owners.emplace_back(block, place);
          bytes += part.size();
          b.bytes += part.size();
          ++b.parts;
        }
      }
    }
    if (reads.empty()) return;
    blocks_->in_flight += bytes;
    link_.read(reads, [blocks = blocks_, owners = std::move(owners), bytes, link = &link_](
                          std::span<const ReadEnd> ends, bool last) {
      for (const ReadEnd& e : ends)
        blocks->end_part(owners[e.read].first, owners[e.read].second, e.outcome, *link);
      if (last) blocks->in_flight -= bytes;
    });
  }
}

// The run of blocks that are there, from where the sequence is.
void Loading::take(Sequence& s, Nanoseconds now) {
  const std::uint32_t from = place(s);
  std::uint32_t to = from;
  while (state(to) == State::there ||
         (planted(Bug::adopt_before_arrival) && state(to) == State::coming))
    ++to;
  if (to == from) return;
  std::vector<LandedBlock> run;
  for (std::uint32_t b = from; b < to; ++b)
    run.push_back(std::move(blocks_->all[b - blocks_->first].room));
  const std::uint32_t before = s.length();
  note(from, from + cache_.adopt(s, from, run));
  for (std::uint32_t b = from; b < to; ++b) {
    Block& taken = blocks_->all[b - blocks_->first];
    taken.state = State::taken;
    if (!taken.remote) continue;
    remote_ += (b + 1) * tokens_per_block_ - std::max(before, b * tokens_per_block_);
    for (std::uint32_t g = 0; plan_.copies && g < records_->groups(); ++g)
      if (records_->column[g] != PromptRecords::kNone)
        cache_.not_below(records_->identities[records_->at(b, g)]->key, g);
  }
  adopted_ += s.length() - before;
  progress_ = now;
}

// One record for neighbours that came from the same kind of place.
void Loading::note(std::uint32_t from, std::uint32_t to) {
  const auto block = [&](std::uint32_t b) -> const Block& {
    return blocks_->all[b - blocks_->first];
  };
  for (std::uint32_t b = from; b < to;) {
    JournalRecord moved{.request = plan_.request,
                        .extra = block(b).remote ? kMovedUpShared : kMovedUp,
                        .block = b,
                        .reason = Reason::moved};
    const bool remote = block(b).remote;
    for (; b < to && block(b).remote == remote; ++b) {
      moved.bytes += block(b).bytes;
      moved.tokens += tokens_per_block_;
      moved.key = records_->identities[std::size_t{b} * records_->columns]->key.prefix();
    }
    cache_.note(moved);
  }
}

void Loading::go_on(Sequence& s, Nanoseconds now) {
  // What was computed meanwhile need not come.
  for (std::uint32_t b = plan_.first; b < std::min(place(s), plan_.end); ++b) {
    Block& passed = blocks_->all[b - blocks_->first];
    if (passed.state == State::taken) continue;
    if (passed.parts == 0) passed.room = {};
    passed.state = State::taken;
  }
  if (blocks_->ended > seen_) {
    seen_ = blocks_->ended;
    progress_ = now;
  }
  take(s, now);
  ask(s);
}

bool Loading::waits(const Sequence& s, Nanoseconds now) {
  if (!plan_.waits) return false;
  const double come =
      static_cast<double>(blocks_->ended) / static_cast<double>(blocks_->all.size());
  const auto earned = static_cast<Nanoseconds>(come * static_cast<double>(plan_.computing) / 2);
  if (now - (plan_.computing > 0 ? began_ : progress_) > plan_.patience + earned)
    plan_.waits = false;
  if (!plan_.waits) return false;
  const State next = state(place(s));
  return next == State::waiting || next == State::coming;
}

// Up to the first block that is there or on its way. Steps of few rows are slow, so a block that is on
// its way ends none before it has some rows; a block that is late is computed.
std::uint32_t Loading::rows(const Sequence& s) const {
  const auto computed = [&](std::uint32_t block) {
    const State at = state(block);
    return at == State::coming ? block * tokens_per_block_ - s.length() < kRowsAtLeast
                               : at != State::there;
  };
  std::uint32_t end = place(s) + 1;
  while (end < plan_.end && computed(end)) ++end;
  return end == plan_.end ? 0xffffffffu : end * tokens_per_block_ - s.length();
}

bool Loading::over(const Sequence& s) const {
  for (std::uint32_t b = std::max(place(s), plan_.first); b < plan_.end; ++b)
    if (const State at = state(b); at != State::failed && at != State::taken) return false;
  return true;
}

}  // namespace quire
