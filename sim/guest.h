// sim/guest.h - a sequence in a world's cache that is no request. It does what the cache and executors
// can do and the engine does not ask for yet: drafts that are rejected, layers that arrive while a step
// runs (gates) or too late, notices of sealed layers.
//
// It reads a text. Its logits after each token must be those it gets alone.
//
//   Guest guest(crowd, text);
//   guest.turn(random, features);        // between steps of the engine: makes one of its own
//   guest.leave();
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/random.h"
#include "sim/features.h"
#include "sim/toy_engine.h"

namespace quire {

class Guest {
 public:
  Guest(ToyEngine& toy, std::vector<TokenId> text, const StoragePolicy* storage);

  void turn(Random& random, Features& features);
  void leave() { sequence_.close(); }

 private:
  // A step that has its room, and all that its plan points to.
  struct Step {
    Reservation room;
    std::vector<TokenId> tokens;
    std::uint32_t accepted;  // the others are drafts that are wrong
    std::vector<std::uint32_t> positions, wanted;
    std::vector<KvSequenceView> sequences;  // by group
    std::vector<KvView> groups;
    LayerGate gate;
    LayerGate* gates[1];
    bool late;  // a layer never arrives
    std::uint32_t sealed = 0;
    std::function<void(std::uint32_t)> notice;
    StepPlan plan;
    explicit Step(Reservation r) : room(std::move(r)) {}
  };

  void arrive(Random& random);
  bool begin(Random& random, Features& features);
  void make_plan(Random& random);
  void end(Features& features);
  void compare(const StepResult& result);

  ToyEngine& toy_;
  const std::vector<TokenId> text_;
  RootId root_;
  std::vector<std::vector<float>> truth_;  // logits after each token
  Sequence sequence_;
  std::optional<Step> step_;
};

}  // namespace quire
