#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include "base/random.h"

namespace quire {
namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;

Readiness ready(std::uint32_t cached = 0) { return {.cached = cached}; }
Readiness no_room() { return {.verdict = Readiness::Verdict::no_room}; }
Readiness later() { return {.verdict = Readiness::Verdict::later}; }

std::uint64_t number(JobId id) { return static_cast<std::uint64_t>(id); }

TEST(WaitingLine, FirstComeFirstServed) {
  WaitingLine line({});
  const TenantId t = line.tenant("a");
  for (std::uint64_t i = 0; i < 100; ++i)
    line.add(JobId{i}, {.tenant = t, .arrived = static_cast<Nanoseconds>(i)});
  for (std::uint64_t i = 0; i < 100; ++i)
    EXPECT_EQ(line.pick([](JobId) { return ready(); }), JobId{i});
  EXPECT_EQ(line.pick([](JobId) { return ready(); }), std::nullopt);
}

TEST(WaitingLine, APriorityIsWorthAFixedTime) {
  WaitingLine line({.priority_step = kSecond});
  const TenantId t = line.tenant("a");
  line.add(JobId{1}, {.tenant = t, .priority = 0, .arrived = 0});
  line.add(JobId{2}, {.tenant = t, .priority = 5, .arrived = 2 * kSecond});
  line.add(JobId{3}, {.tenant = t, .priority = 5, .arrived = 6 * kSecond});  // too late for that
  std::vector<std::uint64_t> order;
  while (auto id = line.pick([](JobId) { return ready(); })) order.push_back(number(*id));
  EXPECT_EQ(order, (std::vector<std::uint64_t>{2, 1, 3}));
}

TEST(WaitingLine, TheBestHitGoesFirstButNobodyIsPassedForEver) {
  constexpr std::uint32_t kPasses = 4;
  WaitingLine line({.window = 8, .passes_max = kPasses});
  const TenantId t = line.tenant("a");
  // The first misses; hits keep arriving behind it.
  std::uint64_t next = 0;
  const auto arrive = [&] {
    line.add(JobId{next}, {.tenant = t, .arrived = static_cast<Nanoseconds>(next)});
    ++next;
  };
  for (int i = 0; i < 8; ++i) arrive();
  const auto probe = [](JobId id) { return ready(number(id) == 0 ? 0 : 1000); };
  std::uint32_t passed = 0;
  while (*line.pick(probe) != JobId{0}) {
    ++passed;
    arrive();
  }
  EXPECT_EQ(passed, kPasses);
}

// Whatever the hits, rooms and waits: the k-th in line goes after at most k + passes_max others of
// its tenant (those who choose to wait aside).
TEST(WaitingLine, EveryoneIsServedInBoundedTime) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    constexpr std::uint32_t kPasses = 5;
    WaitingLine line({.window = 16, .passes_max = kPasses});
    const TenantId t = line.tenant("a");
    std::map<std::uint64_t, std::uint64_t> deadline;  // picks until it must have gone
    std::uint64_t next = 0, picks = 0;
    for (int round = 0; round < 400; ++round) {
      for (std::uint64_t i = random.below(3); i > 0 && next < 500; --i) {
        deadline[next] = picks + line.size() + kPasses;
        line.add(JobId{next}, {.tenant = t, .arrived = static_cast<Nanoseconds>(next)});
        ++next;
      }
      const auto id = line.pick(
          [&](JobId j) { return ready(static_cast<std::uint32_t>(random.below(4) * number(j))); });
      if (!id) continue;
      ++picks;
      EXPECT_LE(picks, deadline.at(number(*id)) + 1) << "seed " << seed;
    }
  }
}

TEST(WaitingLine, SmallOnesPassWhoHasNoRoomThenWait) {
  WaitingLine line({.passes_max = 3});
  const TenantId t = line.tenant("a");
  for (std::uint64_t i = 0; i < 10; ++i)
    line.add(JobId{i}, {.tenant = t, .arrived = static_cast<Nanoseconds>(i)});
  const auto probe = [](JobId id) { return number(id) == 0 ? no_room() : ready(); };
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(line.pick(probe), JobId{i});
  EXPECT_EQ(line.pick(probe), std::nullopt);  // until there is room for the first
  EXPECT_EQ(line.pick([](JobId) { return ready(); }), JobId{0});
  EXPECT_EQ(line.pick(probe), JobId{4});
}

TEST(WaitingLine, AnotherTenantMayNotPassForEverEither) {
  WaitingLine line({.passes_max = 3});
  const TenantId big = line.tenant("big"), small = line.tenant("small");
  line.add(JobId{0}, {.tenant = big});
  for (std::uint64_t i = 1; i < 10; ++i) line.add(JobId{i}, {.tenant = small});
  const auto probe = [](JobId id) { return number(id) == 0 ? no_room() : ready(); };
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(line.pick(probe));
    line.charge(small, 100);
  }
  EXPECT_EQ(line.pick(probe), std::nullopt);
}

TEST(WaitingLine, WhoWaitsForAPrefixBlocksNobody) {
  WaitingLine line({.passes_max = 2});
  const TenantId t = line.tenant("a");
  for (std::uint64_t i = 0; i < 20; ++i)
    line.add(JobId{i}, {.tenant = t, .arrived = static_cast<Nanoseconds>(i)});
  const auto probe = [](JobId id) { return number(id) == 0 ? later() : ready(); };
  for (std::uint64_t i = 1; i < 20; ++i) EXPECT_EQ(line.pick(probe), JobId{i});
  EXPECT_EQ(line.pick(probe), std::nullopt);
  EXPECT_EQ(line.size(), 1u);
}

TEST(WaitingLine, TenantsShareByTokensNotByRequests) {
  WaitingLine line({});
  const TenantId flood = line.tenant("flood"), polite = line.tenant("polite");
  for (std::uint64_t i = 0; i < 10000; ++i) line.add(JobId{i}, {.tenant = flood});
  const auto serve = [&] {
    const bool is_polite = number(*line.pick([](JobId) { return ready(); })) >= 10000;
    line.charge(is_polite ? polite : flood, is_polite ? 300 : 100);
    return is_polite;
  };
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(serve());
  // Now the other one comes, with one long request at a time.
  std::uint64_t next = 10000;
  line.add(JobId{next++}, {.tenant = polite});
  const std::uint64_t flood_before = line.served(flood);
  for (int i = 0; i < 1000; ++i)
    if (serve()) line.add(JobId{next++}, {.tenant = polite});
  const double flooded = static_cast<double>(line.served(flood) - flood_before);
  EXPECT_NEAR(static_cast<double>(line.served(polite)) / flooded, 1, 0.02);
}

TEST(WaitingLine, BeingAwayEarnsNoCredit) {
  WaitingLine line({});
  const TenantId a = line.tenant("a"), b = line.tenant("b");
  std::uint64_t next = 0;
  for (int i = 0; i < 100; ++i) {
    line.add(JobId{next++}, {.tenant = a});
    line.pick([](JobId) { return ready(); });
    line.charge(a, 1000);
  }
  // b comes for the first time: it may not take the next 100,000 tokens alone.
  for (int i = 0; i < 20; ++i) {
    line.add(JobId{next++}, {.tenant = a});
    line.add(JobId{next++}, {.tenant = b});
  }
  std::uint64_t first_of_a = 0;
  for (std::uint64_t i = 0;; ++i) {
    const JobId id = *line.pick([](JobId) { return ready(); });
    const bool is_a = number(id) % 2 == 0;
    line.charge(is_a ? a : b, 1000);
    if (is_a) {
      first_of_a = i;
      break;
    }
  }
  EXPECT_LE(first_of_a, 2u);
}

TEST(WaitingLine, RemovedOnesNeverGo) {
  WaitingLine line({});
  const TenantId t = line.tenant("a");
  for (std::uint64_t i = 0; i < 10; ++i) line.add(JobId{i}, {.tenant = t});
  for (std::uint64_t i = 0; i < 10; i += 2) line.remove(JobId{i});
  for (std::uint64_t i = 1; i < 10; i += 2)
    EXPECT_EQ(line.pick([](JobId) { return ready(); }), JobId{i});
  EXPECT_EQ(line.size(), 0u);
}

// The cost of a pick does not grow with the line: probes are counted, and time is compared.
TEST(WaitingLine, TenThousandWaitingCostNoMoreThanAHundred) {
  const auto seconds_per_pick = [](std::uint64_t waiting, std::uint64_t& probes) {
    WaitingLine line({});
    const TenantId t[] = {line.tenant("a"), line.tenant("b"), line.tenant("c")};
    std::uint64_t next = 0;
    const auto arrive = [&] {
      line.add(JobId{next}, {.tenant = t[next % 3], .arrived = static_cast<Nanoseconds>(next)});
      ++next;
    };
    while (next < waiting) arrive();
    probes = 0;
    const auto start = std::chrono::steady_clock::now();
    constexpr int kPicks = 2000;
    for (int i = 0; i < kPicks; ++i) {
      const JobId id = *line.pick([&](JobId j) {
        ++probes;
        return ready(static_cast<std::uint32_t>(number(j) % 7));
      });
      line.charge(t[number(id) % 3], 100);
      arrive();
    }
    probes /= kPicks;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kPicks;
  };
  std::uint64_t few = 0, many = 0;
  double small = 1, large = 1;
  for (int i = 0; i < 3; ++i) {
    small = std::min(small, seconds_per_pick(100, few));
    large = std::min(large, seconds_per_pick(10000, many));
  }
  EXPECT_LE(few, 32u);
  EXPECT_LE(many, 32u);
  EXPECT_LT(large, 10 * small + 20e-6);
}

TEST(PickVictim, TheLastToComeGivesWayTheFirstNever) {
  std::vector<Running> running = {
      {{5, JobId{1}}}, {{1, JobId{2}}}, {{9, JobId{3}}}, {{7, JobId{4}}}};
  EXPECT_EQ(pick_victim(running), 2u);
  running[2].protect = true;
  EXPECT_EQ(pick_victim(running), 3u);
  running[0].protect = running[3].protect = true;
  EXPECT_EQ(pick_victim(running), std::nullopt);
  EXPECT_EQ(pick_victim(std::span(running).first(1)), std::nullopt);
}

TEST(PreemptLoss, ParkingKeepsItsOwnAtTheCostOfOthers) {
  const auto total = [](const PreemptLoss& loss) { return loss.own + loss.others; };
  const auto parks = [&](const GivingWay& g) {
    return total(loss_of_park(g)) < total(loss_of_recompute(g));
  };
  // There is room for the others meanwhile: parking loses nothing.
  EXPECT_EQ(total(loss_of_park({.length = 900, .free = 50, .wanted = 40})), 0);
  EXPECT_TRUE(parks({.length = 900, .whole = 896, .free = 50, .wanted = 40}));
  // What is in nobody's way and wanted by nobody again goes first.
  EXPECT_TRUE(parks({.length = 900, .whole = 896, .cached = 500, .wanted = 400, .reuse = 0.01}));
  // The others want again what they have cached; the own unfinished block is a small loss.
  EXPECT_FALSE(parks({.length = 900, .whole = 896, .cached = 500, .wanted = 400, .reuse = 1}));
  // Nothing of it is published: letting go loses all of it, whatever others have.
  EXPECT_TRUE(parks({.length = 900, .whole = 0, .cached = 500, .wanted = 400, .reuse = 1}));
  // The room is needed anyway, so there is nothing to be had from parking.
  EXPECT_FALSE(parks({.length = 900, .whole = 896, .wanted = 2000}));
  EXPECT_EQ(loss_of_park({.length = 900, .whole = 896, .wanted = 2000}).own, 900);
  EXPECT_EQ(loss_of_recompute({.length = 900, .whole = 896, .wanted = 2000}).own, 900);
  // Nobody loses more than there is.
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    GivingWay g{.length = 1.0 + static_cast<double>(random.below(1000)),
                .free = static_cast<double>(random.below(200)),
                .cached = static_cast<double>(random.below(2000)),
                .wanted = static_cast<double>(random.below(4000)),
                .reuse = random.unit()};
    g.whole = static_cast<double>(random.below(static_cast<std::uint64_t>(g.length) + 1));
    for (const PreemptLoss& loss : {loss_of_park(g), loss_of_recompute(g)}) {
      EXPECT_GE(loss.own, 0);
      EXPECT_LE(loss.own, g.length);
      EXPECT_GE(loss.others, 0);
      EXPECT_LE(loss.others, g.cached * g.reuse);
    }
  }
}

TEST(ShareRows, ShortPromptsFirstLongOnesNotNever) {
  std::vector<std::uint32_t> order;
  std::vector<Reading> r = {{.remaining = 5000}, {.remaining = 30}};
  share_rows(512, r, order);
  EXPECT_EQ(r[1].rows, 30u);
  EXPECT_EQ(r[0].rows, 482u);

  // A long prompt against an endless stream of shorter ones that would fill every step.
  Reading big{.remaining = 5000};
  std::deque<Reading> shorts;
  std::uint32_t steps = 0;
  for (; big.remaining > 0 && steps < 1000; ++steps) {
    for (int i = 0; i < 2; ++i) shorts.push_back({.remaining = 300});
    std::vector<Reading> all(shorts.begin(), shorts.end());
    all.push_back(big);
    share_rows(512, all, order);
    std::uint32_t rows = 0;
    for (const Reading& x : all) rows += x.rows;
    EXPECT_EQ(rows, 512u);
    big = all.back();
    big.remaining -= big.rows;
    ++big.steps;
    shorts.clear();
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
      all[i].remaining -= all[i].rows;
      ++all[i].steps;
      if (all[i].remaining > 0) shorts.push_back(all[i]);
    }
  }
  EXPECT_LT(steps, 100u);
}

TEST(ShareRows, ObeysRowsMax) {
  std::vector<std::uint32_t> order;
  std::vector<Reading> r = {{.remaining = 500, .rows_max = 64}, {.remaining = 1000}};
  share_rows(512, r, order);
  EXPECT_EQ(r[0].rows, 64u);
  EXPECT_EQ(r[1].rows, 448u);
}

}  // namespace
}  // namespace quire
