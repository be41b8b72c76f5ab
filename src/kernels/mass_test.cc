// The mass of attention against its definition in double, and every instruction set against the
// scalar one.
#include "kernels/mass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "base/half.h"
#include "base/random.h"
#include "format/format.h"

namespace quire {
namespace {

constexpr std::uint32_t kQueries = 41;
constexpr MassRule kRules[] = {MassRule::sum, MassRule::peak, MassRule::below};

// A lane of 45 slots, a table from slot 64 to 64 + 150, and 7 rows of an open block of 32: encoded in
// a format, but for the last.
class World {
 public:
  World(const char* format, std::uint32_t dim)
      : dim_(dim),
        format_(*find_format(format).value()),
        part_(encoded_part(*format_.keys, Side::keys, {32, dim})),
        units_((format_.key_bytes({32, dim, dim}) + 255) / 256),
        row_units_((std::size_t{32} * dim * 2 + 255) / 256),
        arena_((10 * units_ + 10 * row_units_) * 256 + 256) {
    Random random(5);
    keys_.resize(std::size_t{kSlots} * dim);
    queries_.resize(std::size_t{kQueries} * 3 * dim);
    for (float& x : keys_) x = f16_to_f32(f32_to_f16(static_cast<float>(2 * random.unit() - 1)));
    for (float& x : queries_) x = static_cast<float>(4 * random.unit() - 2);
    const auto at = reinterpret_cast<std::uintptr_t>(arena_.data());
    base_ = arena_.data() + (64 - at % 64) % 64;
    for (std::uint32_t i = 0; i < 10; ++i)
      pages_.push_back(ArenaOffset{static_cast<std::uint32_t>(i * units_)});
    open_.assign(7, ArenaOffset{static_cast<std::uint32_t>(10 * units_)});
    const EncodedPart* encoded = format_.exact ? nullptr : &part_;
    parts_ = {{pages_.data(), 0, 0, 45, encoded, RowType::f16},
              {pages_.data(), 0, 64, 214, encoded, RowType::f16},
              {open_.data(), 0, 192, 199, nullptr, RowType::f16}};
    std::uint32_t slot = 0;
    for (const KeyPart& p : parts_)
      for (std::uint32_t s = p.begin; s < p.end; s += 32) {
        std::vector<float> rows(std::size_t{32} * dim);
        const std::uint32_t count = std::min(32u, p.end - s);
        std::copy_n(&keys_[std::size_t{slot} * dim], count * dim, rows.begin());
        const Codec& codec = p.encoded ? *format_.keys : *find_codec("f16").value();
        std::byte* page = arena_at(base_, p.pages[s / 32]);
        codec.encode(codec, Side::keys, {32, dim}, rows.data(), page);
        codec.decode(codec, Side::keys, {32, dim}, page, rows.data());
        for (std::uint32_t i = 0; i < count; ++i) {
          from_basis(codec.key_basis, dim, &rows[i * dim]);
          std::copy_n(&rows[i * dim], dim, &keys_[std::size_t{slot + i} * dim]);
        }
        slot += count;
      }
  }

  // In calls of at most `cut` queries.
  std::vector<float> run(Isa isa, MassRule rule, MassReach reach, std::uint32_t cut) {
    std::vector<float> out(kSlots, 0.125f);
    MassScratch scratch;
    for (std::uint32_t first = 0; first < kQueries; first += cut) {
      MassInput in{.arena = base_,
                   .parts = parts_,
                   .tokens_per_block = 32,
                   .head_dim = dim_,
                   .queries = &queries_[std::size_t{first} * 3 * dim_],
                   .stride = std::size_t{3} * dim_,
                   .count = std::min(cut, kQueries - first),
                   .scale = 0.5f,
                   .reach = reach};
      in.reach.own_end += first;
      add_mass(mass_kernels(isa), encoded_kernels(isa), in, rule, 0.75f, scratch, out.data());
    }
    return out;
  }

  std::vector<double> expected(MassRule rule, const MassReach& reach) const {
    std::vector<double> out(kSlots, 0.125);
    for (std::uint32_t i = 0; i < kQueries; ++i) {
      const auto sees = [&](std::uint32_t s) {
        return s < reach.sinks || (s >= reach.begin && s < reach.end) ||
               (s >= reach.own && s < reach.own_end + i);
      };
      std::vector<double> p(kSlots);
      double sum = 0, seen = 0;
      for (std::uint32_t s = 0; s < kSlots; ++s) {
        double dot = 0;
        for (std::uint32_t d = 0; d < dim_; ++d)
          dot += 0.5 * queries_[std::size_t{i} * 3 * dim_ + d] * keys_[std::size_t{s} * dim_ + d];
        if (!sees(s)) continue;
        sum += p[s] = std::exp(dot);
        ++seen;
      }
      for (std::uint32_t s = 0; s < kSlots; ++s) {
        if (rule == MassRule::sum) out[s] += 0.75 * p[s] / sum;
        if (rule == MassRule::peak) out[s] = std::max(out[s], p[s] / sum);
        if (rule == MassRule::below && sees(s) && p[s] / sum < 1 / seen) out[s] += 0.75;
      }
    }
    return out;
  }

 private:
  static constexpr std::uint32_t kSlots = 45 + 150 + 7;
  const std::uint32_t dim_;
  const Format& format_;
  const EncodedPart part_;
  const std::size_t units_, row_units_;
  std::vector<std::byte> arena_;
  std::byte* base_;
  std::vector<ArenaOffset> pages_, open_;
  std::vector<KeyPart> parts_;
  std::vector<float> keys_, queries_;
};

constexpr MassReach kReaches[] = {{.own_end = 150},
                                  {.sinks = 4, .begin = 50, .end = 90, .own = 130, .own_end = 140},
                                  {.begin = 10, .end = 33, .own = 33, .own_end = 34}};

// Queries against codes are rounded to 8 bits.
TEST(Mass, IsTheAttentionThatSlotsReceive) {
  for (const char* format : {"f16", "int8", "hadamard-int4"}) {
    World world(format, 64);
    for (const MassReach& reach : kReaches)
      for (const MassRule rule : kRules) {
        const std::vector<float> got = world.run(best_isa(), rule, reach, kQueries);
        const std::vector<double> want = world.expected(rule, reach);
        std::uint32_t off = 0;  // counts of what is all but average
        for (std::size_t s = 0; s < got.size(); ++s) {
          if (rule == MassRule::below)
            off += std::fabs(got[s] - want[s]) > 0.1;
          else
            ASSERT_NEAR(got[s], want[s],
                        (std::string_view(format) == "f16" ? 1e-4 : 0.06) * want[s])
                << format << ' ' << s;
        }
        EXPECT_LT(off, got.size() / 4) << format;
      }
  }
}

TEST(Mass, NeitherInstructionsNorCutsMatter) {
  for (const char* format : {"f16", "int8", "kivi-2", "fp8-e4m3"})
    for (const std::uint32_t dim : {32u, 96u}) {
      World world(format, dim);
      for (const MassRule rule : kRules) {
        const MassReach& reach = kReaches[static_cast<std::size_t>(rule)];
        const std::vector<float> want = world.run(Isa::scalar, rule, reach, kQueries);
        for (const Isa isa : kIsas)
          for (const std::uint32_t cut : {5u, kQueries})
            if (cpu_has(isa)) {
              EXPECT_EQ(world.run(isa, rule, reach, cut), want)
                  << format << ' ' << dim << ' ' << isa_name(isa) << ' ' << cut;
            }
      }
    }
}

TEST(Mass, MomentsAreAddedRowByRow) {
  for (const std::uint32_t dim : {16u, 64u, 80u}) {
    std::vector<float> rows(std::size_t{9} * 2 * dim);
    Random random(dim);
    for (float& x : rows) x = static_cast<float>(random.unit() - 0.5);
    std::vector<float> sums[2], products[2];
    for (const bool fast : {false, true}) {
      const MassKernels& kernels = mass_kernels(fast ? best_isa() : Isa::scalar);
      sums[fast].resize(dim);
      products[fast].resize(std::size_t{dim} * dim);
      for (const std::uint32_t first : {0u, 4u})
        kernels.moments(&rows[std::size_t{first} * 2 * dim], std::size_t{2} * dim,
                        first == 0 ? 4 : 5, dim, sums[fast].data(), products[fast].data());
    }
    EXPECT_EQ(sums[0], sums[1]);
    EXPECT_EQ(products[0], products[1]);
    double want = 0;
    for (std::uint32_t r = 0; r < 9; ++r)
      want += double{rows[std::size_t{r} * 2 * dim + 3]} * rows[std::size_t{r} * 2 * dim + 5];
    EXPECT_NEAR(products[0][3 * dim + 5], want, 1e-6);
  }
}

TEST(Mass, QuadraticFormsAgree) {
  for (const std::uint32_t dim : {16u, 64u, 72u}) {
    Random random(dim);
    std::vector<float> rows(std::size_t{13} * dim), matrix(std::size_t{dim} * dim), want(13);
    for (float& x : rows) x = static_cast<float>(random.unit() - 0.5);
    for (float& x : matrix) x = static_cast<float>(random.unit() - 0.5);
    kMassScalar.quadratic(rows.data(), 13, dim, matrix.data(), want.data());
    double plain = 0;
    for (std::uint32_t i = 0; i < dim; ++i)
      for (std::uint32_t j = 0; j < dim; ++j)
        plain += double{rows[7 * dim + i]} * matrix[std::size_t{i} * dim + j] * rows[7 * dim + j];
    EXPECT_NEAR(want[7], plain, 1e-5);
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa)) continue;
      std::vector<float> got(13);
      mass_kernels(isa).quadratic(rows.data(), 13, dim, matrix.data(), got.data());
      EXPECT_EQ(got, want) << isa_name(isa) << ' ' << dim;
    }
  }
}

}  // namespace
}  // namespace quire
