// sim/engine_world.h - one world of the engine's simulation: which requests run, what they were
// answered, and what they would have been answered alone. See sim/engine_sim.h for what is simulated.
//
//   engine_drafts.cc   drafts that know the answers, and lie now and then
//   engine_sim.cc    the turns of a world, trouble, and the end where everything must finish
//   engine_tenants.cc  leases that requests took, and limits of tenants
//   engine_world.cc  requests arrive, leave, and are compared
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "sim/alone.h"
#include "sim/asks.h"
#include "sim/engine_sim.h"
#include "sim/guest.h"
#include "sim/toy_engine.h"

namespace quire {

class EngineWorld {
 public:
  explicit EngineWorld(const EngineSimOptions& options);
  EngineSimReport run();

 private:
  struct Live {
    std::uint64_t ask;
    std::uint32_t tokens_max, choices;
    bool comparable, timed;  // its answer depends on nothing that is cached; it has a deadline
    std::shared_ptr<AnswerLog> log;
    bool cancelled = false;
    std::vector<bool> finished;  // by the client, by choice
    std::uint64_t losses, nans;  // that there were when it came
  };

  // engine_sim.cc
  void step();
  void trouble();
  void resize();
  void finish_all();
  void tell_unfinished();
  void count_moves();
  void count_events();

  // engine_drafts.cc
  ServiceOptions with_drafts(ServiceOptions service);
  std::unique_ptr<DraftSource> make_source(const DraftScene& scene);
  void count_drafts(const DraftTallies& drafts);

  // engine_tenants.cc
  void keep_leases(const Live& l);
  void check_pins();
  void limit_tenant();
  void check_limits();
  std::uint32_t cached_tokens(std::uint64_t ask);

  // engine_world.cc
  void arrive();
  void submit(std::uint64_t ask);
  void leave();
  void collect();
  void judge(const Live& l);
  void judge_failure(const Live& l);
  void compare(const Live& l);
  void compare_answer(const Live& l, std::uint32_t choice, const AnswerLog::Answer& alone);
  [[noreturn]] void wrong(const Live& l, const std::string& what);
  Request make(std::uint64_t ask, std::uint32_t tokens_max) const;

  EngineSimOptions options_;
  const Asks::Theme theme_;
  Random random_;
  ToyEngineOptions opened_;
  bool crowded_;  // memory is short, and nothing else goes wrong: whatever fits alone must finish
  bool memory_fails_, resizes_, limits_;
  Random draft_random_;  // its own: worlds are otherwise the same with drafts and without
  ToyEngine crowd_;
  Asks asks_;
  std::map<JobId, Live> live_;
  std::uint64_t jobs_ = 0, moved_ = 0;  // moved_: blocks, when it was last counted
  std::deque<std::uint64_t> recent_;    // asks
  Alone alone_;
  std::optional<Guest> guest_;
  struct Lease {
    LeaseId id;
    std::uint64_t ask;
    std::uint32_t tokens;  // that it pins and that are there until it is released
  };
  std::vector<Lease> leases_;
  std::array<TenantInfo, std::size(Asks::kTenants)> tenants_;  // as last seen
  EngineSimReport report_;
};

}  // namespace quire
