#include "engine/draft/pace.h"

#include <gtest/gtest.h>

#include "engine/draft/rates.h"
#include "engine/draft/repeats.h"

namespace quire {
namespace {

DraftPace measured(double row_ns) {
  DraftPace pace;
  for (std::uint32_t rows = 1; rows <= 64; ++rows) pace.add(rows, 1e7 + rows * row_ns);
  return pace;
}

std::uint32_t taken(DraftPace& pace, std::uint32_t rows, double rate) {
  std::vector<DraftOffer> offers = {{0, 15, rate}};
  pace.choose(rows, 64, offers);
  return offers[0].take;
}

TEST(DraftPace, DraftsAreAsLongAsTheyPay) {
  DraftPace cheap = measured(1e3), dear = measured(1e8);
  EXPECT_EQ(taken(cheap, 1, 0.95), 15u);
  EXPECT_LT(taken(dear, 1, 0.95), 3u);
  EXPECT_EQ(taken(dear, 1, 0.3), 0u);
  EXPECT_LT(taken(cheap, 1, 0.3), 15u);
  EXPECT_EQ(taken(dear, 32, 0.6), 0u);
}

TEST(DraftPace, TheBestGuessesGoFirst) {
  DraftPace pace = measured(2e6);
  std::vector<DraftOffer> offers = {{0, 8, 0.3}, {1, 8, 0.9}, {2, 8, 0.0}};
  pace.choose(3, 64, offers);
  EXPECT_GT(offers[1].take, offers[0].take);
  EXPECT_EQ(offers[2].take, 0u);
  for (DraftOffer& offer : offers) offer.take = 0;
  pace.choose(3, 2, offers);
  EXPECT_LE(offers[0].take + offers[1].take, 2u);
}

TEST(DraftPace, WhatDoesNotPayIsTriedNowAndThen) {
  DraftPace pace = measured(1e7);
  int tried = 0;
  for (int i = 0; i < 320; ++i) {
    const std::uint32_t take = taken(pace, 1, 0.1);
    tried += take > 0;
    pace.add(1 + take, 1e7 + (1 + take) * 1e7);
  }
  EXPECT_GE(tried, 9);
  EXPECT_LE(tried, 11);
}

TEST(DraftPace, PlainStepsAreMeasuredAgain) {
  DraftPace pace = measured(1e3);
  int plain = 0;
  for (int i = 0; i < 600; ++i) {
    const std::uint32_t take = taken(pace, 1, 0.95);
    plain += take == 0;
    pace.add(1 + take, 1e7 + (1 + take) * 1e3);
  }
  EXPECT_GE(plain, 3);
  EXPECT_LE(plain, 6);
}

// Rows cost the same wherever they stand; some sizes seem cheap by chance, and large ones are measured
// together with their neighbours.
TEST(DraftPace, ACheapSizeIsNotBelieved) {
  DraftPace pace;
  for (std::uint32_t rows = 20; rows <= 40; ++rows) pace.add(rows, rows * 1e6);
  for (std::uint32_t rows = 33; rows <= 36; ++rows) pace.add(rows, 26e6);
  pace.add(32, 32e6);
  EXPECT_EQ(taken(pace, 32, 0.7), 0u);
  DraftPace same;
  for (int i = 0; i < 20; ++i) same.add(32, 32e6);
  EXPECT_EQ(taken(same, 32, 0.7), 0u);
}

TEST(DraftPace, CostsBetweenSizesAreALine) {
  DraftPace pace;
  EXPECT_EQ(pace.step_ns(4), 0);
  pace.add(1, 100);
  pace.add(9, 180);
  EXPECT_DOUBLE_EQ(pace.step_ns(5), 140);
  EXPECT_DOUBLE_EQ(pace.step_ns(13), 220);
  EXPECT_DOUBLE_EQ(pace.step_ns(1), 100);
}

TEST(DraftRates, FollowWhatCameTrue) {
  DraftRates rates;
  EXPECT_DOUBLE_EQ(rates.of(3, 0.5), 0.5);
  for (int i = 0; i < 30; ++i) rates.add(3, 8, 8);
  EXPECT_GT(rates.of(3, 0.5), 0.95);
  EXPECT_DOUBLE_EQ(rates.of(30, 0.5), 0.5);
  for (int i = 0; i < 30; ++i) rates.add(2, 0, 8);
  EXPECT_LT(rates.of(3, 0.5), 0.35);
}

TEST(Repeats, FindTheLongestAndOfEqualsTheLatest) {
  const std::vector<TokenId> text = {1, 2, 3, 4, 9, 2, 3, 4, 8, 7, 3, 4, 5, 6, 1, 2, 3, 4};
  Repeats repeats(2, 24);
  for (std::size_t i = 1; i <= text.size(); ++i) repeats.read(std::span(text).first(i));
  const Repeat found = repeats.find(text, text);
  EXPECT_EQ(found.at, 4u);  // 1 2 3 4
  EXPECT_EQ(found.length, 4u);
  const std::vector<TokenId> tail = {5, 3, 4};
  EXPECT_EQ(repeats.find(text, tail).at, 12u);  // the latest that something follows
  EXPECT_EQ(repeats.find(text, std::vector<TokenId>{4, 3}).length, 0u);
  EXPECT_EQ(repeats.find(text, std::vector<TokenId>{4}).length, 0u);
}

TEST(Repeats, AreTheSameHoweverTheTextGrew) {
  std::vector<TokenId> text;
  for (std::uint32_t i = 0; i < 3000; ++i) text.push_back(i * i % 37);
  Repeats once(3, 24), grown(3, 24);
  once.read(text);
  for (std::size_t i = 1; i <= text.size(); i += 1 + i % 5) grown.read(std::span(text).first(i));
  grown.read(text);
  for (std::size_t i = 3; i <= text.size(); i += 61) {
    const auto tail = std::span(text).first(i);
    EXPECT_EQ(once.find(text, tail).at, grown.find(text, tail).at);
  }
}

}  // namespace
}  // namespace quire
