#include "kernels/attend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/half.h"
#include "base/sanitized.h"
#include "kernels/attend_testing.h"

namespace quire {
namespace {

using Rows = std::vector<std::vector<float>>;
using Tasks = AttendWorld::Tasks;

struct Reading {
  RowType rows;
  AttendArithmetic arithmetic;
};
constexpr Reading kReadings[] = {{RowType::f32, AttendArithmetic::f32},
                                 {RowType::f16, AttendArithmetic::f32},
                                 {RowType::bf16, AttendArithmetic::f32},
                                 {RowType::f16, AttendArithmetic::narrow},
                                 {RowType::bf16, AttendArithmetic::narrow}};

std::string name_of(const AttendCase& c) {
  return "rows " + std::to_string(static_cast<int>(c.rows)) + ", arithmetic " +
         std::to_string(static_cast<int>(c.arithmetic)) + ", dim " + std::to_string(c.head_dim) +
         ", " + std::to_string(c.kv_heads) + " x " + std::to_string(c.heads_per_kv) + " heads, P " +
         std::to_string(c.tokens_per_block) + ", window " + std::to_string(c.window);
}

// The first (sequence, index) whose bits differ, or nothing.
testing::AssertionResult same_bits(const Rows& a, const Rows& b) {
  for (std::size_t s = 0; s < a.size(); ++s)
    for (std::size_t i = 0; i < a[s].size(); ++i)
      if (std::memcmp(&a[s][i], &b[s][i], 4) != 0)
        return testing::AssertionFailure()
               << "sequence " << s << " element " << i << ": " << a[s][i] << " and " << b[s][i];
  return testing::AssertionSuccess();
}

std::vector<Isa> fast_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::bf16})
    if (cpu_has(isa)) isas.push_back(isa);
  return isas;
}

float rounded(RowType type, float x) {
  if (type == RowType::f16) return f16_to_f32(f32_to_f16(x));
  if (type == RowType::bf16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

float taken(const AttendCase& c, float x) {
  return c.arithmetic == AttendArithmetic::narrow ? rounded(RowType::bf16, x) : x;
}

// Softmax attention in double, from its definition; in the narrow arithmetic of rounded values.
Rows attention_in_double(const AttendCase& c, const AttendWorld& world) {
  Rows out;
  const std::size_t dim = c.head_dim, kv_heads = world.lanes(), width = dim + c.rotated;
  const std::size_t key_width = c.rotated != 0 ? c.rotated : dim;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    const auto [history, queries] = c.sequences[s];
    out.emplace_back(queries * world.width());
    for (std::uint32_t row = 0; row < queries; ++row) {
      const std::uint32_t end = history + row + 1;
      const std::uint32_t begin = c.window != 0 && end > c.window ? end - c.window : 0;
      for (std::uint32_t head = 0; head < c.kv_heads * c.heads_per_kv; ++head) {
        const std::size_t kv_head = c.rotated != 0 ? 0 : head / c.heads_per_kv;
        const float* q = &world.queries(s)[row * world.width() + head * width];
        const auto value = [&](std::uint32_t slot, std::size_t d) {
          return rounded(c.rows, world.values(s)[(slot * kv_heads + kv_head) * dim + d]);
        };
        std::vector<std::uint32_t> seen;
        if (world.compacted(s) > 0) seen = world.kept(s, head / c.heads_per_kv);
        for (std::uint32_t t = std::max(begin, world.compacted(s)); t < end; ++t) seen.push_back(t);
        std::vector<double> p(seen.size()), o(dim);
        double top = -INFINITY, sum = 0;
        for (std::size_t i = 0; i < seen.size(); ++i) {
          const float* key = &world.keys(s)[(seen[i] * kv_heads + kv_head) * key_width];
          for (std::size_t d = 0; d < width; ++d)
            p[i] += double{q[d]} * world.shape().scale *
                    (d < width - key_width ? value(seen[i], d)
                                           : rounded(c.rows, key[d - (width - key_width)]));
          if (c.softcap != 0) p[i] = c.softcap * std::tanh(p[i] / c.softcap);
          top = std::max(top, p[i]);
        }
        if (!c.sinks.empty()) {
          top = std::max(top, double{c.sinks[head]});
          sum = std::exp(c.sinks[head] - top);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (std::size_t i = 0; i < seen.size(); ++i)
          for (std::size_t d = 0; d < dim; ++d) o[d] += p[i] * taken(c, value(seen[i], d));
        for (std::size_t d = 0; d < width; ++d)
          out[s][row * world.width() + head * width + d] =
              d < dim ? static_cast<float>(o[d] / sum) : 7;
      }
    }
  }
  return out;
}

double worst_difference(const Rows& a, const Rows& b) {
  double worst = 0;
  for (std::size_t s = 0; s < a.size(); ++s)
    for (std::size_t i = 0; i < a[s].size(); ++i) {
      const double difference = std::fabs(double{a[s][i]} - b[s][i]);
      worst = difference <= worst ? worst : difference;  // a NaN stays
    }
  return worst;
}

TEST(Attend, ReferenceIsSoftmaxAttention) {
  for (const auto [rows, arithmetic] : kReadings)
    for (const std::uint32_t window : {0u, 40u, 700u})
      for (const float spread : {0.1f, 1.0f, 3.0f}) {
        const AttendCase c{.rows = rows,
                           .kv_heads = 2,
                           .heads_per_kv = 2,
                           .head_dim = 32,
                           .tokens_per_block = 16,
                           .window = window,
                           .sequences = {{0, 70}, {1100, 3}},
                           .arithmetic = arithmetic,
                           .spread = spread};
        SCOPED_TRACE(name_of(c));
        AttendWorld world(c);
        EXPECT_LT(worst_difference(world.run(Isa::scalar, 1, Tasks::planned),
                                   attention_in_double(c, world)),
                  arithmetic == AttendArithmetic::narrow ? 2 * 0x1p-8 : 1e-5);
      }
}

// A sequence whose lanes kept different tokens, beside one that kept all it had.
AttendCase lane_case(Reading reading, double keep) {
  return {.rows = reading.rows,
          .kv_heads = 3,
          .heads_per_kv = 2,
          .head_dim = 32,
          .tokens_per_block = 16,
          .sequences = {{1300, 30}, {700, 3}, {96, 20}},
          .arithmetic = reading.arithmetic,
          .compacted = {1200, 0, 96},
          .keep = keep};
}

TEST(Attend, LanesAreReadBeforeTheTable) {
  for (const Reading reading : kReadings)
    for (const double keep : {0.0, 0.1, 0.7}) {
      const AttendCase c = lane_case(reading, keep);
      SCOPED_TRACE(name_of(c));
      AttendWorld world(c);
      const Rows want = world.run(Isa::scalar, 1, Tasks::whole);
      EXPECT_LT(worst_difference(want, attention_in_double(c, world)),
                c.arithmetic == AttendArithmetic::narrow ? 2 * 0x1p-8 : 1e-5);
      for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::bf16})
        for (const auto mode : {Tasks::planned, Tasks::whole, Tasks::split, Tasks::shuffled})
          if (cpu_has(isa)) {
            EXPECT_TRUE(same_bits(want, world.run(isa, 7, mode)));
            EXPECT_TRUE(same_bits(want, world.run(isa, 30, mode, true, 5)));
          }
    }
}

TEST(Attend, LanesThatKeepWholeSplitsChangeNoBit) {
  for (const Reading reading : kReadings) {
    AttendCase c = lane_case(reading, 1);
    c.compacted = {1024, 512, 0};
    AttendCase plain = c;
    plain.compacted = {};
    for (const auto mode : {Tasks::planned, Tasks::split})
      EXPECT_TRUE(same_bits(AttendWorld(c).run(best_isa(), 30, mode),
                            AttendWorld(plain).run(best_isa(), 30, mode)));
  }
}

TEST(Attend, TheOrderOfALaneDoesNotMatter) {
  AttendCase c = lane_case({RowType::f32, AttendArithmetic::f32}, 0.4);
  const Rows ordered = AttendWorld(c).run(best_isa(), 30, Tasks::planned);
  c.shuffled = true;
  const Rows shuffled = AttendWorld(c).run(best_isa(), 30, Tasks::planned);
  EXPECT_LT(worst_difference(ordered, shuffled), 1e-5);
  EXPECT_FALSE(same_bits(ordered, shuffled));  // it was shuffled
}

// Latent attention: eight query heads in `parts` parts.
AttendCase latent_case(Reading reading, std::uint32_t parts) {
  return {.rows = reading.rows,
          .kv_heads = parts,
          .heads_per_kv = 8 / parts,
          .head_dim = 64,
          .tokens_per_block = 32,
          .sequences = {{1300, 9}, {0, 80}, {96, 3}},
          .arithmetic = reading.arithmetic,
          .rotated = 32};
}

TEST(Attend, LatentRowsAreKeysAndValues) {
  for (const Reading reading : kReadings) {
    const AttendCase c = latent_case(reading, 1);
    SCOPED_TRACE(name_of(c));
    AttendWorld world(c);
    const Rows want = world.run(Isa::scalar, 1, Tasks::whole);
    EXPECT_LT(worst_difference(want, attention_in_double(c, world)),
              c.arithmetic == AttendArithmetic::narrow ? 2 * 0x1p-8 : 1e-5);
    for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::bf16})
      for (const auto mode : {Tasks::planned, Tasks::whole, Tasks::split, Tasks::shuffled})
        if (cpu_has(isa)) {
          EXPECT_TRUE(same_bits(want, world.run(isa, 7, mode)));
          EXPECT_TRUE(same_bits(want, world.run(isa, 80, mode, true, 5)));
        }
  }
}

TEST(Attend, PartsOfTheHeadsOfALatentLaneChangeNoBit) {
  for (const Reading reading : kReadings) {
    const Rows want = AttendWorld(latent_case(reading, 1)).run(best_isa(), 30, Tasks::planned);
    for (const std::uint32_t parts : {2u, 4u})
      EXPECT_TRUE(same_bits(
          want, AttendWorld(latent_case(reading, parts)).run(best_isa(), 30, Tasks::planned)));
  }
}

TEST(Attend, BothPartsOfALatentRowCount) {
  const AttendCase c = latent_case({RowType::f16, AttendArithmetic::narrow}, 1);
  const Rows want = AttendWorld(c).run(best_isa(), 30, Tasks::planned);
  for (const bool rotated : {false, true}) {
    AttendWorld world(c);
    for (std::size_t i = 0; i < world.queries(0).size(); ++i)
      if ((i % 96 >= 64) == rotated) world.queries(0)[i] = 0;
    EXPECT_FALSE(same_bits(want, world.run(best_isa(), 30, Tasks::planned)));
  }
}

// Soft caps and sinks, however the work is cut.
TEST(Attend, CapsAndSinksAreTheSameEverywhere) {
  for (const Reading reading : kReadings)
    for (const bool capped : {true, false}) {
      AttendCase c = lane_case(reading, 0.5);
      c.spread = 3;
      if (capped) c.softcap = 2;
      if (!capped || reading.rows == RowType::f32) c.sinks = {0.5f, -3, 4, 1, 9, -20};
      SCOPED_TRACE(name_of(c));
      AttendWorld world(c);
      const Rows want = world.run(Isa::scalar, 1, Tasks::whole);
      EXPECT_LT(worst_difference(want, attention_in_double(c, world)),
                c.arithmetic == AttendArithmetic::narrow ? 2 * 0x1p-8 : 1e-5);
      for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::bf16})
        for (const auto mode : {Tasks::planned, Tasks::whole, Tasks::split, Tasks::shuffled})
          if (cpu_has(isa)) EXPECT_TRUE(same_bits(want, world.run(isa, 7, mode)));
    }
}

// Every dimension, head ratio, block size and window, against the reference run row by row.
TEST(Attend, EveryInstructionSetChunkAndPlanGivesTheSameBits) {
  constexpr std::uint32_t kVariants = kSanitized ? 1 : 4;
  std::vector<std::uint32_t> chunks{7, 1000};
  if (!kSanitized) chunks = {1, 7, 32, 1000};
  Random random(7);
  for (const auto [rows, arithmetic] : kReadings)
    for (const std::uint32_t dim : {16u, 64u, 80u, 96u, 128u, 256u})
      for (std::uint32_t variant = 0; variant < kVariants; ++variant) {
        constexpr std::uint32_t kHeads[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16};
        constexpr std::uint32_t kWindows[] = {0, 1, 33, 64, 100, 513};
        const std::uint32_t heads = kHeads[random.below(std::size(kHeads))];
        // About as much work whatever the shape.
        const auto queries = static_cast<std::uint32_t>(std::max(3u, 6000 / (heads * dim)) + 20);
        AttendCase c{.rows = rows,
                     .kv_heads = static_cast<std::uint32_t>(1 + random.below(2)),
                     .heads_per_kv = heads,
                     .head_dim = dim,
                     .tokens_per_block = 16u << random.below(3),
                     .window = kWindows[random.below(std::size(kWindows))],
                     .sequences = {{0, queries}, {static_cast<std::uint32_t>(random.below(90)), 9}},
                     .seed = random.next(),
                     .arithmetic = arithmetic};
        if (variant == 0)
          c.sequences = {{static_cast<std::uint32_t>(500 + random.below(700)), 2}, {63, 2}};
        SCOPED_TRACE(name_of(c));
        AttendWorld world(c);
        const Rows wanted = world.run(Isa::scalar, 1, Tasks::whole);
        EXPECT_TRUE(same_bits(wanted, world.run(Isa::scalar, 1000, Tasks::shuffled)));
        for (const Isa isa : fast_isas()) {
          SCOPED_TRACE(isa_name(isa));
          for (const std::uint32_t chunk : chunks)
            EXPECT_TRUE(same_bits(wanted, world.run(isa, chunk, Tasks::planned))) << chunk;
          EXPECT_TRUE(same_bits(wanted, world.run(isa, 1000, Tasks::whole, true)));
          EXPECT_TRUE(same_bits(wanted, world.run(isa, 7, Tasks::split, true)));
          EXPECT_TRUE(same_bits(wanted, world.run(isa, 1000, Tasks::shuffled)));
        }
      }
}

TEST(Attend, LongRowsCutIntoSplitsGiveTheSameBits) {
  for (const std::uint32_t window : {0u, 1000u}) {
    const AttendCase c{.kv_heads = 3,
                       .heads_per_kv = 3,
                       .window = window,
                       .sequences = {{2600, 3}, {512, 1}, {511, 1}, {1023, 2}, {5, 1}}};
    SCOPED_TRACE(name_of(c));
    AttendWorld world(c);
    const Rows wanted = world.run(Isa::scalar, 1, Tasks::whole);
    for (const Isa isa : fast_isas())
      for (const std::uint32_t chunk : {1u, 3u})
        for (const Tasks tasks : {Tasks::planned, Tasks::whole, Tasks::split, Tasks::shuffled})
          EXPECT_TRUE(same_bits(wanted, world.run(isa, chunk, tasks))) << isa_name(isa);
  }
}

TEST(Attend, BlocksThatSequencesShareAreReadOnceAndGiveTheSameBits) {
  for (const Reading reading : kReadings) {
    const AttendCase c{.rows = reading.rows,
                       .kv_heads = 1,
                       .heads_per_kv = 3,
                       .head_dim = 32,
                       .sequences = {{1600, 2}, {1300, 1}, {1088, 5}, {1100, 1}, {1700, 18}},
                       .arithmetic = reading.arithmetic,
                       .shared = 1088};
    SCOPED_TRACE(name_of(c));
    AttendWorld world(c);
    const Rows wanted = world.run(Isa::scalar, 1, Tasks::whole);
    std::vector<Isa> isas = fast_isas();
    isas.push_back(Isa::scalar);
    for (const Isa isa : isas)
      for (const std::uint32_t chunk : {1u, 2u, 40u})
        EXPECT_TRUE(same_bits(wanted, world.run(isa, chunk, Tasks::planned, chunk == 2)))
            << isa_name(isa) << " " << chunk;
  }
}

// What is planned for, where nothing is computed: SmolLM2's heads.
constexpr AttendShape kPlanned{.query_heads = 9,
                               .kv_heads = 3,
                               .head_dim = 64,
                               .scale = 1,
                               .rows = RowType::f16,
                               .layer_index = 0,
                               .page_bytes = 8192,
                               .key_bytes = 4096};

// Tables for planning alone; sequences that share nothing begin at different `first`.
std::vector<ArenaOffset> table_from(std::uint32_t first) {
  std::vector<ArenaOffset> table(300);
  for (ArenaOffset& at : table) at = ArenaOffset{first++};
  return table;
}

TEST(Attend, PlanReadsSharedBlocksOnce) {
  const AttendShape& shape = kPlanned;
  const std::vector<ArenaOffset> one = table_from(0), other = table_from(5000);
  std::vector<KvSequenceView> sequences;
  for (std::uint32_t i = 0; i < 16; ++i)
    sequences.push_back({i < 12 ? one.data() : other.data(), i, 1, 3000 + i});
  AttendPlan plan;
  plan_attention({nullptr, sequences.data(), 16, 32, 0}, shape, plan);
  std::uint64_t read = 0;  // slots, by all tasks and heads
  for (const AttendTask& t : plan.tasks) read += t.cost / t.row_count;
  std::uint64_t wanted = 2 * 2560;  // five splits of each group, and what is left of everybody
  for (const KvSequenceView& s : sequences) wanted += s.past + 1 - 2560;
  EXPECT_EQ(read, 3 * wanted);
  EXPECT_EQ(plan.merges.size(), 16 * 3u);
  for (std::uint32_t i = 0; i < 16; ++i) sequences[i].first_row = 2 * i;  // others lie between
  plan_attention({nullptr, sequences.data(), 16, 32, 0}, shape, plan);
  for (const AttendTask& t : plan.tasks) EXPECT_EQ(t.row_count, 1u);
}

TEST(Attend, HugeAndTinyScoresStayFiniteAndEqual) {
  for (const auto [rows, arithmetic] : kReadings)
    for (const float spread : {1e-18f, 30.0f, 1e4f}) {
      const AttendCase c{.rows = rows,
                         .heads_per_kv = 3,
                         .sequences = {{600, 8}},
                         .arithmetic = arithmetic,
                         .spread = spread};
      AttendWorld world(c);
      const Rows wanted = world.run(Isa::scalar, 1, Tasks::whole);
      for (const float x : wanted[0]) ASSERT_TRUE(std::isfinite(x)) << spread;
      for (const Isa isa : fast_isas())
        for (const std::uint32_t chunk : {1u, 8u})
          EXPECT_TRUE(same_bits(wanted, world.run(isa, chunk, Tasks::planned))) << spread;
    }
}

// A key or query that is not finite must not come out as a plausible number.
TEST(Attend, NotANumberStaysOne) {
  for (const auto [rows, arithmetic] : kReadings)
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const bool in_key : {true, false}) {
        // In f32 an infinite key may be infinitely far from a query, and then weighs nothing.
        if (!std::isnan(bad) && arithmetic == AttendArithmetic::f32) continue;
        const AttendCase c{
            .rows = rows, .heads_per_kv = 3, .sequences = {{70, 8}}, .arithmetic = arithmetic};
        AttendWorld world(c);
        (in_key ? world.keys(0)[72 * 64 + 5] : world.queries(0)[2 * world.width() + 5]) = bad;
        for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::bf16}) {
          if (!cpu_has(isa)) continue;
          const Rows out = world.run(isa, 8, Tasks::planned);
          const auto whole = [&](std::size_t row) {
            return std::all_of(&out[0][row * world.width()], &out[0][row * world.width() + 64],
                               [](float x) { return std::isfinite(x); });
          };
          SCOPED_TRACE(name_of(c) + ", " + std::string(isa_name(isa)));
          EXPECT_TRUE(whole(1));
          EXPECT_FALSE(whole(2));
          EXPECT_EQ(whole(3), !in_key);
        }
      }
}

TEST(Attend, PlanCoversEveryRowOnceAndPutsLongTasksFirst) {
  const AttendShape& shape = kPlanned;
  const std::vector<ArenaOffset> a = table_from(0), b = table_from(1000);
  const KvSequenceView sequences[] = {{a.data(), 0, 1, 7000},
                                      {a.data(), 1, 100, 40},
                                      {a.data(), 101, 1, 3},
                                      {b.data(), 102, 5, 3000}};
  for (const std::uint32_t window : {0u, 600u}) {
    const KvView kv{nullptr, sequences, 4, 32, window};
    AttendPlan plan;
    plan_attention(kv, shape, plan);
    EXPECT_FALSE(plan.merges.empty());
    for (std::size_t i = 1; i < plan.tasks.size(); ++i)
      EXPECT_LE(plan.tasks[i].cost, plan.tasks[i - 1].cost);
    std::uint64_t seen = 0, wanted = 0;
    for (const AttendTask& t : plan.tasks) {
      EXPECT_LE(t.row_count, attend_rows_max(shape));
      seen += t.cost;
    }
    for (const KvSequenceView& s : sequences)
      for (std::uint32_t i = 0; i < s.row_count; ++i)
        wanted += 3 * (window != 0 ? std::min(window, s.past + i + 1) : s.past + i + 1);
    EXPECT_EQ(seen, wanted);
  }
}

TEST(Attend, PlanOfManyShortSequencesNeedsNoMerge) {
  const AttendShape& shape = kPlanned;
  std::vector<std::vector<ArenaOffset>> tables;
  std::vector<KvSequenceView> sequences;
  for (std::uint32_t i = 0; i < 32; ++i) {
    tables.push_back(table_from(1000 * i));
    sequences.push_back({tables.back().data(), i, 1, 900 + i});
  }
  AttendPlan plan;
  plan_attention({nullptr, sequences.data(), 32, 32, 0}, shape, plan);
  EXPECT_TRUE(plan.merges.empty());
  EXPECT_EQ(plan.tasks.size(), 96u);
  plan.threads = 2;  // enough sequences for a task to take all heads
  plan_attention({nullptr, sequences.data(), 32, 32, 0}, shape, plan);
  EXPECT_TRUE(plan.merges.empty());
  EXPECT_EQ(plan.tasks.size(), 32u);
}

// All bit patterns a rounding has to decide on, through the page and back.
TEST(Attend, StoreRoundsAsTheReferenceDoes) {
  Random random(3);
  for (const RowType rows : {RowType::f32, RowType::f16, RowType::bf16}) {
    const std::size_t element = rows == RowType::f32 ? 4 : 2, half = element * 16 * 32;
    const AttendShape shape{.query_heads = 1,
                            .kv_heads = 1,
                            .head_dim = 32,
                            .scale = 1,
                            .rows = rows,
                            .layer_index = 0,
                            .page_bytes = 2 * half,
                            .key_bytes = half};
    for (int round = 0; round < 2000; ++round) {
      std::uint32_t bits[32];
      for (std::uint32_t& b : bits) {
        b = static_cast<std::uint32_t>(random.next());
        if (random.chance(0.5)) b = (b & 0x8fffffffu) | 0x30000000u;  // around the range of f16
        if (random.chance(0.3)) b &= 0xfffff000u;
        if (random.chance(0.1)) b = random.chance(0.5) ? 0x7f800000u : 0xffc00001u;
      }
      float row[32];
      std::memcpy(row, bits, sizeof row);
      const auto slot = static_cast<std::uint32_t>(random.below(16));
      std::vector<std::byte> wanted(2 * half);
      kAttendScalar.store_key(shape, 16, row, slot, wanted.data());
      kAttendScalar.store_value(shape, 16, row, slot, wanted.data());
      for (const Isa isa : fast_isas()) {
        std::vector<std::byte> page(2 * half);
        attend_kernels(isa).store_key(shape, 16, row, slot, page.data());
        attend_kernels(isa).store_value(shape, 16, row, slot, page.data());
        ASSERT_EQ(page, wanted) << isa_name(isa) << " rows " << static_cast<int>(rows);
      }
    }
  }
}

}  // namespace
}  // namespace quire
