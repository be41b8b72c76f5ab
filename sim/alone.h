// sim/alone.h - what each request is answered alone: the oracle of the engine's simulation.
//
// Each request runs on an engine with a large cache, where nothing else was stored and nothing goes
// wrong. Answers are remembered. The engine is used for some requests in turn and emptied between
// them, since making one takes longer than answering; emptied means that no block and no node is left.
//
//   Alone alone({.model = ToyModel::full});
//   const AnswerLog& log = alone.answers(17, 40, [&] { return asks.make(17); });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "sim/toy_engine.h"

namespace quire {

class Alone {
 public:
  // How the world's engine was opened; of it, the model counts.
  explicit Alone(const ToyEngineOptions& opened);

  // `make` makes the request that has this number and these tokens_max.
  const AnswerLog& answers(std::uint64_t ask, std::uint32_t tokens_max,
                           const std::function<Request()>& make);
  std::uint64_t steps() const { return steps_; }

 private:
  void empty();

  ToyEngineOptions opened_;
  std::unique_ptr<ToyEngine> engine_;
  std::uint32_t uses_ = 0;  // of the engine
  std::uint64_t steps_ = 0;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::shared_ptr<AnswerLog>> answers_;
};

}  // namespace quire
