#include "kv/select/quest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kv/retain/testing.h"

namespace quire {
namespace {
using testing::ElementsAre;

constexpr std::uint32_t kDim = 8;

float product(std::span<const float> a, std::span<const float> b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST(Quest, ItsScoreIsNeverBelowAProductWithinThePage) {
  for (std::uint32_t tokens_per_page : {1u, 4u, 16u}) {
    const std::uint32_t pages = 10000 / tokens_per_page, tokens = pages * tokens_per_page;
    const std::vector<float> keys = noise(tokens * kDim, 1), queries = noise(2 * kDim, 2);
    PageBounds bounds(tokens_per_page, kDim);
    for (std::uint32_t t = 0; t < tokens; ++t) bounds.add(std::span(keys).subspan(t * kDim, kDim));
    std::vector<float> scores(bounds.pages());
    bounds.score(queries, scores);
    for (std::uint32_t page = 0; page < pages; ++page) {
      float most = -std::numeric_limits<float>::infinity();
      for (std::uint32_t t = page * tokens_per_page; t < (page + 1) * tokens_per_page; ++t)
        for (std::uint32_t q : {0u, 1u})
          most = std::max(most, product(std::span(queries).subspan(q * kDim, kDim),
                                        std::span(keys).subspan(t * kDim, kDim)));
      ASSERT_GE(scores[page], most);
      if (tokens_per_page == 1) {
        ASSERT_EQ(scores[page], most);
      }
    }
  }
}

TEST(Quest, ThePageOfAKeyAlongTheQueryComesFirst) {
  std::vector<float> keys = noise(64 * kDim, 1), query = noise(kDim, 2);
  for (std::uint32_t c = 0; c < kDim; ++c) keys[37 * kDim + c] = 5 * query[c];
  PageBounds bounds(16, kDim);
  for (std::uint32_t t = 0; t < 64; ++t) bounds.add(std::span(keys).subspan(t * kDim, kDim));
  std::vector<float> scores(4);
  bounds.score(query, scores);
  EXPECT_EQ(std::max_element(scores.begin(), scores.end()) - scores.begin(), 2);
}

TEST(Quest, CountsAPageThatIsNotFull) {
  PageBounds bounds(16, kDim);
  EXPECT_EQ(bounds.pages(), 0u);
  const std::vector<float> keys = noise(17 * kDim, 1);
  for (std::uint32_t t = 0; t < 17; ++t) bounds.add(std::span(keys).subspan(t * kDim, kDim));
  EXPECT_EQ(bounds.pages(), 2u);
  std::vector<float> scores(2);
  bounds.score(std::span(keys).first(kDim), scores);
  EXPECT_FLOAT_EQ(scores[1],
                  product(std::span(keys).first(kDim), std::span(keys).subspan(16 * kDim, kDim)));
}

TEST(ChoosePages, TakesTheBestAndAlwaysTheNewest) {
  std::vector<std::uint32_t> pages;
  choose_pages(std::vector<float>{1, 5, 5, 9, 5, 0}, 4, pages);
  EXPECT_THAT(pages, ElementsAre(1, 2, 3, 5));
  choose_pages(std::vector<float>{1, 5, 5, 9, 5, 0}, 1, pages);
  EXPECT_THAT(pages, ElementsAre(1, 3, 5));  // three at least
  choose_pages(std::vector<float>{1, 5}, 9, pages);
  EXPECT_THAT(pages, ElementsAre(0, 1));
  choose_pages({}, 9, pages);
  EXPECT_TRUE(pages.empty());
}

}  // namespace
}  // namespace quire
