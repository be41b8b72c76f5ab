#include "lab/speed/decode_batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/random.h"
#include "engine/convert.h"
#include "engine/plan.h"
#include "lab/speed/timing.h"

namespace quire::lab {
namespace {

// Gives a sequence the keys and values of another sequence, under different tokens: it copies the
// bytes into new blocks instead of computing them.
Status copy_context(Runtime& runtime, Sequence& from, Sequence& to, std::uint32_t depth,
                    std::uint64_t salt) {
  const std::vector<TokenId> tokens = filler(runtime, depth, salt);
  const Geometry& geometry = runtime.cache().geometry(from.root());
  for (std::uint32_t done = 0; done < depth;) {
    const std::uint32_t count = std::min(geometry.tokens_per_block, depth - done);
    const StepNeed need{&to, count};
    TRY(Reservation room, runtime.cache().reserve({&need, 1}));
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const std::uint32_t block = done / geometry.tokens_per_block;
      const LayerGroup& group = geometry.groups[g];
      if (block < geometry.first_block(group, depth) ||
          block >= geometry.block_end(group, done + count))
        continue;  // gone from the source already, or not there yet
      runtime.copy_block(room.view(0, g, 0).blocks[block], from.table(g)[block],
                         geometry.block_bytes(group));
    }
    room.commit(0, std::span(tokens).subspan(done, count));
    done += count;
  }
  return {};
}

// A copy of a compacted sequence that shares no page with it.
Result<Sequence> copy_lanes(Runtime& runtime, const Sequence& from) {
  TRY(Sequence to, runtime.cache().fork(from));
  const Geometry& geometry = runtime.cache().geometry(from.root());
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
    if (runtime.cache().ragged_until(to, g) == 0) continue;
    for (std::uint32_t lane = 0; lane < geometry.groups[g].lanes(); ++lane)
      TRY_STATUS(runtime.cache().own_lane(to, g, lane));
  }
  return to;
}

}  // namespace

Result<Sequence> DecodeBatch::open(const StoragePolicy& way, SequenceOptions options) {
  TRY(options.root, r_.tenant_root("", &way));
  options.token_capacity += depth_ + count_ + 1;
  options.reuse = false;
  if (!adapters_.empty()) options.adapters = adapters_[sequences_.size() % adapters_.size()];
  return r_.cache().open(options);
}

Status DecodeBatch::fill(const StoragePolicy& way, const DecodeBatch* like) {
  for (std::uint32_t b = 0; b < width_; ++b) {
    TRY(Sequence s, open(way, {.publish = false}));
    sequences_.push_back(std::move(s));
    if (b > 0) {
      r_.cache().attach(sequences_[b], {});
      TRY_STATUS(copy_context(r_, sequences_[0], sequences_[b], depth_, 1000 + b));
      continue;
    }
    const std::vector<TokenId> prompt = filler(r_, depth_, 1);
    if (like) {
      r_.cache().attach(sequences_[0], prompt);
      const std::uint32_t block = r_.geometry().tokens_per_block;
      TRY_STATUS(convert_blocks(r_, like->sequences_[0], sequences_[0], depth_ / block * block));
      TRY_STATUS(stepper_.prefill(sequences_[0], depth_));
    } else {
      const Stopwatch watch;
      TRY_STATUS(read_all(r_, sequences_[0], prompt));
      prefill_s_ = watch.seconds();
    }
  }
  return {};
}

Status DecodeBatch::fill_kept(const StoragePolicy& way,
                              std::shared_ptr<const RetainPolicy> policy) {
  TRY(const RootId root, r_.tenant_root("", &way));
  retains_.emplace_back(r_, std::move(policy), depth_, root);
  Retaining& retain = retains_[0];
  TRY(Sequence first, open(way, {.token_capacity = retain.more_tokens(), .recomputable = false}));
  r_.cache().attach(first, filler(r_, depth_, 1));
  const Stopwatch reading;
  TRY([[maybe_unused]] const auto logits, stepper_.read(first, 0, {}, &retain));
  prefill_s_ = reading.seconds() - retain.observer().seconds();
  const Stopwatch compressing;
  TRY_STATUS(retain.drop_due(stepper_, first));
  compress_s_ = compressing.seconds() + retain.observer().seconds();
  sequences_.push_back(std::move(first));
  for (std::uint32_t b = 1; b < width_; ++b) {
    TRY(Sequence s, copy_lanes(r_, sequences_[0]));
    sequences_.push_back(std::move(s));
    retains_.push_back(retains_[0]);
  }
  return {};
}

Result<double> DecodeBatch::run(std::uint32_t steps, std::uint32_t width) {
  std::vector<Sequence> forks;  // what was dropped does not come back
  std::vector<Retaining> retains(retains_);
  if (!retains.empty())
    for (std::uint32_t b = 0; b < width; ++b) {
      TRY(Sequence s, r_.cache().fork(sequences_[b]));
      forks.push_back(std::move(s));
    }
  std::vector<Sequence>& sequences = retains.empty() ? sequences_ : forks;
  std::vector<StepItem> items(width);
  std::vector<TokenId> next(width);
  for (std::uint32_t b = 0; b < width; ++b) next[b] = 100 + b;
  const Stopwatch watch;
  for (std::uint32_t step = 0; step < steps; ++step) {
    for (std::uint32_t b = 0; b < width; ++b)
      items[b] = {
          &sequences[b], {&next[b], 1}, Logits::last, retains.empty() ? nullptr : &retains[b]};
    TRY(const std::span<const BestToken> best, stepper_.run_best(items));
    std::ranges::transform(best, next.begin(), &BestToken::token);
  }
  const double took = watch.seconds();
  if (retains.empty())
    for (std::uint32_t b = 0; b < width; ++b) {
      r_.cache().truncate(sequences_[b], depth_);
      TRY_STATUS(
          stepper_.prefill(sequences_[b], depth_));  // what a lossy format could not take back
    }
  return steps * width / took;
}

std::vector<TokenId> filler(const Runtime& runtime, std::uint32_t count, std::uint64_t salt) {
  Random random(salt);
  std::vector<TokenId> tokens(count);
  const std::uint32_t vocabulary = runtime.config().vocabulary;
  for (TokenId& t : tokens) t = static_cast<TokenId>(vocabulary / 8 + random.below(vocabulary / 2));
  return tokens;
}

Status read_all(Runtime& runtime, Sequence& s, std::span<const TokenId> prompt) {
  runtime.cache().attach(s, prompt);
  TRY([[maybe_unused]] const std::span<float> logits, Stepper(runtime).read(s));
  return {};
}

Result<std::vector<DecodeScore>> bench_decode(Runtime& runtime, const DecodeQuestion& q) {
  std::vector<DecodeScore> scores;
  for (const StoragePolicy& way : q.ways)
    scores.push_back(
        {.format = way.name(),
         .rates = {},
         .ratios = {},
         .kv_bytes = q.batch * sequence_bytes(runtime.geometry(&way), q.depth + q.count / 2)});
  const std::uint32_t few = std::min(q.count, 4u);  // to warm up
  DecodeBatch first(runtime, q.depth, q.count, q.batch);
  TRY_STATUS(first.fill(q.ways[0], nullptr));
  TRY([[maybe_unused]] const double warm, first.run(few, q.batch));
  if (!q.adapters.empty()) {
    DecodeBatch batch(runtime, q.depth, q.count, q.batch, q.adapters);
    TRY_STATUS(batch.fill(q.ways[0], nullptr));
    TRY([[maybe_unused]] const double ready, batch.run(few, q.batch));
    scores.push_back(scores[0]);
    scores.back().format += fmt::format(" and {} adapters", q.adapters.size());
    for (std::uint32_t i = 0; i < q.repeat; ++i) {
      TRY(const double before, first.run(q.count, q.batch));
      TRY(const double rate, batch.run(q.count, q.batch));
      scores[0].rates.push_back(before);
      scores.back().rates.push_back(rate);
      scores.back().ratios.push_back(rate / before);
    }
  } else if (q.ways.size() == 1)
    for (std::uint32_t i = 0; i < q.repeat; ++i) {
      TRY(const double rate, first.run(q.count, q.batch));
      scores[0].rates.push_back(rate);
    }
  for (std::size_t w = 1; w < q.ways.size(); ++w) {
    const bool alike = q.ways[w].format->rows == q.ways[0].format->rows && !q.ways[0].lossy() &&
                       runtime.executor().traits().device == DeviceKind::cpu;
    DecodeBatch batch(runtime, q.depth, q.count, q.batch);
    TRY_STATUS(batch.fill(q.ways[w], alike ? &first : nullptr));
    TRY([[maybe_unused]] const double ready, batch.run(few, q.batch));
    for (std::uint32_t i = 0; i < q.repeat; ++i) {
      TRY(const double before, first.run(q.count, q.batch));
      TRY(const double rate, batch.run(q.count, q.batch));
      scores[0].rates.push_back(before);
      scores[w].rates.push_back(rate);
      scores[w].ratios.push_back(rate / before);
    }
  }
  return scores;
}

}  // namespace quire::lab
