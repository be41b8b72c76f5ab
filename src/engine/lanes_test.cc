// Compacted sequences through a whole model: what is computed from lanes that kept different tokens,
// what a tap sees of it, and what it takes.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/random.h"
#include "engine/masked_testing.h"
#include "engine/testing.h"

namespace quire {
namespace {

using Keep = std::vector<std::vector<std::uint32_t>>;  // by lane

TinyOptions llama(DType type = DType::f32) {
  return {.type = type, .layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 32};
}

std::vector<TokenId> text(std::uint32_t n, std::uint64_t seed = 1) {
  Random random(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& t : tokens) t = static_cast<TokenId>(random.below(256));
  return tokens;
}

// Of tokens [begin, end), a share by lane.
Keep some(std::uint32_t lanes, std::uint32_t end, double share, std::uint64_t seed = 3,
          std::uint32_t begin = 0) {
  Random random(seed);
  Keep keep(lanes);
  for (std::uint32_t lane = 0; lane < lanes; ++lane)
    for (std::uint32_t t = begin; t < end; ++t)
      if (random.chance(lane == 1 ? share / 3 : share)) keep[lane].push_back(t);
  return keep;
}

Keep all_of(std::uint32_t lanes, std::uint32_t end) {
  std::vector<std::uint32_t> every(end);
  std::iota(every.begin(), every.end(), 0);
  return Keep(lanes, every);
}

Status compact(Runtime& runtime, Sequence& s, std::uint32_t end, const Keep& keep) {
  const std::vector<std::span<const std::uint32_t>> spans(keep.begin(), keep.end());
  return runtime.cache().compact(s, 0, end, spans);
}

// Nobody else has its blocks.
Sequence open(Runtime& runtime) {
  Sequence s = std::move(runtime.cache()
                             .open({.root = runtime.tenant_root("").value(),
                                    .token_capacity = 2048,
                                    .reuse = false,
                                    .publish = false})
                             .value());
  runtime.cache().attach(s, {});
  return s;
}

// Logits of tokens that a sequence is given in such chunks.
std::vector<float> feed(Runtime& runtime, Sequence& s, std::span<const TokenId> tokens,
                        std::uint32_t chunk, Tap* tap = nullptr, std::uint32_t shift = 0) {
  std::vector<float> all;
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const StepItem item{
        .sequence = &s,
        .tokens = tokens.subspan(at, std::min<std::size_t>(chunk, tokens.size() - at)),
        .logits = Logits::all,
        .tap = tap,
        .position_shift = shift};
    const auto logits = Stepper(runtime).run({&item, 1});
    EXPECT_TRUE(logits.ok()) << (logits.ok() ? "" : logits.error().message);
    all.insert(all.end(), logits.value().begin(), logits.value().end());
  }
  return all;
}

TEST(Lanes, ComputeWhatAMaskedModelDoes) {
  const TinyFile file(llama());
  TinyRuntime runtime(llama(), {.kv_format = "f32"});
  MaskedLlama reference(file.path());
  const std::vector<TokenId> tokens = text(180);
  const Keep first = some(6, 96, 0.3), then = [&] {
    Keep keep = some(6, 160, 0.5, 9, 96);
    for (std::size_t lane = 0; lane < keep.size(); ++lane)  // a lane goes on with what it has
      for (std::size_t i = 0; i < first[lane].size(); i += 2)
        keep[lane].insert(keep[lane].begin() + static_cast<std::ptrdiff_t>(i / 2), first[lane][i]);
    return keep;
  }();
  const auto has = [](const Keep& keep, std::uint32_t lane, std::uint32_t t) {
    return std::ranges::binary_search(keep[lane], t);
  };
  reference.run(tokens,
                [&](std::uint32_t layer, std::uint32_t head, std::uint32_t q, std::uint32_t k) {
                  if (q >= 100 && k < 96 && !has(first, layer * 2 + head, k)) return false;
                  return q < 165 || k >= 160 || has(then, layer * 2 + head, k);
                });
  Sequence s = open(*runtime);
  std::vector<float> got = feed(*runtime, s, std::span(tokens).first(100), 64);
  ASSERT_TRUE(compact(*runtime, s, 96, first).ok());
  for (const auto& [begin, end, chunk] : {std::tuple{100u, 165u, 20u}, {165u, 180u, 1u}}) {
    const auto more = feed(*runtime, s, std::span(tokens).subspan(begin, end - begin), chunk);
    got.insert(got.end(), more.begin(), more.end());
    if (end == 165) {
      ASSERT_TRUE(compact(*runtime, s, 160, then).ok());
    }
  }
  std::vector<float> want;
  for (const auto& row : reference.logits) want.insert(want.end(), row.begin(), row.end());
  EXPECT_LT(difference(want, got), 1e-4);
}

struct Case {
  const char* format;
  DType weights;
  bool whole_blocks = false;
};
constexpr Case kCases[] = {
    {"f32", DType::f32},           {"f16", DType::q8_0},      {"hadamard-int4", DType::q8_0},
    {"kivi-2", DType::q8_0, true},
#ifndef QUIRE_SANITIZED  // seconds each
    {"bf16", DType::q8_0},         {"int8", DType::q8_0},     {"nvfp4", DType::q8_0},
    {"turbo-3", DType::q8_0},      {"fp8-e4m3", DType::q8_0},
#endif
};

// Lanes that keep everything are added up in the same units and splits where they end with a split.
// Where they end within one its parts are rounded apart; within a unit of codes, of which sums are
// integers, that is more.
TEST(Lanes, ThatKeepEverythingChangeNothing) {
  const std::vector<TokenId> tokens = text(530);
  for (const Case& c : kCases)
    for (const std::uint32_t end : {512u, 256u}) {
      TinyRuntime runtime(llama(c.weights),
                          {.activations = Activations::int16, .kv_format = c.format});
      std::vector<float> logits[2];
      for (const bool compacts : {false, true}) {
        Sequence s = open(*runtime);
        feed(*runtime, s, std::span(tokens).first(520), 128);
        if (compacts) {
          ASSERT_TRUE(compact(*runtime, s, end, all_of(6, end)).ok());
        }
        logits[compacts] = feed(*runtime, s, std::span(tokens).subspan(520), 3);
      }
      if (end == 512)
        EXPECT_EQ(logits[0], logits[1]) << c.format;
      else
        EXPECT_LT(difference(logits[0], logits[1]), c.weights == DType::f32 ? 1e-5 : 1e-2)
            << c.format;
    }
}

// One token of each of these sequences after the other, and all in one step; freed blocks hold NaN.
TEST(Lanes, NeitherNeighboursNorFreedBlocksNorChunksMatter) {
  for (const Case& c : kCases) {
    TinyRuntime runtime(llama(c.weights), {.threads = 2, .kv_format = c.format});
    std::vector<std::vector<float>> alone(4);
    for (const bool together : {false, true}) {
      std::vector<Sequence> all;
      for (std::uint32_t i = 0; i < 4; ++i) {
        all.push_back(open(*runtime));
        Sequence& s = all.back();
        feed(*runtime, s, text(200 + 50 * i, i), together ? 33 : 512);
        if (i == 2) continue;
        const std::uint32_t end = 96 + 32 * i;
        Keep keep = c.whole_blocks ? Keep(6) : some(6, end, 0.2 * (i + 1), i);
        for (std::uint32_t lane = 0; c.whole_blocks && lane < 6; ++lane)
          for (std::uint32_t t = 0; t < end; ++t)
            if ((t / 32 + lane) % 2 == 0) keep[lane].push_back(t);
        const std::vector<ArenaOffset> old(s.table(0), s.table(0) + end / 32);
        const Status done = compact(*runtime, s, end, keep);
        ASSERT_TRUE(done.ok()) << c.format << ": " << done.error().message;
        for (const ArenaOffset block : old)
          if (!kPoisonByDefault)  // else the cache has done so
            std::memset(arena_at(runtime->cache().arena(), block), 0xff,
                        runtime->geometry().block_bytes(runtime->geometry().groups[0]));
      }
      for (std::uint32_t round = 0; round < 3; ++round) {
        std::vector<StepItem> items;
        const std::vector<TokenId> next = text(3, 77);
        for (Sequence& s : all)
          items.push_back(
              {&s, together ? std::span(next) : std::span(next).subspan(round, 1), Logits::last});
        if (!together) {
          for (std::uint32_t i = 0; i < 4; ++i) {
            const auto logits = Stepper(*runtime).run({&items[i], 1});
            ASSERT_TRUE(logits.ok());
            alone[i].assign(logits.value().begin(), logits.value().end());
          }
          continue;
        }
        if (round > 0) continue;
        const auto logits = Stepper(*runtime).run(items);
        ASSERT_TRUE(logits.ok());
        const std::size_t vocabulary = runtime->config().vocabulary;
        for (std::uint32_t i = 0; i < 4; ++i)
          EXPECT_TRUE(
              std::ranges::equal(alone[i], logits.value().subspan(i * vocabulary, vocabulary)))
              << c.format << ", sequence " << i;
      }
    }
  }
}

TEST(Lanes, TakeTheBytesOfTheirPages) {
  for (const Case& c : kCases) {
    if (c.whole_blocks) continue;
    TinyRuntime runtime(llama(c.weights), {.kv_format = c.format});
    Sequence s = open(*runtime);
    feed(*runtime, s, text(300), 512);
    const Geometry& geometry = runtime->geometry();
    const Keep keep = some(6, 288, 0.2);
    const std::uint64_t before = runtime->cache().stats().referenced_bytes;
    ASSERT_TRUE(compact(*runtime, s, 288, keep).ok());
    std::uint64_t pages = 0;
    for (const auto& lane : keep) pages += (lane.size() + 31) / 32;
    const std::uint64_t page_bytes = (geometry.page_bytes(geometry.groups[0]) + 255) / 256 * 256;
    EXPECT_EQ(before - runtime->cache().stats().referenced_bytes,
              9 * geometry.block_bytes(geometry.groups[0]) - pages * page_bytes)
        << c.format;
    runtime->cache().check();
  }
}

// Layers that see a window have nothing to compact; the others do not notice them.
TEST(Lanes, LiveBesideWindows) {
  const std::vector<TokenId> tokens = text(530);
  for (const char* format : {"f16", "int8"}) {
    TinyRuntime runtime(
        {.architecture = "gemma3", .type = DType::q8_0, .layers = 7, .head_dim = 32, .window = 40},
        {.kv_format = format});
    const Geometry& geometry = runtime->geometry();
    const std::uint32_t full = geometry.places[5].group, lanes = geometry.groups[full].lanes();
    ASSERT_EQ(geometry.groups[full].kind, GroupKind::full);
    ASSERT_NE(full, 0u);
    std::vector<float> logits[3];
    for (const std::uint32_t way : {0u, 1u, 2u}) {  // all of it; in lanes; less of it
      Sequence s = open(*runtime);
      feed(*runtime, s, std::span(tokens).first(520), 128);
      const Keep keep = way == 1 ? all_of(lanes, 512) : some(lanes, 512, 0.2);
      const std::vector<std::span<const std::uint32_t>> spans(keep.begin(), keep.end());
      EXPECT_FALSE(runtime->cache().compact(s, 0, 512, spans).ok());
      if (way > 0) {
        ASSERT_TRUE(runtime->cache().compact(s, full, 512, spans).ok());
      }
      logits[way] = feed(*runtime, s, std::span(tokens).subspan(520), 3);
    }
    EXPECT_EQ(logits[0], logits[1]) << format;
    EXPECT_NE(logits[0], logits[2]) << format;
    for (const float x : logits[2]) ASSERT_TRUE(std::isfinite(x));
  }
}

// What is read as rows is not in lanes.
TEST(Lanes, LeaveExactTokensAlone) {
  TinyRuntime runtime(llama(DType::q8_0),
                      {.kv_format = "int8", .kv_recent_exact = 64, .kv_sinks = 4});
  Sequence s = open(*runtime);
  feed(*runtime, s, text(200), 512);
  EXPECT_FALSE(compact(*runtime, s, 160, some(6, 160, 0.5, 3, 32)).ok());
  EXPECT_FALSE(compact(*runtime, s, 128, some(6, 128, 0.9)).ok());
  EXPECT_TRUE(compact(*runtime, s, 128, some(6, 128, 0.5, 3, 32)).ok());
  for (const float x : feed(*runtime, s, text(3), 1)) ASSERT_TRUE(std::isfinite(x));
}

// What a tap gives, of one run: masses by rule, then moments.
struct Seen {
  std::vector<float> masses;
  std::vector<double> moments;
  bool operator==(const Seen&) const = default;
};
constexpr MassRule kRules[] = {MassRule::sum, MassRule::peak, MassRule::below};

Seen observe(Runtime& runtime, std::span<const TokenId> tokens, std::uint32_t chunk,
             const Keep* keep = nullptr) {
  const auto n = static_cast<std::uint32_t>(tokens.size());
  Tap tap(runtime.config(), runtime.geometry(), 0);
  tap.watch(n - 20, 20);
  tap.sum_moments(4, n);
  Sequence s = open(runtime);
  feed(runtime, s, tokens.first(n - 15), chunk, &tap);
  if (keep != nullptr) {
    EXPECT_TRUE(compact(runtime, s, 64, *keep).ok());
  }
  feed(runtime, s, tokens.subspan(n - 15), chunk, &tap);
  std::vector<KvSequenceView> views;
  for (std::uint32_t g = 0; g < runtime.geometry().groups.size(); ++g)
    views.push_back(runtime.cache().view(s, g));
  Seen seen;
  seen.masses.resize(3 * 12 * n);
  for (std::size_t rule = 0; rule < 3; ++rule) {
    std::vector<float*> out;
    for (std::size_t i = 0; i < 12; ++i) out.push_back(&seen.masses[(rule * 12 + i) * n]);
    const MassAsk ask{.rule = kRules[rule], .weight = 0.25f, .first = n - 10, .rows = 10};
    runtime.executor().page_work()->add_mass(runtime.geometry(), {runtime.cache().arena(), views},
                                             tap, ask, out);
  }
  EXPECT_EQ(tap.moment_count(), n - 4);
  for (std::uint32_t layer = 0; layer < 3; ++layer)
    for (std::uint32_t head = 0; head < 4; ++head) {
      const auto sums = tap.sums(layer, head), products = tap.products(layer, head);
      seen.moments.insert(seen.moments.end(), sums.begin(), sums.end());
      seen.moments.insert(seen.moments.end(), products.begin(), products.end());
    }
  return seen;
}

TEST(Taps, SeeTheAttentionThatAPlainModelPays) {
  const TinyFile file(llama());
  TinyRuntime runtime(llama(), {.kv_format = "f32"});
  const std::vector<TokenId> tokens = text(150);
  const auto n = static_cast<std::uint32_t>(tokens.size());
  MaskedLlama reference(file.path());
  const Keep keep = some(6, 64, 0.3);
  for (const bool compacts : {false, true}) {
    const auto kept = [&](std::uint32_t lane, std::uint32_t t) {
      return !compacts || t >= 64 || std::ranges::binary_search(keep[lane], t);
    };
    reference.run(tokens, [&](std::uint32_t layer, std::uint32_t head, std::uint32_t q,
                              std::uint32_t k) { return q < n - 15 || kept(layer * 2 + head, k); });
    const Seen seen = observe(*runtime, tokens, 40, compacts ? &keep : nullptr);
    for (std::uint32_t i = 0; i < 12; ++i) {
      const std::uint32_t layer = i / 4, head = i % 4, lane = layer * 2 + head / 2;
      std::uint32_t slots = 0, slot = 0;
      for (std::uint32_t t = 0; t < n; ++t) slots += kept(lane, t);
      for (std::uint32_t t = 0; t < n; ++t) {
        if (!kept(lane, t)) continue;
        double sum = 0, peak = 0;
        for (std::uint32_t q = n - 10; q < n; ++q) {
          const double p = reference.attention(layer, head, q, t);
          sum += 0.25 * p;
          peak = std::max(peak, p);
        }
        ASSERT_NEAR(seen.masses[i * n + slot], sum, 2e-5);
        ASSERT_NEAR(seen.masses[(12 + i) * n + slot], peak, 2e-5);
        ++slot;
      }
      // Nobody can give less than average to all slots, nor to none.
      double below = 0;
      for (std::uint32_t j = 0; j < slots; ++j) below += seen.masses[(24 + i) * n + j];
      EXPECT_GT(below, 0);
      EXPECT_LT(below, 0.25 * 10 * slots);
    }
  }
}

TEST(Taps, DependNeitherOnChunksNorOnInstructions) {
  const std::vector<TokenId> tokens = text(150);
  for (const char* format : {"f16", "hadamard-int4"}) {
    TinyRuntime runtime(llama(DType::q8_0), {.threads = 2, .kv_format = format});
    const Seen whole = observe(*runtime, tokens, 512);
    for (const std::uint32_t chunk : {1u, 7u, 64u})
      EXPECT_TRUE(observe(*runtime, tokens, chunk) == whole) << format << ", chunks of " << chunk;
    for (const Isa isa : {Isa::scalar, Isa::avx2}) {
      TinyRuntime other(llama(DType::q8_0), {.isa = isa, .kv_format = format});
      EXPECT_TRUE(observe(*other, tokens, 64) == whole) << format << ' ' << isa_name(isa);
    }
  }
}

// Keys turned back by as much as positions are: nothing else has changed.
TEST(Lanes, MayMoveToOtherPositions) {
  TinyRuntime runtime(llama(), {.kv_format = "f32"});
  const std::vector<TokenId> tokens = text(140);
  std::vector<float> logits[2];
  for (const bool moves : {false, true}) {
    Sequence s = open(*runtime);
    feed(*runtime, s, std::span(tokens).first(128), 64);
    ASSERT_TRUE(compact(*runtime, s, 128, some(6, 128, 0.5)).ok());
    const std::uint32_t delta = moves ? 100 : 0;
    const LayerGroup& group = runtime->geometry().groups[0];
    const PageShape shape = runtime->geometry().page_shape(group);
    Sequence fork = std::move(runtime->cache().fork(s).value());  // must keep what it has
    for (std::uint32_t lane = 0; moves && lane < 6; ++lane) {
      ASSERT_TRUE(runtime->cache().own_lane(s, 0, lane).ok());
      const LaneView view = runtime->cache().lane(s, 0, lane);
      for (std::uint32_t slot = 0; slot < view.slots; slot += 32) {
        std::byte* page = arena_at(runtime->cache().arena(), view.pages[slot / 32]);
        std::vector<float> keys(32 * 32), values(32 * 32);
        group.format->decode(shape, page, keys.data(), values.data());
        runtime->executor().page_work()->rotate_keys(lane / 2, -static_cast<std::int32_t>(delta),
                                                     32, keys.data());
        group.format->encode(shape, keys.data(), values.data(), page);
      }
    }
    logits[moves] = feed(*runtime, s, std::span(tokens).subspan(128), 1, nullptr, delta);
    if (moves) {
      EXPECT_EQ(logits[0], feed(*runtime, fork, std::span(tokens).subspan(128), 1));
    }
  }
  EXPECT_LT(difference(logits[0], logits[1]), 1e-4);
}

}  // namespace
}  // namespace quire
