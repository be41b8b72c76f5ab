#include "kv/journal.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

TEST(Journal, KeepsTheLastRecordsAndTellsOfTheGap) {
  Journal journal(5);  // eight
  for (std::uint64_t i = 0; i < 20; ++i)
    EXPECT_EQ(
        journal.add({.time = static_cast<Nanoseconds>(i), .request = i, .reason = Reason::hit}), i);
  EXPECT_EQ(journal.first(), 12u);
  EXPECT_EQ(journal.next(), 20u);
  const Journal::Range range = journal.since(3);
  EXPECT_EQ(range.from(), 12u);
  std::vector<std::uint64_t> seen;
  for (const JournalRecord& r : range) seen.push_back(r.request);
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{12, 13, 14, 15, 16, 17, 18, 19}));
}

TEST(Journal, ReadsOnFromWhereTheReaderStopped) {
  Journal journal(8);
  journal.add({.request = 1});
  const std::uint64_t seen = journal.next();
  EXPECT_EQ(journal.since(seen).begin(), journal.since(seen).end());
  journal.add({.request = 2});
  EXPECT_EQ((*journal.since(seen).begin()).request, 2u);
  EXPECT_EQ(journal.since(1000).from(), 2u);
}

TEST(Journal, CountsByReasonOutliveTheRecords) {
  Journal journal(2);
  for (int i = 0; i < 10; ++i) journal.add({.reason = i % 2 ? Reason::hit : Reason::never_seen});
  EXPECT_EQ(journal.count(Reason::hit), 5u);
  EXPECT_EQ(journal.count(Reason::never_seen), 5u);
  EXPECT_EQ(journal.count(Reason::moved), 0u);
}

TEST(Reason, NamesAreDistinctAndLeadBack) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    names.insert(reason_name(reason));
    EXPECT_EQ(find_reason(reason_name(reason)), reason);
  }
  EXPECT_EQ(names.size(), kReasonCount);
  EXPECT_EQ(find_reason("because"), std::nullopt);
}

// GET /v1/kv/requests/{id}: `reason` is one of these.
TEST(Reason, AllMissReasonsOfTheApiExist) {
  for (const char* name :
       {"reuse_disabled",   "below_minimum", "model_mismatch",   "adapter_mismatch",
        "tenant_mismatch",  "salt_mismatch", "format_mismatch",  "tokens_diverged",
        "template_changed", "never_seen",    "evicted",          "expired",
        "cleared",          "restarted",     "tier_not_allowed", "load_failed",
        "load_too_slow",    "in_flight",     "window_dropped",   "budget_evicted",
        "block_partial"}) {
    ASSERT_TRUE(find_reason(name)) << name;
    EXPECT_EQ(reason_kind(*find_reason(name)), ReasonKind::miss) << name;
  }
  EXPECT_EQ(find_reason("none"), Reason::none);
}

}  // namespace
}  // namespace quire
