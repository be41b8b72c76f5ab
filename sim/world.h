// sim/world.h - the inside of the simulator: what its files share. See sim/simulator.h for what it
// does.
//
//   requests.cc   requests arrive, wait and are attached
//   steps.cc      steps start, the device works, steps end
//   tenants.cc    limits, roots that come and go, and rules between tenants
//   trouble.cc    forks, rollbacks, cancels, preemptions, leases, memory that shrinks and fails
//   simulator.cc  turns, the books, and the end where everything must finish
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/cache.h"
#include "kv/test_model.h"
#include "sim/reference.h"
#include "sim/simulator.h"

namespace quire {

inline constexpr std::uint32_t kBlock = 4, kPage = 4096, kTokensMax = 48, kLiveMax = 12;

// One request and what must be true of it.
struct Live {
  std::uint64_t id = 0;
  std::size_t root = 0;
  Sequence sequence;
  std::vector<TokenId> script;  // prompt and everything it will generate
  std::vector<KeyChange> salts;
  std::vector<std::uint64_t> changes;  // digest per block, as the reference knows it
  std::vector<BlockKey> keys;          // of the script's whole blocks
  History rows;                        // what each row must say
  std::uint32_t prompt = 0, target = 0, pure_until = UINT32_MAX, computed = 0;
  std::uint32_t in_steps = 0;
  std::uint32_t waits = 0;
  bool placed = false, own_keys = false, publish = true, reuse = true, faulted = false;
};

// A row of a step in flight. The toy device computes when the step ends, with the addresses of the
// step's beginning: whatever happens to the sequence meanwhile, those blocks must not change.
struct PendingItem {
  std::uint64_t id;
  std::size_t root;
  std::uint32_t past, count, accept;
  bool follows_rejected;  // the step before it was not accepted as a whole: what it reads is void
  std::vector<std::uint32_t> ragged;             // by group: tokens that are in lanes
  std::vector<std::vector<ArenaOffset>> tables;  // by group
  History rows;
};
struct PendingStep {
  std::optional<Reservation> room;
  std::vector<PendingItem> items;
};

class Simulator {
 public:
  explicit Simulator(const SimOptions& o);
  SimReport run();

 private:
  struct Tree {
    Geometry geometry;
    std::uint64_t identity;
    BlockKey key;
  };

  void turn(bool faults);
  void arrive();
  void admit(bool patient);
  void attach(Live& l);
  void start_step(bool faults);
  void finish_step();
  void work(const PendingItem& item);
  void relieve(bool faults);
  void fork();
  void truncate();
  void cancel();
  void compact();
  void preempt_random();
  void leases();
  void memory_events();
  std::string tenant_name(std::size_t tree) const;
  void limit_tenant();
  void visit();
  std::optional<RootId> root_of(std::size_t tree);
  std::vector<TenantInfo> holdings() const;
  void check_shares(const std::vector<TenantInfo>& had,
                    const std::vector<PendingItem>& acting) const;
  void check_limits();
  void check_reads(const Live& l, std::uint32_t past);
  void check_attached(const Live& l, const Attached& got, std::uint32_t limit);
  void follow_journal();
  void balance();
  void drain();
  void learn(Live& l);
  void give_keys(Live& l);
  void close(Live& l);
  Live* pick(bool placed);
  Live* find(std::uint64_t id);
  std::uint64_t change_of(const Live& l, std::uint32_t position) const;

  SimOptions options_;
  Random random_;
  ManualClock clock_;
  KeySecret secret_;
  bool truncated_keys_;
  FailingMemory* memory_ = nullptr;
  std::uint64_t budget_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Tree> trees_;
  std::vector<std::vector<TokenId>> families_;
  Reference reference_{kBlock};
  std::vector<std::unique_ptr<Live>> live_;
  std::deque<PendingStep> pending_;
  struct Pin {
    LeaseId id;
    std::vector<std::uint64_t> keys;
    bool pin;
    Nanoseconds expires;
  };
  std::vector<Pin> pins_;
  std::vector<std::uint64_t> before_;  // bytes of each tenant when limits were checked last
  bool waived_ = false;                // the next step may take from anybody's share
  std::uint64_t next_id_ = 1, journal_seen_ = 0;
  SimReport report_;
};

}  // namespace quire
