// Attention over encoded blocks and rows: what it computes, and that nothing but positions decides.
#include "kernels/sealed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/half.h"
#include "base/random.h"
#include "base/sanitized.h"
#include "format/format.h"
#include "kernels/kv_run.h"

namespace quire {
namespace {

struct Case {
  const char* format;
  std::uint32_t length = 200, tokens = 32, kv_heads = 2, heads = 3, dim = 64;
  std::uint32_t window = 0, recent_blocks = 0, sink_blocks = 0;
  std::uint32_t compacted = 0, share = 3;  // later rows see one in `share` of this many tokens
  std::uint32_t rotated = 0;               // latent attention: kv_heads are parts of the heads

  std::uint32_t lanes() const { return rotated != 0 ? 1 : kv_heads; }
  std::uint32_t keys() const { return rotated != 0 ? rotated : dim; }
};

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, Free>;
Bytes bytes(std::size_t n) {
  Bytes b(static_cast<std::byte*>(std::aligned_alloc(256, (n + 255) / 256 * 256)));
  std::memset(b.get(), 0xff, (n + 255) / 256 * 256);
  return b;
}

// One sequence, all of whose tokens attend. Every block is there as rows and encoded. Once it has
// been compacted its first blocks are gone.
class World {
 public:
  explicit World(const Case& c) : c_(c), format_(*find_format(c.format).value()) {
    const PageShape page{c.tokens, c.keys(), c.dim};
    const Format& f16 = *find_format("f16").value();
    const auto shape = [&](const Format& f) {
      return AttendShape{.query_heads = c.kv_heads * c.heads,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.dim,
                         .scale = 1 / std::sqrt(static_cast<float>(c.dim)),
                         .rows = RowType::f16,
                         .layer_index = 0,
                         .page_bytes = f.key_bytes(page) + f.value_bytes(page),
                         .key_bytes = f.key_bytes(page),
                         .rotated = c.rotated};
    };
    encoded_ = shape(format_);
    rows_ = shape(f16);
    keys_ = encoded_part(*format_.keys, Side::keys, page.rows(Side::keys));
    values_ = encoded_part(*format_.values, Side::values, page.rows(Side::values));
    if (c.rotated != 0)
      latent_ = encoded_part(*format_.values, Side::keys, page.rows(Side::values));
    const std::uint32_t blocks = (c.length + c.tokens - 1) / c.tokens;
    const auto units = [&](const AttendShape& s) {
      return static_cast<std::uint32_t>((c.lanes() * s.page_bytes + 255) / 256);
    };
    const auto page_units = static_cast<std::uint32_t>((encoded_.page_bytes + 255) / 256);
    const std::uint32_t first_page = blocks * (units(encoded_) + units(rows_));
    arena_ = bytes((first_page + std::size_t{c.compacted} * c.lanes() * page_units) * 256);
    std::uint32_t pages = 0;
    for (std::uint32_t h = 0; h < c.lanes(); ++h) {
      kept_.emplace_back();
      lane_pages_.emplace_back();
      for (std::uint32_t t = c.sink_blocks * c.tokens; t < c.compacted; ++t)
        if (keeps(h, t)) kept_[h].push_back(t);
      for (std::size_t i = 0; i < kept_[h].size(); i += c.tokens)
        lane_pages_[h].push_back(ArenaOffset{first_page + pages++ * page_units});
    }
    for (std::uint32_t b = 0; b < blocks; ++b) {
      encoded_blocks_.push_back(ArenaOffset{b * units(encoded_)});
      row_blocks_.push_back(ArenaOffset{blocks * units(encoded_) + b * units(rows_)});
    }
    Random random(7);
    const auto noise = [&](std::size_t n) {
      std::vector<float> x(n);
      for (float& v : x) v = f16_to_f32(f32_to_f16(static_cast<float>(4 * random.unit() - 2)));
      return x;
    };
    const std::size_t rows = std::size_t{c.length} * c.lanes();
    k_ = noise(rows * c.keys());
    v_ = noise(rows * c.dim);
    queries_ = noise(std::size_t{c.length} * c.kv_heads * c.heads * query_dim(rows_));
  }

  // Outputs of all rows, computed `chunk` at a time. Blocks that a chunk fills whole are scratch.
  std::vector<float> run(Isa isa, std::uint32_t chunk) {
    const AttendKernels& kernels = attend_kernels(isa);
    const std::size_t width = std::size_t{encoded_.query_heads} * query_dim(encoded_);
    std::vector<float> out(c_.length * width, NAN);
    for (std::size_t i = 0; i < out.size(); ++i)  // what latent attention leaves alone
      if (i % query_dim(encoded_) >= c_.dim) out[i] = 0;
    const bool open_only = c_.recent_blocks == 0 && c_.sink_blocks == 0;
    const auto stride = static_cast<std::uint32_t>(c_.lanes() * rows_.page_bytes / kArenaUnit);
    for (std::uint32_t past = 0, count = 0; past < c_.length; past += count) {
      count = std::min(chunk, c_.length - past);
      if (past < compacted_at()) count = std::min(count, compacted_at() - past);
      const std::uint32_t end = past + count;
      const bool ragged = c_.compacted > 0 && past >= compacted_at();
      if (c_.compacted > 0 && past == compacted_at()) compact();
      const std::uint32_t begin = (past + c_.tokens - 1) / c_.tokens;
      std::vector<ArenaOffset> table = row_blocks_;
      Bytes scratch_rows = bytes((chunk / c_.tokens + 1) * stride * kArenaUnit);
      for (std::uint32_t b = begin; open_only && (b + 1) * c_.tokens <= end; ++b)
        table[b] = kNoBlock;
      const auto row_page = [&](std::uint32_t block, std::uint32_t head) {
        std::byte* at = table[block] == kNoBlock
                            ? scratch_rows.get() + (block - begin) * stride * kArenaUnit
                            : arena_at(arena_.get(), table[block]);
        return at + head * rows_.page_bytes;
      };
      for (std::uint32_t t = past; t < end; ++t)
        for (std::uint32_t h = 0; h < c_.lanes(); ++h) {
          const std::size_t at = std::size_t{t} * c_.lanes() + h;
          std::byte* page = row_page(t / c_.tokens, h);
          kernels.store_key(rows_, c_.tokens, &k_[at * c_.keys()], t % c_.tokens, page);
          kernels.store_value(rows_, c_.tokens, &v_[at * c_.dim], t % c_.tokens, page);
        }
      for (std::uint32_t b = past / c_.tokens; (b + 1) * c_.tokens <= end; ++b)
        for (std::uint32_t h = 0; h < c_.lanes(); ++h) {
          std::byte* page = arena_at(arena_.get(), encoded_blocks_[b]) + h * encoded_.page_bytes;
          encoded_kernels(isa).seal(keys_, row_page(b, h), page);
          encoded_kernels(isa).seal(values_, row_page(b, h) + rows_.key_bytes,
                                    page + encoded_.key_bytes);
        }
      std::vector<ArenaOffset> encoded_table = encoded_blocks_;
      KvSequenceView sequence{encoded_table.data(), 0, count, past};
      std::vector<KvLane> lanes;
      for (std::uint32_t h = 0; ragged && h < c_.lanes(); ++h) {
        lanes.push_back({lane_pages_[h].data(), static_cast<std::uint32_t>(kept_[h].size())});
        sequence.lane_slots_max = std::max(sequence.lane_slots_max, lanes.back().slots);
      }
      if (ragged) {
        std::fill_n(encoded_table.begin(), c_.compacted / c_.tokens, ArenaOffset{0xffffff00u});
        sequence.lanes = lanes.data();
        sequence.ragged_until = c_.compacted;
      }
      const KvView kv{arena_.get(), &sequence, 1, c_.tokens, c_.window};
      const RowBlocks rows{table.data(), begin, 0};
      SealedPlan plan;
      plan.threads = 1 + past % 5;
      plan_sealed(kv, {&rows, 1}, {encoded_, rows_, c_.recent_blocks, c_.sink_blocks, stride},
                  plan);
      std::vector<float> partials(plan.partial_count * partial_floats(encoded_), NAN);
      SealedStep step{.kv = kv,
                      .shape = encoded_,
                      .keys = keys_,
                      .values = values_,
                      .kernels = &encoded_kernels(isa),
                      .recent_blocks = c_.recent_blocks,
                      .sink_blocks = c_.sink_blocks,
                      .queries = &queries_[past * width],
                      .out = &out[past * width],
                      .row_stride = width,
                      .partials = partials.data(),
                      .latent = latent_};
      const Bytes scratch =
          bytes(std::max(sealed_scratch_bytes(step), attend_scratch_bytes(rows_)));
      for (const AttendTask& task : plan.encoded) kernels.attend_sealed(step, task, scratch.get());
      for (SealedPlan::Rows* part : {&plan.kept, &plan.passing}) {
        AttendStep own{part->view, rows_, step.queries, step.out, width, step.partials};
        own.kv.arena = part == &plan.kept ? arena_.get() : scratch_rows.get();
        for (const AttendTask& task : part->tasks) kernels.attend(own, task, scratch.get());
      }
      for (const SealedMerge& merge : plan.merges) kernels.merge_sealed(step, merge);
    }
    return out;
  }

  // The same in double, from decoded pages.
  std::vector<double> expected() const {
    std::vector<double> out;
    const std::vector<Page> pages = decoded_pages();
    for (std::uint32_t p = 0; p < c_.length; ++p)
      for (std::uint32_t q = 0; q < c_.kv_heads * c_.heads; ++q) {
        const std::uint32_t h = c_.rotated != 0 ? 0 : q / c_.heads, own = p / c_.tokens;
        const float* query =
            &queries_[(std::size_t{p} * c_.kv_heads * c_.heads + q) * query_dim(rows_)];
        std::vector<double> scores;
        std::vector<const float*> values;
        for (std::uint32_t t = 0; t <= p; ++t) {
          const std::uint32_t b = t / c_.tokens;
          const bool as_rows =
              b + c_.recent_blocks >= own || (c_.window == 0 && b < c_.sink_blocks);
          if (c_.window != 0 && t + c_.window <= p) continue;
          if (p >= compacted_at() && t < c_.compacted && !as_rows && !keeps(h, t)) continue;
          const std::size_t row = std::size_t{t} * c_.lanes() + h, slot = t % c_.tokens;
          const Page* page = as_rows ? nullptr : &pages[b * c_.lanes() + h];  // of whole blocks
          const float* key = page ? &page->keys[slot * c_.keys()] : &k_[row * c_.keys()];
          const float* value = page ? &page->values[slot * c_.dim] : &v_[row * c_.dim];
          double dot = 0;
          for (std::uint32_t d = 0; c_.rotated != 0 && d < c_.dim; ++d)
            dot += double{query[d]} * value[d];
          const float* const for_key = c_.rotated != 0 ? query + c_.dim : query;
          for (std::uint32_t d = 0; d < c_.keys(); ++d) dot += double{for_key[d]} * key[d];
          scores.push_back(dot * encoded_.scale);
          values.push_back(value);
        }
        double sum = 0;
        std::vector<double> o(c_.dim);
        const double top = *std::max_element(scores.begin(), scores.end());
        for (std::size_t i = 0; i < scores.size(); ++i) {
          const double w = std::exp(scores[i] - top);
          sum += w;
          for (std::uint32_t d = 0; d < c_.dim; ++d) o[d] += w * values[i][d];
        }
        for (const double x : o) out.push_back(x / sum);
        out.resize(out.size() + c_.rotated);
      }
    return out;
  }

 private:
  struct Page {
    std::vector<float> keys, values;
  };
  // Of whole blocks, by block and head: what their codes say.
  std::vector<Page> decoded_pages() const {
    const PageShape shape{c_.tokens, c_.keys(), c_.dim};
    const std::size_t tokens = c_.tokens;
    std::vector<std::byte> codes(encoded_.page_bytes);
    std::vector<Page> pages;
    for (std::uint32_t b = 0; (b + 1) * c_.tokens <= c_.length; ++b)
      for (std::uint32_t h = 0; h < c_.lanes(); ++h) {
        Page& page = pages.emplace_back(
            Page{std::vector<float>(tokens * c_.keys()), std::vector<float>(tokens * c_.dim)});
        for (std::uint32_t t = 0; t < c_.tokens; ++t) {
          const std::size_t row = std::size_t{b * c_.tokens + t} * c_.lanes() + h;
          std::copy_n(&k_[row * c_.keys()], c_.keys(), &page.keys[t * c_.keys()]);
          std::copy_n(&v_[row * c_.dim], c_.dim, &page.values[t * c_.dim]);
        }
        format_.encode(shape, page.keys.data(), page.values.data(), codes.data());
        format_.decode(shape, codes.data(), page.keys.data(), page.values.data());
        for (std::uint32_t t = 0; t < c_.tokens; ++t) {
          from_basis(format_.keys->key_basis, c_.keys(), &page.keys[t * c_.keys()]);
          from_basis(format_.values->value_basis, c_.dim, &page.values[t * c_.dim]);
        }
      }
    return pages;
  }
  bool keeps(std::uint32_t head, std::uint32_t t) const {
    return (t * 7919 + head * 31) % 97 % c_.share == 0;
  }
  // The first row that reads lanes: later than their tokens, as recent blocks are no part of them.
  std::uint32_t compacted_at() const { return c_.compacted + c_.recent_blocks * c_.tokens + 5; }
  void compact() {
    const PageShape shape{c_.tokens, c_.keys(), c_.dim};
    for (std::uint32_t h = 0; h < c_.lanes(); ++h) {
      for (const ArenaOffset page : lane_pages_[h])
        std::memset(arena_at(arena_.get(), page), 0, encoded_.page_bytes);
      for (std::uint32_t i = 0; i < kept_[h].size(); ++i)
        format_.copy_slot(shape,
                          arena_at(arena_.get(), encoded_blocks_[kept_[h][i] / c_.tokens]) +
                              h * encoded_.page_bytes,
                          kept_[h][i] % c_.tokens,
                          arena_at(arena_.get(), lane_pages_[h][i / c_.tokens]), i % c_.tokens);
    }
  }

  const Case c_;
  const Format& format_;
  AttendShape encoded_, rows_;
  EncodedPart keys_, values_, latent_{};
  Bytes arena_;
  std::vector<ArenaOffset> encoded_blocks_, row_blocks_;
  std::vector<std::vector<std::uint32_t>> kept_;  // by head
  std::vector<std::vector<ArenaOffset>> lane_pages_;
  std::vector<float> k_, v_, queries_;
};

const Case kCases[] = {
    {.format = "int8"},
    {.format = "hadamard-int4", .length = 700},
    {.format = "kivi-2", .length = 130, .dim = 32},
    {.format = "fp8-e4m3/q4_0"},
    {.format = "turbo-4/f16", .tokens = 16},
    {.format = "int8", .length = 150, .window = 40},
    {.format = "q5_1", .window = 20},
    {.format = "hadamard-int3", .length = 150, .recent_blocks = 2},
    {.format = "q8_0", .length = 600, .recent_blocks = 17, .sink_blocks = 1},
    {.format = "kivi-4", .sink_blocks = 1},
    {.format = "hadamard-int2", .length = 150, .window = 70, .recent_blocks = 1, .sink_blocks = 1},
    {.format = "int8", .length = 150, .tokens = 64, .kv_heads = 1, .heads = 9},
    {.format = "hadamard-int4", .length = 230, .compacted = 160},
    {.format = "int8", .length = 800, .tokens = 16, .kv_heads = 1, .compacted = 704, .share = 1},
    {.format = "nvfp4", .length = 200, .recent_blocks = 1, .sink_blocks = 1, .compacted = 96},
    {.format = "turbo-3/q4_0", .length = 150, .tokens = 64, .compacted = 128, .share = 96},
    // Latent attention, in one part and in several.
    {.format = "int8", .kv_heads = 1, .heads = 5, .dim = 128, .rotated = 32},
    {.format = "hadamard-int4", .length = 700, .dim = 128, .rotated = 64},
    {.format = "f16/int8", .length = 150, .tokens = 16, .recent_blocks = 1, .rotated = 16},
    {.format = "q8_0/q4_0", .length = 150, .dim = 96, .sink_blocks = 1, .rotated = 32},
    {.format = "int8/hadamard-int4-head", .length = 140, .tokens = 64, .dim = 512, .rotated = 64},
    {.format = "int8", .length = 230, .compacted = 160, .rotated = 32},
};

TEST(Sealed, ReadsEarlierBlocksDecodedAndItsOwnAsRows) {
  for (const Case& c : kCases) {
    World world(c);
    const std::vector<float> got = world.run(best_isa(), 64);
    const std::vector<double> want = world.expected();
    ASSERT_EQ(got.size(), want.size());
    double error = 0, power = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(std::isfinite(got[i])) << c.format << ' ' << i;
      error += std::pow(got[i] - want[i], 2);
      power += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(error / power), 0.02) << c.format;  // of the arithmetic; codes lose more
  }
}

TEST(Sealed, NeitherChunksNorThreadsNorInstructionsMatter) {
  constexpr std::uint32_t kFirst = kSanitized ? 1000 : 1;
  std::vector<std::uint32_t> chunks{7};
  if (!kSanitized) chunks = {1, 7, 32, 100, 1000};
  for (const Case& c : kCases) {
    World world(c);
    const std::vector<float> want = world.run(Isa::scalar, kFirst);
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa)) continue;
      for (const std::uint32_t chunk : chunks)
        EXPECT_EQ(world.run(isa, chunk), want)
            << c.format << ' ' << isa_name(isa) << " in chunks of " << chunk;
    }
  }
}

}  // namespace
}  // namespace quire
