// Choosing pages: bounds that hold, what is found where it was put, and every instruction set against
// the scalar one.
#include "kernels/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "base/random.h"

namespace quire {
namespace {
using testing::ElementsAre;

constexpr std::uint32_t kDim = 32, kPage = 16;

std::vector<float> noise(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(random.unit() + random.unit() + random.unit()) - 1.5f;
  return x;
}

// Rows of tokens as pages hold keys: [page][dim][P], zeros behind the end.
std::vector<float> paged(const std::vector<float>& rows, std::uint32_t dim) {
  const auto tokens = static_cast<std::uint32_t>(rows.size() / dim);
  std::vector<float> out(std::size_t{(tokens + kPage - 1) / kPage} * kPage * dim);
  for (std::uint32_t t = 0; t < tokens; ++t)
    for (std::uint32_t d = 0; d < dim; ++d)
      out[(std::size_t{t / kPage} * dim + d) * kPage + t % kPage] = rows[t * dim + d];
  return out;
}

std::span<const float> row_of(const std::vector<float>& rows, std::uint32_t t) {
  return std::span(rows).subspan(std::size_t{t} * kDim, kDim);
}

double product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

std::vector<const SelectKernels*> every_kernel() {
  std::vector<const SelectKernels*> all;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (cpu_has(isa)) all.push_back(&select_kernels(isa));
  return all;
}

TEST(Quest, ItsScoreIsNeverBelowAProductWithinThePage) {
  const std::uint32_t tokens = 10000;
  const std::vector<float> keys = noise(tokens * kDim, 1), queries = noise(2 * kDim, 2);
  const std::vector<float> pages = paged(keys, kDim);
  for (const std::uint32_t page : {1u, kPage}) {
    PageBounds bounds(1, kDim);
    for (std::uint32_t p = 0; p < tokens / page; ++p)
      bounds.add(0,
                 page == 1 ? &keys[std::size_t{p} * kDim] : &pages[std::size_t{p} * kPage * kDim],
                 page);
    ASSERT_EQ(bounds.pages(0), tokens / page);
    std::vector<float> scores(tokens / page);
    kSelectScalar.bound_scores(bounds.of(0), tokens / page, kDim, queries.data(), 2, scores.data());
    for (std::uint32_t p = 0; p < scores.size(); ++p) {
      double most = -std::numeric_limits<double>::infinity();
      for (std::uint32_t t = p * page; t < (p + 1) * page; ++t)
        for (const std::uint32_t q : {0u, 1u})
          most = std::max(most, product(row_of(queries, q), row_of(keys, t)));
      ASSERT_GE(scores[p], most - 1e-5);
      if (page == 1) {
        ASSERT_NEAR(scores[p], most, 1e-5);
      }
    }
  }
}

TEST(Quest, ThePageOfAKeyAlongTheQueryComesFirst) {
  std::vector<float> keys = noise(64 * kDim, 1);
  const std::vector<float> query = noise(kDim, 2);
  for (std::uint32_t c = 0; c < kDim; ++c) keys[37 * kDim + c] = 5 * query[c];
  const std::vector<float> pages = paged(keys, kDim);
  PageBounds bounds(2, kDim);
  for (std::uint32_t p = 0; p < 4; ++p) bounds.add(1, &pages[std::size_t{p} * kPage * kDim], kPage);
  std::vector<float> scores(4);
  kSelectScalar.bound_scores(bounds.of(1), 4, kDim, query.data(), 1, scores.data());
  EXPECT_EQ(std::ranges::max_element(scores) - scores.begin(), 2);
  EXPECT_EQ(bounds.bytes(), 4u * 2 * kDim * sizeof(float));
  bounds.cut(3);
  EXPECT_EQ(bounds.pages(1), 3u);
  EXPECT_EQ(bounds.pages(0), 0u);
}

TEST(ChoosePages, TakesTheBestAndThreeAtLeast) {
  std::vector<std::uint32_t> pages;
  choose_pages(std::vector<float>{1, 5, 5, 9, 5, 0}, 3, pages);
  EXPECT_THAT(pages, ElementsAre(1, 2, 3));  // a tie: the lower
  choose_pages(std::vector<float>{1, 5, 4, 9, 5, 0}, 1, pages);
  EXPECT_THAT(pages, ElementsAre(1, 3, 4));
  choose_pages(std::vector<float>{1, 5}, 9, pages);
  EXPECT_THAT(pages, ElementsAre(0, 1));
  choose_pages({}, 9, pages);
  EXPECT_TRUE(pages.empty());
}

constexpr std::uint32_t kTokens = 96;
constexpr float kScale = 0.35f;

// Keys drift slowly, as neighbouring tokens of a text do.
std::vector<float> drifting(std::uint64_t seed) {
  std::vector<float> x = noise(kTokens * kDim, seed);
  for (std::size_t i = kDim; i < x.size(); ++i) x[i] = 0.9f * x[i - kDim] + 0.45f * x[i];
  return x;
}

// Attention of a query to all keys up to itself.
std::vector<double> attention(const std::vector<float>& q, const std::vector<float>& k,
                              std::uint32_t i) {
  std::vector<double> row;
  double sum = 0;
  for (std::uint32_t j = 0; j <= i; ++j)
    sum += row.emplace_back(std::exp(kScale * product(row_of(q, i), row_of(k, j))));
  for (double& x : row) x /= sum;
  return row;
}

struct Block {
  Block(std::vector<float> q, const std::vector<float>& k, std::uint32_t own, std::uint32_t count)
      : queries(std::move(q)), pages(paged(k, kDim)), first(own * kPage) {
    pages.resize(std::size_t{own + 1} * kPage * kDim);
    keys = {pages.data(), own + 1, kPage, kDim, first + count};
    for (std::uint32_t d = 0; d < kDim; ++d)  // nobody's yet
      for (std::uint32_t t = count; t < kPage; ++t)
        pages[(std::size_t{own} * kDim + d) * kPage + t] = 0;
    asking = {&queries[std::size_t{first} * kDim], kDim, first, count, kScale};
  }
  std::vector<float> shares(const SelectKernels& kernels = kSelectScalar) {
    std::vector<float> out(keys.pages);
    add_antidiagonal_shares(kernels, keys, asking, scratch, out);
    return out;
  }
  std::vector<float> queries, pages;
  std::uint32_t first;
  SelectKeys keys;
  SelectQueries asking;
  SelectScratch scratch;
};

TEST(XAttention, SharesOfABlockAreThoseOfItsAntidiagonals) {
  const std::vector<float> q = drifting(1), k = drifting(2);
  for (const std::uint32_t count : {16u, 5u}) {
    Block block(q, k, 4, count);
    const std::vector<float> shares = block.shares();
    std::vector<double> wanted;
    double sum = 0, all = 0;
    for (std::uint32_t j = 0; j < 5; ++j) {
      double dot = 0;
      for (std::uint32_t r = 0; r < 16; ++r)
        if (15 - r < count && (j < 4 || r < count))
          dot += product(row_of(q, 64 + 15 - r), row_of(k, j * 16 + r));
      sum += wanted.emplace_back(std::exp(kScale * dot / 16));
    }
    for (std::uint32_t j = 0; j < 5; ++j) {
      EXPECT_NEAR(shares[j], wanted[j] / sum, 1e-5);
      all += shares[j];
    }
    EXPECT_NEAR(all, 1, 1e-5);
  }
}

// A block of keys that all queries look at is found, wherever it stands.
TEST(XAttention, FindsTheBlockThatHoldsTheMass) {
  std::vector<float> q = drifting(1), k = drifting(2);
  for (std::uint32_t t = 32; t < 48; ++t)
    for (std::uint32_t c = 0; c < kDim; ++c) k[t * kDim + c] = c == 0 ? 6.0f : 0.0f;
  for (std::uint32_t t = 0; t < kTokens; ++t) q[t * kDim] = 3;
  Block block(q, k, 5, 16);
  std::vector<std::uint32_t> pages;
  choose_blocks(block.shares(), 0.9, block.scratch, pages);
  EXPECT_THAT(pages, ElementsAre(0, 2));
  double held = 0;
  for (std::uint32_t i = 80; i < 96; ++i) {
    const std::vector<double> row = attention(q, k, i);
    for (std::uint32_t j = 0; j <= i; ++j)
      if (j / 16 == 0 || j / 16 == 2 || j / 16 == 5) held += row[j] / 16;
  }
  EXPECT_GE(held, 0.9);
}

TEST(ChooseBlocks, TakesTheFewestAndAlwaysTheFirst) {
  SelectScratch scratch;
  std::vector<std::uint32_t> pages;
  choose_blocks(std::vector<float>{0, 0.5f, 0.1f, 0.3f, 0.1f}, 0.89, scratch, pages);
  EXPECT_THAT(pages, ElementsAre(0, 1, 3));
  choose_blocks(std::vector<float>{0, 0, 1}, 0.5, scratch, pages);
  EXPECT_THAT(pages, ElementsAre(0));
  choose_blocks(std::vector<float>{1}, 0.5, scratch, pages);
  EXPECT_TRUE(pages.empty());
}

TEST(VerticalSlash, FindsAColumnAndADiagonal) {
  std::vector<float> q(kTokens * kDim), k(kTokens * kDim);
  // Query i likes key i - 40: a code that only they share.
  const std::vector<float> codes = noise(kTokens * kDim, 5);
  for (std::uint32_t t = 0; t < kTokens; ++t)
    for (std::uint32_t c = 1; c < kDim; ++c) {
      k[t * kDim + c] = 3 * codes[t * kDim + c];
      if (t >= 40) q[t * kDim + c] = 9 * codes[(t - 40) * kDim + c];
    }
  Block block(q, k, 5, 16);
  std::vector<float> columns(kTokens), diagonals(kTokens);
  add_slashes(kSelectScalar, kMassScalar, block.keys, block.asking, block.scratch, columns,
              diagonals);
  for (std::uint32_t i = 92; i < 96; ++i) {
    const std::vector<double> row = attention(q, k, i);
    for (std::uint32_t j = 0; j <= i; ++j) columns[j] -= static_cast<float>(row[j]);
  }
  for (const float x : columns) EXPECT_NEAR(x, 0, 1e-4);
  columns.assign(kTokens, 0);
  columns[20] = 1;
  std::vector<std::uint32_t> pages;
  const SparsePrefill how{
      .way = SparsePrefill::Way::vertical_slash, .columns = 17, .diagonals = 17};
  choose_slashes(columns, diagonals, how, 80, kPage, block.scratch, pages);
  // The first columns are in page 0, the column in 1, the diagonal goes from 40 to 55, the nearest
  // ones reach back to 65.
  EXPECT_THAT(pages, ElementsAre(0, 1, 2, 3, 4));
  choose_slashes(columns, std::vector<float>(kTokens), how, 80, kPage, block.scratch, pages);
  EXPECT_THAT(pages, ElementsAre(0, 1, 4));  // diagonal 16 instead, the nearest of a tie
}

TEST(SelectKernels, AgreeWithTheScalarOnes) {
  const std::uint32_t dim = 64, pages = 7, tokens = 32, n = 5;
  const std::vector<float> keys = noise(std::size_t{pages} * dim * tokens, 1);
  const std::vector<float> queries = noise(std::size_t{n} * dim * 16, 2);
  std::vector<std::vector<float>> wanted;
  for (const SelectKernels* k : every_kernel()) {
    std::vector<std::vector<float>> got(4);
    for (const RowType type : {RowType::f32, RowType::f16, RowType::bf16}) {
      std::vector<std::uint16_t> halves;
      for (const float x : keys)
        halves.push_back(type == RowType::f16 ? f32_to_f16(x) : f32_to_bf16(x));
      const void* from = type == RowType::f32 ? static_cast<const void*>(keys.data())
                                              : static_cast<const void*>(halves.data());
      std::vector<float> out(keys.size());
      k->widen(type, static_cast<const std::byte*>(from), static_cast<std::uint32_t>(out.size()),
               out.data());
      got[0].insert(got[0].end(), out.begin(), out.end());
    }
    got[1].resize(pages);
    k->bound_scores(keys.data(), pages, dim, queries.data(), n, got[1].data());
    got[2].resize(n * pages * 2 + 3);
    k->antidiagonals(keys.data(), pages, tokens, dim, queries.data(), n, got[2].data(), pages * 2);
    got[3].resize(n * pages * tokens);
    k->products(keys.data(), pages, tokens, dim, queries.data(), n, got[3].data(), pages * tokens);
    if (wanted.empty()) wanted = got;
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << i;
  }
}

}  // namespace
}  // namespace quire
