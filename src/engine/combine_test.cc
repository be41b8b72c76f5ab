#include "engine/combine.h"

#include <gtest/gtest.h>

#include "kernels/storage.h"

namespace quire {
namespace {

RetainPolicy keeping(std::string_view text) { return parse_retain_policy(text).value(); }

Geometry stored(const char* format, std::uint32_t window = 0, std::uint32_t recent = 0) {
  StoragePolicy storage = find_format(format).value();
  storage.recent_exact = recent;
  const LayerShape layers[] = {{window ? GroupKind::window : GroupKind::full, 2, 64, 64, window}};
  return build_geometry(layers, 32, storage);
}

TEST(Combine, BudgetsAreRefusedAsTheTableSays) {
  const Geometry f16 = stored("f16"), int4 = stored("hadamard-int4"), kivi = stored("kivi-2"),
                 kvquant = stored("kvquant-3"), window = stored("f16", 64),
                 recent = stored("int8", 0, 64);
  Geometry sparse = f16;
  sparse.prefill.way = SparsePrefill::Way::antidiagonals;
  const RetainPolicy plain = keeping("snapkv:20%"), merging = keeping("snapkv:20%,merge=value"),
                     cut = keeping("knorm:20%,cut=64");
  const auto legal = [](const Combination& c) { return check_combination(c).ok(); };
  EXPECT_TRUE(legal({.geometry = &f16, .retain = &plain, .choices = 4}));
  EXPECT_TRUE(legal({.geometry = &f16, .retain = &merging}));
  EXPECT_TRUE(legal({.geometry = &int4, .retain = &plain}));
  EXPECT_TRUE(legal({.geometry = &kivi, .retain = &plain}));
  EXPECT_FALSE(legal({.geometry = &kivi, .retain = &merging}));
  EXPECT_FALSE(legal({.geometry = &kvquant, .retain = &plain}));
  EXPECT_FALSE(legal({.geometry = &int4, .retain = &merging}));
  EXPECT_FALSE(legal({.geometry = &recent, .retain = &plain}));
  EXPECT_FALSE(legal({.geometry = &window, .retain = &plain}));
  EXPECT_TRUE(legal({.geometry = &sparse, .retain = &plain}));
  EXPECT_FALSE(legal({.geometry = &sparse, .retain = &cut}));
  EXPECT_FALSE(legal({.geometry = &f16, .retain = &plain, .beams = 2}));
  EXPECT_FALSE(legal({.geometry = &f16, .retain = &plain, .page_work = false}));
}

TEST(Combine, ARefusalNamesTheFieldAndTheReason) {
  const Geometry f16 = stored("f16");
  const RetainPolicy plain = keeping("snapkv:20%");
  const auto refused = refusal({.geometry = &f16, .retain = &plain, .blends = true});
  ASSERT_TRUE(refused);
  EXPECT_EQ(field_of(refused->part), "kv.reuse");
  EXPECT_NE(refused->message.find("kv.budget"), std::string::npos);
}

TEST(Combine, AdaptersGoWithAllButThoseThatBeginLate) {
  const Geometry f16 = stored("f16"), int4 = stored("hadamard-int4");
  const RetainPolicy plain = keeping("snapkv:20%");
  const SelectPolicy quest = parse_select_policy("quest:32").value();
  const auto legal = [](const Combination& c) { return check_combination(c).ok(); };
  for (const bool late : {false, true}) {
    const Combination asked{.geometry = &f16, .adapted = true, .adapted_late = late};
    EXPECT_TRUE(legal(asked));
    EXPECT_TRUE(legal({.geometry = &int4, .choices = 3, .adapted = true, .adapted_late = late}));
    Combination with = asked;
    with.retain = &plain;
    EXPECT_EQ(legal(with), !late);
    with = asked;
    with.select = &quest;
    EXPECT_EQ(legal(with), !late);
    with = asked;
    with.blends = true;
    EXPECT_EQ(legal(with), !late);
    with = asked;
    with.in_session = true;
    EXPECT_EQ(legal(with), !late);
    with = asked;
    with.adapters = false;
    const auto refused = refusal(with);
    ASSERT_TRUE(refused);
    EXPECT_EQ(field_of(refused->part), "model");
    EXPECT_NE(refused->message.find("CPU only"), std::string::npos);
  }
  EXPECT_TRUE(legal({.geometry = &f16, .adapters = false}));
}

TEST(Combine, EveryPartHasRules) {
  for (const Part part : {Part::budget, Part::select, Part::approximate, Part::convert, Part::draft,
                          Part::pooling, Part::adapter}) {
    bool found = false;
    for (const CombineRule& rule : combine_rules()) found |= rule.part == part;
    EXPECT_TRUE(found) << field_of(part);
  }
}

}  // namespace
}  // namespace quire
