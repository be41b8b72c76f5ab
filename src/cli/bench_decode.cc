#include "cli/bench_decode.h"

#include <algorithm>
#include <chrono>

#include "base/random.h"
#include "engine/convert.h"
#include "engine/plan.h"

namespace quire::cli {
namespace {

// Gives a sequence the keys and values of another under tokens of its own: same bytes in blocks of
// its own, without computing them again.
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

// Sequences that are stored in one way, all at the same depth.
class Batch {
 public:
  Batch(Runtime& runtime, const DecodeQuestion& question) : r_(runtime), q_(question) {}

  // The first sequence's context is encoded from `like`, or computed; the others get copies.
  Status fill(const StoragePolicy& way, const Batch* like) {
    TRY(const RootId root, r_.tenant_root("", &way));
    for (std::uint32_t b = 0; b < q_.batch; ++b) {
      TRY(Sequence s, r_.cache().open({.root = root,
                                       .token_capacity = q_.depth + q_.count + 1,
                                       .reuse = false,
                                       .publish = false}));
      sequences_.push_back(std::move(s));
      if (b > 0) {
        r_.cache().attach(sequences_[b], {});
        TRY_STATUS(copy_context(r_, sequences_[0], sequences_[b], q_.depth, 1000 + b));
        continue;
      }
      const std::vector<TokenId> prompt = filler(r_, q_.depth, 1);
      if (like) {
        r_.cache().attach(sequences_[0], prompt);
        const std::uint32_t block = r_.geometry().tokens_per_block;
        TRY_STATUS(
            convert_blocks(r_, like->sequences_[0], sequences_[0], q_.depth / block * block));
        TRY_STATUS(r_.prefill(sequences_[0], q_.depth));
      } else {
        TRY_STATUS(read_all(r_, sequences_[0], prompt));
      }
    }
    next_.resize(q_.batch);
    for (std::uint32_t b = 0; b < q_.batch; ++b) next_[b] = 100 + b;
    return {};
  }

  // Tokens per second.
  Result<double> run(std::uint32_t steps) {
    std::vector<StepItem> items(q_.batch);
    const auto start = std::chrono::steady_clock::now();
    for (std::uint32_t step = 0; step < steps; ++step) {
      for (std::uint32_t b = 0; b < q_.batch; ++b)
        items[b] = {&sequences_[b], {&next_[b], 1}, Logits::last};
      TRY(const std::span<const BestToken> best, r_.step_greedy(items));
      std::ranges::transform(best, next_.begin(), &BestToken::token);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    for (Sequence& s : sequences_) {
      r_.cache().truncate(s, q_.depth);
      TRY_STATUS(r_.prefill(s, q_.depth));  // what a lossy format could not take back
    }
    return steps * q_.batch / took.count();
  }

 private:
  Runtime& r_;
  const DecodeQuestion& q_;
  std::vector<Sequence> sequences_;
  std::vector<TokenId> next_;
};

}  // namespace

std::vector<TokenId> filler(const Runtime& runtime, std::uint32_t count, std::uint64_t salt) {
  Random random(salt);
  std::vector<TokenId> tokens(count);
  const std::uint32_t vocabulary = runtime.config().vocabulary;
  for (TokenId& t : tokens) t = static_cast<TokenId>(vocabulary / 8 + random.below(vocabulary / 2));
  return tokens;
}

Status read_all(Runtime& runtime, Sequence& s, std::span<const TokenId> prompt) {
  runtime.cache().attach(s, prompt);
  TRY([[maybe_unused]] const std::span<float> logits, runtime.read(s));
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
  Batch first(runtime, q);
  TRY_STATUS(first.fill(q.ways[0], nullptr));
  TRY([[maybe_unused]] const double warm, first.run(few));
  if (q.ways.size() == 1)
    for (std::uint32_t i = 0; i < q.repeat; ++i) {
      TRY(const double rate, first.run(q.count));
      scores[0].rates.push_back(rate);
    }
  for (std::size_t w = 1; w < q.ways.size(); ++w) {
    const bool alike = q.ways[w].format->rows == q.ways[0].format->rows && !q.ways[0].lossy() &&
                       runtime.model().device() == nullptr;
    Batch batch(runtime, q);
    TRY_STATUS(batch.fill(q.ways[w], alike ? &first : nullptr));
    TRY([[maybe_unused]] const double ready, batch.run(few));
    for (std::uint32_t i = 0; i < q.repeat; ++i) {
      TRY(const double before, first.run(q.count));
      TRY(const double rate, batch.run(q.count));
      scores[0].rates.push_back(before);
      scores[w].rates.push_back(rate);
      scores[w].ratios.push_back(rate / before);
    }
  }
  return scores;
}

}  // namespace quire::cli
