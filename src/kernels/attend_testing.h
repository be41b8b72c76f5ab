// kernels/attend_testing.h - a small cache full of NaN with a few sequences in it, for tests and
// fuzzers of attention.
//
// A sequence has `history` tokens, stored without being asked about, and `queries` tokens that
// attend. run() plays the queries in steps of at most `chunk` rows per sequence, all sequences in
// each step, and returns every output row. Blocks are scattered over the arena, unused slots hold
// NaN, and table entries left of the window point nowhere. Of the first `compacted` tokens of a
// sequence each lane keeps some, in pages of its own, and the table has none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/kv_run.h"

namespace quire {

struct AttendCase {
  RowType rows = RowType::f16;
  std::uint32_t kv_heads = 1, heads_per_kv = 1, head_dim = 64, tokens_per_block = 32, window = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sequences;  // history, queries
  std::uint64_t seed = 1;
  AttendArithmetic arithmetic = AttendArithmetic::f32;
  float spread = 1;                           // of queries and keys: larger makes sharper softmax
  std::vector<std::uint32_t> compacted = {};  // by sequence: tokens that are in lanes
  double keep = 0.5;                          // of them
  bool shuffled = false;                      // lanes hold them in another order
  std::uint32_t shared = 0;  // tokens of sequence 0 (whole blocks) that all others begin with
  float softcap = 0;
  std::vector<float> sinks = {};  // by query head
  std::uint32_t rotated = 0;  // latent attention: one lane, whose query heads are in kv_heads parts
};

class AttendWorld {
 public:
  enum class Tasks { planned, whole, split, shuffled };

  explicit AttendWorld(const AttendCase& c) : case_(c) {
    const std::size_t element = c.rows == RowType::f32 ? 4 : 2;
    const std::size_t key_bytes =
        element * c.tokens_per_block * (c.rotated != 0 ? c.rotated : c.head_dim);
    const std::size_t value_bytes = element * c.tokens_per_block * c.head_dim;
    shape_ = {.query_heads = c.kv_heads * c.heads_per_kv,
              .kv_heads = c.kv_heads,
              .head_dim = c.head_dim,
              .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
              .rows = c.rows,
              .arithmetic = c.arithmetic,
              .layer_index = 1,
              .page_bytes = key_bytes + value_bytes,
              .key_bytes = key_bytes,
              .softcap = c.softcap,
              .rotated = c.rotated};
    const std::size_t block_units = (2 * lanes() * shape_.page_bytes + 255) / 256;  // two layers
    Random random(c.seed);
    std::uint32_t blocks = 0;
    for (const auto& [history, queries] : c.sequences) {
      const std::uint32_t tokens = history + queries;
      tables_.emplace_back((tokens + c.tokens_per_block - 1) / c.tokens_per_block);
      for (ArenaOffset& at : tables_.back()) at = static_cast<ArenaOffset>(blocks++ * block_units);
      keys_.push_back(noise(random, std::size_t{tokens} * lanes() * key_dim(shape_), c.spread));
      values_.push_back(noise(random, std::size_t{tokens} * lanes() * c.head_dim, 1));
      queries_.push_back(noise(random, std::size_t{queries} * width(), c.spread));
    }
    for (std::size_t i = 0; i < tables_.size(); ++i)  // scatter
      for (ArenaOffset& at : tables_[i]) {
        auto& other = tables_[random.below(tables_.size())];
        std::swap(at, other[random.below(other.size())]);
      }
    for (std::size_t i = 1; i < tables_.size(); ++i) {
      const std::size_t tokens = std::min(c.shared, c.sequences[i].first);
      std::copy_n(tables_[0].begin(), tokens / c.tokens_per_block, tables_[i].begin());
      std::copy_n(keys_[0].begin(), tokens * lanes() * key_dim(shape_), keys_[i].begin());
      std::copy_n(values_[0].begin(), tokens * lanes() * c.head_dim, values_[i].begin());
    }
    const auto page_units = static_cast<std::uint32_t>((shape_.page_bytes + 255) / 256);
    auto lane_unit = static_cast<std::uint32_t>(blocks * block_units);
    lanes_.resize(c.sequences.size());
    for (std::size_t i = 0; i < c.compacted.size(); ++i)
      for (std::uint32_t lane = 0; lane < 2 * lanes() && c.compacted[i] > 0; ++lane) {
        Lane& made = lanes_[i].emplace_back();
        for (std::uint32_t t = 0; t < c.compacted[i]; ++t)
          if (random.chance(c.keep)) made.positions.push_back(t);
        if (c.keep < 1 && random.chance(0.2))
          made.positions.resize(random.below(made.positions.size() + 1));
        for (std::size_t t = made.positions.size(); c.shuffled && t > 1; --t)
          std::swap(made.positions[t - 1], made.positions[t * 7919 % 104729 % t]);
        for (std::size_t slot = 0; slot < made.positions.size(); slot += c.tokens_per_block) {
          made.pages.push_back(ArenaOffset{lane_unit});
          lane_unit += page_units;
        }
      }
    arena_bytes_ = (lane_unit + block_units) * kArenaUnit;
    arena_.reset(static_cast<std::byte*>(std::aligned_alloc(256, arena_bytes_)));
  }

  const AttendShape& shape() const { return shape_; }
  std::size_t width() const { return std::size_t{shape_.query_heads} * query_dim(shape_); }
  std::uint32_t lanes() const { return shape_.rotated != 0 ? 1 : shape_.kv_heads; }  // of a layer
  std::vector<float>& keys(std::size_t sequence) { return keys_[sequence]; }
  std::vector<float>& queries(std::size_t sequence) { return queries_[sequence]; }
  const std::vector<float>& keys(std::size_t sequence) const { return keys_[sequence]; }
  const std::vector<float>& values(std::size_t sequence) const { return values_[sequence]; }
  const std::vector<float>& queries(std::size_t sequence) const { return queries_[sequence]; }
  // Of its first compacted tokens, those that a KV head kept.
  const std::vector<std::uint32_t>& kept(std::size_t sequence, std::uint32_t head) const {
    return lanes_[sequence][lane_of(shape_, head)].positions;
  }
  std::uint32_t compacted(std::size_t sequence) const {
    return case_.compacted.empty() ? 0 : case_.compacted[sequence];
  }

  // Outputs by sequence, [queries][width].
  std::vector<std::vector<float>> run(Isa isa, std::uint32_t chunk, Tasks mode,
                                      bool backwards = false, std::uint64_t seed = 1) {
    const AttendKernels& kernels = attend_kernels(isa);
    std::memset(arena_.get(), 0xff, arena_bytes_);
    std::vector<std::vector<float>> out;
    for (std::size_t i = 0; i < case_.sequences.size(); ++i) {
      out.emplace_back(std::size_t{case_.sequences[i].second} * width());
      store(kernels, i, compacted(i), case_.sequences[i].first);
      for (std::uint32_t head = 0; compacted(i) > 0 && head < lanes(); ++head)
        store_lane(kernels, i, head);
    }
    Random random(seed);
    for (std::uint32_t done = 0;; done += chunk)
      if (!step(kernels, chunk, done, mode, backwards, random, out)) return out;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  struct Lane {
    std::vector<std::uint32_t> positions;
    std::vector<ArenaOffset> pages;
  };

  static std::vector<float> noise(Random& random, std::size_t n, float spread) {
    std::vector<float> x(n);
    for (float& v : x) v = spread * static_cast<float>(4 * random.unit() - 2);
    return x;
  }

  void store(const AttendKernels& kernels, std::size_t sequence, std::uint32_t begin,
             std::uint32_t end) {
    const std::uint32_t tokens = case_.tokens_per_block;
    for (std::uint32_t t = begin; t < end; ++t)
      for (std::uint32_t head = 0; head < lanes(); ++head) {
        std::byte* page = arena_at(arena_.get(), tables_[sequence][t / tokens]) +
                          lane_of(shape_, head) * shape_.page_bytes;
        store_row(kernels, sequence, t, head, t % tokens, page);
      }
  }

  void store_row(const AttendKernels& kernels, std::size_t sequence, std::uint32_t token,
                 std::uint32_t head, std::uint32_t slot, std::byte* page) {
    const std::size_t at = std::size_t{token} * lanes() + head;
    kernels.store_key(shape_, case_.tokens_per_block, &keys_[sequence][at * key_dim(shape_)], slot,
                      page);
    kernels.store_value(shape_, case_.tokens_per_block, &values_[sequence][at * shape_.head_dim],
                        slot, page);
  }

  void store_lane(const AttendKernels& kernels, std::size_t sequence, std::uint32_t head) {
    const Lane& lane = lanes_[sequence][lane_of(shape_, head)];
    const std::uint32_t tokens = case_.tokens_per_block;
    for (std::uint32_t slot = 0; slot < lane.positions.size(); ++slot) {
      std::byte* page = arena_at(arena_.get(), lane.pages[slot / tokens]);
      store_row(kernels, sequence, lane.positions[slot], head, slot % tokens, page);
    }
  }

  // Rows [done, done + chunk) of every sequence that has them; false when none has.
  bool step(const AttendKernels& kernels, std::uint32_t chunk, std::uint32_t done, Tasks mode,
            bool backwards, Random& random, std::vector<std::vector<float>>& out) {
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < case_.sequences.size(); ++i)
      if (case_.sequences[i].second > done) members.push_back(i);
    if (members.empty()) return false;
    if (backwards) std::reverse(members.begin(), members.end());
    std::vector<KvSequenceView> views;
    std::vector<std::vector<ArenaOffset>> tables;
    std::vector<std::vector<KvLane>> lanes;
    std::vector<float> queries;
    std::uint32_t rows = 0;
    for (const std::size_t i : members) {
      const auto [history, count] = case_.sequences[i];
      const std::uint32_t n = std::min(chunk, count - done), past = history + done;
      store(kernels, i, past, past + n);
      const std::uint32_t blocks = (past + n - 1) / case_.tokens_per_block + 1;
      tables.emplace_back(tables_[i].begin(), tables_[i].begin() + blocks);  // exactly: ASan looks
      if (case_.window != 0 && past + 1 > case_.window)
        for (std::uint32_t b = 0; b < (past + 1 - case_.window) / case_.tokens_per_block; ++b)
          tables.back()[b] = static_cast<ArenaOffset>(0xffffff00u);
      std::fill_n(tables.back().begin(), compacted(i) / case_.tokens_per_block,
                  static_cast<ArenaOffset>(0xffffff00u));
      queries.insert(queries.end(), queries_[i].begin() + done * width(),
                     queries_[i].begin() + (done + n) * width());
      views.push_back({nullptr, rows, n, past, nullptr, compacted(i)});
      lanes.emplace_back();
      for (const Lane& lane : lanes_[i]) {
        const auto slots = static_cast<std::uint32_t>(lane.positions.size());
        lanes.back().push_back({lane.pages.data(), slots});
        views.back().lane_slots_max = std::max(views.back().lane_slots_max, slots);
      }
      rows += n;
    }
    for (std::size_t i = 0; i < views.size(); ++i) {
      views[i].blocks = tables[i].data();
      views[i].lanes = views[i].ragged_until > 0 ? lanes[i].data() : nullptr;
    }
    const KvView kv{arena_.get(), views.data(), static_cast<std::uint32_t>(views.size()),
                    case_.tokens_per_block, case_.window};
    AttendPlan plan;
    plan_attention(kv, shape_, plan);
    if (mode != Tasks::planned) plan = replan(kv, mode, random);
    std::vector<float> result(queries.size(), NAN);
    for (std::size_t i = 0; i < result.size(); ++i)  // what latent attention leaves alone
      if (i % query_dim(shape_) >= shape_.head_dim) result[i] = 7;
    std::vector<float> partials(plan.partial_count * partial_floats(shape_), NAN);
    const std::size_t scratch_bytes = (attend_scratch_bytes(shape_) + 63) / 64 * 64;
    const std::unique_ptr<std::byte, Free> scratch(
        static_cast<std::byte*>(std::aligned_alloc(64, scratch_bytes)));
    std::memset(scratch.get(), 0xff, scratch_bytes);
    const AttendStep step{kv,
                          shape_,
                          queries.data(),
                          result.data(),
                          width(),
                          partials.data(),
                          case_.sinks.empty() ? nullptr : case_.sinks.data()};
    for (const AttendTask& task : plan.tasks) kernels.attend(step, task, scratch.get());
    for (const AttendPlan::Merge& merge : plan.merges) kernels.merge(step, merge);
    for (std::size_t m = 0; m < members.size(); ++m)
      std::copy_n(result.begin() + views[m].first_row * width(), views[m].row_count * width(),
                  out[members[m]].begin() + done * width());
    return true;
  }

  // Another way to cut the same work.
  AttendPlan replan(const KvView& kv, Tasks mode, Random& random) const {
    AttendPlan plan;
    for (std::uint32_t i = 0; i < kv.sequence_count; ++i)
      for (std::uint32_t first = 0; first < kv.sequences[i].row_count;) {
        const std::uint32_t left = kv.sequences[i].row_count - first;
        const auto n =
            static_cast<std::uint32_t>(1 + random.below(std::min(left, attend_rows_max(shape_))));
        const bool split = mode == Tasks::split || (mode == Tasks::shuffled && random.chance(0.5));
        const SplitNumbers numbers = split_numbers(kv.sequences[i]);
        const auto begin = [&](std::uint32_t row) {
          const std::uint32_t end = kv.sequences[i].past + row + 1;
          const std::uint32_t seen = kv.window != 0 && end > kv.window ? end - kv.window : 0;
          return first_split(numbers, std::max(seen, kv.sequences[i].ragged_until));
        };
        const std::uint32_t from = begin(first);
        const std::uint32_t to = split_of(numbers, kv.sequences[i].past + first + n - 1) + 1;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
          if (!split) {
            const auto heads = static_cast<std::uint32_t>(1 + random.below(shape_.kv_heads - head));
            plan.tasks.push_back({i, head, heads, first, n, kAllSplits, 0, 0, 0, 0});
            head += heads - 1;
            continue;
          }
          for (std::uint32_t at = from; at < to;) {
            const auto run = static_cast<std::uint32_t>(1 + random.below(std::min(3u, to - at)));
            plan.tasks.push_back(
                {i, head, 1, first, n, at, run, plan.partial_count + at - from, to - from, 0});
            at += run;
          }
          for (std::uint32_t r = 0; r < n; ++r) {
            const std::uint32_t a = begin(first + r);
            const std::uint32_t b = split_of(numbers, kv.sequences[i].past + first + r) + 1;
            plan.merges.push_back(
                {i, head, first + r, plan.partial_count + r * (to - from) + a - from, b - a});
          }
          plan.partial_count += n * (to - from);
        }
        first += n;
      }
    if (mode == Tasks::shuffled)
      for (std::size_t i = plan.tasks.size(); i > 1; --i)
        std::swap(plan.tasks[i - 1], plan.tasks[random.below(i)]);
    return plan;
  }

  AttendCase case_;
  AttendShape shape_;
  std::vector<std::vector<ArenaOffset>> tables_;
  std::vector<std::vector<float>> keys_, values_, queries_;
  std::vector<std::vector<Lane>> lanes_;  // by sequence, by lane of two layers
  std::size_t arena_bytes_ = 0;
  std::unique_ptr<std::byte, Free> arena_;
};

}  // namespace quire
