// engine/pooler.h - the program of a request that wants an embedding: it pools the model's last states
// over the prompt (Request::pooling).
//
// A state is what the head would read: the last layer's output after the output norm. The states of
// a mean are added token by token in double, so the result does not depend on chunks, neighbours or
// preemption. `last` reads cached prefixes like any prompt. `mean` and `cls` need the states of tokens
// that a hit would not compute, so they read the whole prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program.h"
#include "engine/request.h"
#include "engine/runtime.h"

namespace quire {

class Pooler final : public Program {
 public:
  Pooler(const Runtime& runtime, Pooling how, std::uint32_t prompt_length, RootId root);

  std::unique_ptr<Program> fork() const override { return std::make_unique<Pooler>(*this); }
  void open(SequenceOptions& options) const override;
  Tap* tap(std::uint32_t past, std::uint32_t rows) override;
  void after_step(Stepper&, Sequence& s) override;
  void report(ProgramReport& report) const override;

 private:
  Pooling how_;
  std::uint32_t prompt_length_;
  std::uint32_t next_;  // the first token whose state is still wanted
  std::uint32_t end_;   // of those that are wanted
  Tap tap_;
  std::vector<double> sum_;  // of states, [hidden]
};

}  // namespace quire
