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

TEST(Combine, EveryPartHasRules) {
  for (const Part part : {Part::budget, Part::select, Part::approximate, Part::convert, Part::draft,
                          Part::pooling, Part::resident}) {
    bool found = false;
    for (const CombineRule& rule : combine_rules()) found |= rule.part == part;
    EXPECT_TRUE(found) << field_of(part);
  }
}

}  // namespace
}  // namespace quire
