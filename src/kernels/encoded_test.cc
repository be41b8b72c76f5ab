#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/encoded_testing.h"

namespace quire {
namespace {

constexpr Isa kFast[] = {Isa::avx2, Isa::avx512, Isa::vnni};

std::string name_of(const EncodedPages& pages, std::uint32_t n, Isa isa = Isa::scalar) {
  return std::string(pages.part.codec->name) +
         (pages.part.side == Side::keys ? " keys" : " values") + " P " +
         std::to_string(pages.part.rows.tokens) + " dim " + std::to_string(pages.part.rows.dim) +
         " pages " + std::to_string(pages.unit.page_count) + " n " + std::to_string(n) + " " +
         std::string(isa_name(isa));
}

std::vector<float> queries_for(Gaussian& random, std::uint32_t n, std::uint32_t dim) {
  std::vector<float> q(std::size_t{n} * dim);
  for (float& x : q) x = random.next();
  if (n > 1) std::fill_n(q.begin() + dim, dim, 0.0f);        // a row of zeros
  if (n > 2) q[2 * dim + 1] = 300, q[2 * dim + 5] = -1e-3f;  // one channel above all
  if (n > 3) q[3 * dim] = INFINITY;
  return q;
}

// Weights as softmax leaves them: most far below the largest.
std::vector<float> weights_for(Gaussian& random, std::uint32_t n) {
  std::vector<float> w(std::size_t{n} * kEncodedUnit);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = std::exp(-std::fabs(3 * random.next()) * static_cast<float>(i / kEncodedUnit % 3));
  if (n > 1) std::fill_n(w.begin() + kEncodedUnit, kEncodedUnit, 0.0f);
  return w;
}

// Rows with the troubles of real keys: a large channel, a large token, a row of zeros.
std::vector<float> rows_for(Gaussian& random, Rows rows) {
  std::vector<float> x = random.rows(rows);
  for (std::uint32_t t = 0; t < rows.tokens; ++t) x[t * rows.dim + 3] += 20;
  for (std::uint32_t d = 0; d < rows.dim; ++d) x[5 * rows.dim + d] *= 30, x[6 * rows.dim + d] = 0;
  return x;
}

void compare(EncodedPages& pages, std::uint32_t n, Gaussian& random) {
  const bool keys = pages.part.side == Side::keys;
  const std::vector<float> in =
      keys ? queries_for(random, n, pages.part.rows.dim) : weights_for(random, n);
  const auto run = [&](Isa isa) {
    return keys ? run_scores(isa, pages, in, n) : run_values(isa, pages, in, n);
  };
  const std::vector<float> wanted = run(Isa::scalar);
  for (const Isa isa : kFast) {
    if (!cpu_has(isa)) continue;
    ASSERT_TRUE(same_floats(wanted, run(isa))) << name_of(pages, n, isa);
  }
}

// A cross section of shapes; every codec and side has all of them.
struct Shape {
  std::uint32_t tokens, dim, pages, n;
};
constexpr Shape kShapes[] = {{32, 64, 2, 3}, {32, 64, 1, 1},  {16, 64, 4, 2},  {16, 64, 3, 4},
                             {64, 64, 1, 5}, {32, 128, 2, 2}, {32, 256, 2, 4}, {32, 32, 2, 3},
                             {32, 96, 1, 3}, {4, 64, 2, 2},   {32, 64, 2, 7},  {64, 512, 1, 1},
                             {32, 64, 4, 3}, {16, 64, 8, 4},  {64, 128, 2, 2}, {32, 64, 3, 3}};

TEST(Encoded, EveryInstructionSetGivesTheReferencesBits) {
  Gaussian random(7);
  for (const Codec* c : codecs())
    for (const Side side : {Side::keys, Side::values})
      for (const Shape& s : kShapes) {
        const Rows rows{s.tokens, s.dim};
        if (!check_rows(*c, rows).ok() || (c->research && s.dim > 64)) continue;
        EncodedPages pages(*c, side, rows, s.pages);
        pages.encode(rows_for(random, {pages.slots(), s.dim}));
        compare(pages, s.n, random);
        if (HasFatalFailure()) return;
      }
}

TEST(Encoded, AnyBytesGiveTheSameBitsToo) {
  Random bytes(3);
  Gaussian random(8);
  for (const Codec* c : codecs())
    for (const Side side : {Side::keys, Side::values}) {
      EncodedPages pages(*c, side, {32, 64}, 2);
      for (std::size_t i = 0; i < 2 * pages.part.page_bytes; ++i)
        pages.page(0)[i] = std::byte(bytes.next() & 0xff);
      compare(pages, 3, random);
      if (HasFatalFailure()) return;
    }
}

TEST(Encoded, ARowIsTheSameAloneAndAmongMany) {
  Gaussian random(9);
  for (const Codec* c : codecs())
    for (const Side side : {Side::keys, Side::values}) {
      EncodedPages pages(*c, side, {32, 64}, 2);
      pages.encode(rows_for(random, {64, 64}));
      const bool keys = side == Side::keys;
      const std::uint32_t dim = pages.part.rows.dim;
      const std::vector<float> in = keys ? queries_for(random, 8, dim) : weights_for(random, 8);
      const auto run = [&](const std::vector<float>& x, std::uint32_t n) {
        return keys ? run_scores(best_isa(), pages, x, n) : run_values(best_isa(), pages, x, n);
      };
      const std::vector<float> all = run(in, 8);
      for (std::size_t r = 0; r < 8; ++r) {
        const std::size_t given = keys ? dim : kEncodedUnit, made = keys ? kEncodedUnit : dim;
        const std::vector<float> one(in.begin() + r * given, in.begin() + (r + 1) * given);
        const std::vector<float> part(all.begin() + r * made, all.begin() + (r + 1) * made);
        ASSERT_TRUE(same_floats(part, run(one, 1))) << name_of(pages, 1) << " row " << r;
      }
    }
}

// What a slot's row says about the others: nothing, where weights are 0.
TEST(Encoded, SlotsOfNoWeightAreNotSeen) {
  Gaussian random(10);
  for (const Codec* c : codecs()) {
    if (c->exact || !slots_stand_alone(*c, Side::values, {32, 64})) continue;
    EncodedPages a(*c, Side::values, {32, 64}, 2), b(*c, Side::values, {32, 64}, 2);
    std::vector<float> rows = rows_for(random, {64, 64}), w = weights_for(random, 1);
    a.encode(rows);
    for (std::uint32_t t = 20; t < 40; ++t) {
      w[t] = 0;
      for (std::uint32_t d = 0; d < 64; ++d) rows[t * 64 + d] = random.next() * 100;
    }
    b.encode(rows);
    ASSERT_TRUE(same_floats(run_values(best_isa(), a, w, 1), run_values(best_isa(), b, w, 1)))
        << c->name;
  }
}

struct Errors {
  double arithmetic, codec;  // mean squares
};

// Scores or outputs against sums in double over decoded rows, and those against the rows that were
// encoded.
Errors errors_of(const Codec& c, Side side, std::uint32_t dim, bool outliers) {
  Gaussian random(11);
  Errors e{};
  constexpr std::uint32_t kRows = 12;
  const bool keys = side == Side::keys;
  for (int round = 0; round < 6; ++round) {
    EncodedPages pages(c, side, {32, dim}, 2);
    const std::vector<float> x = outliers ? rows_for(random, {64, dim}) : random.rows({64, dim});
    pages.encode(x);
    std::vector<float> y = pages.decode();
    for (std::uint32_t t = 0; t < 64; ++t) from_basis(c.basis(side), dim, &y[t * dim]);
    std::vector<float> in(std::size_t{kRows} * (keys ? dim : kEncodedUnit));
    for (std::size_t i = 0; i < in.size(); ++i)
      in[i] =
          keys ? random.next() : std::exp(random.next() * static_cast<float>(i / kEncodedUnit % 4));
    const std::vector<float> got = keys ? run_scores(Isa::scalar, pages, in, kRows)
                                        : run_values(Isa::scalar, pages, in, kRows);
    std::vector<float> ones(dim, 0.5f);
    if (!keys) from_basis(c.basis(side), dim, ones.data());  // what run_values started from
    for (std::uint32_t r = 0; r < kRows; ++r)
      for (std::uint32_t i = 0; i < (keys ? 64 : dim); ++i) {
        double decoded = 0, original = 0;
        for (std::uint32_t j = 0; j < (keys ? dim : 64); ++j) {
          const std::size_t at = keys ? i * dim + j : j * dim + i;
          const double by = in[r * (keys ? dim : kEncodedUnit) + j];
          decoded += by * y[at];
          original += by * x[at];
        }
        const double sum =
            keys ? got[r * kEncodedUnit + i] : (double{got[r * dim + i]} - ones[i]) / 3;
        e.arithmetic += std::pow(sum - decoded, 2);
        e.codec += std::pow(decoded - original, 2);
      }
  }
  return e;
}

TEST(Encoded, ArithmeticAddsLittleToTheErrorOfTheCodec) {
  for (const Codec* c : codecs()) {
    if (c->exact || c->layers > 1) continue;
    for (const Side side : {Side::keys, Side::values})
      for (const bool outliers : {false, true}) {
        const Errors e = errors_of(*c, side, 64, outliers);
        EXPECT_LT(e.arithmetic, (outliers ? 0.05 : 0.01) * e.codec)
            << c->name << (side == Side::keys ? " keys" : " values") << " outliers " << outliers;
      }
  }
}

TEST(Encoded, SealingIsEncoding) {
  Gaussian random(12);
  for (const Codec* c : codecs())
    for (const Side side : {Side::keys, Side::values})
      for (const Rows rows : {Rows{32, 64}, Rows{16, 128}, Rows{64, 256}, Rows{32, 96}}) {
        if (!check_rows(*c, rows).ok() || c->rows != RowType::f16 || c->layers > 1) continue;
        std::vector<float> x = rows_for(random, rows);
        x[7 * rows.dim] = INFINITY, x[8 * rows.dim + 1] = NAN, x[9 * rows.dim + 2] = -65504;
        x[10 * rows.dim + 2] = 6e-8f;
        std::vector<std::uint16_t> exact(x.size());
        for (std::uint32_t t = 0; t < rows.tokens; ++t)
          for (std::uint32_t d = 0; d < rows.dim; ++d)
            exact[side == Side::keys ? d * rows.tokens + t : t * rows.dim + d] =
                f32_to_f16(x[t * rows.dim + d]);
        for (float& v : x) v = f16_to_f32(f32_to_f16(v));
        EncodedPages wanted(*c, side, rows, 1);
        wanted.encode(x);
        for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::vnni}) {
          if (!cpu_has(isa)) continue;
          EncodedPages got(*c, side, rows, 1);
          std::memset(got.page(0), 0xa5, got.part.page_bytes);
          encoded_kernels(isa).seal(got.part, reinterpret_cast<const std::byte*>(exact.data()),
                                    got.page(0));
          std::size_t first = 0;
          while (first < got.part.page_bytes && got.page(0)[first] == wanted.page(0)[first])
            ++first;
          ASSERT_EQ(first, got.part.page_bytes)
              << name_of(got, 0, isa) << " differs at byte " << first << " of codes up to "
              << got.part.scales_at;
        }
      }
}

}  // namespace
}  // namespace quire
