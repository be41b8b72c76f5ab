#include "sim/guest.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/stepper.h"

namespace quire {
namespace {

constexpr std::uint32_t kRowsMax = 40;

// Logits after each token of a text, read alone.
std::vector<std::vector<float>> read_alone(const ToyEngineOptions& opened,
                                           const StoragePolicy* storage,
                                           std::span<const TokenId> text) {
  ToyEngine toy({.model = opened.model, .cache_bytes = 2 << 20}, {});
  const RootId root = toy.runtime().tenant_root("", storage).value();
  Sequence s = std::move(toy.cache().open({.root = root, .token_capacity = 320}).value());
  toy.cache().attach(s, text);
  Stepper stepper(toy.runtime());
  const StepItem item{.sequence = &s, .tokens = text, .logits = Logits::all};
  const std::span<float> logits = stepper.run({&item, 1}).value();
  const std::size_t vocabulary = toy.runtime().config().vocabulary;
  std::vector<std::vector<float>> rows;
  for (std::size_t i = 0; i < text.size(); ++i)
    rows.emplace_back(logits.begin() + i * vocabulary, logits.begin() + (i + 1) * vocabulary);
  return rows;
}

}  // namespace

Guest::Guest(ToyEngine& toy, std::vector<TokenId> text, const StoragePolicy* storage)
    : toy_(toy),
      text_(std::move(text)),
      root_(toy.runtime().tenant_root("", storage).value()),
      truth_(read_alone(toy.opened(), storage, text_)) {}

void Guest::turn(Random& random, Features& features) {
  if (toy_.executor().busy()) return;  // the engine has submitted a step ahead, which ends first
  if (!sequence_.is_open()) return arrive(random);
  if (sequence_.length() == text_.size() || random.chance(0.05)) return leave();
  if (begin(random, features)) end(features);
}

void Guest::arrive(Random& random) {
  Result<Sequence> opened = toy_.cache().open({.root = root_, .token_capacity = 320});
  if (!opened.ok()) return;
  sequence_ = std::move(opened.value());
  toy_.cache().attach(sequence_, std::span(text_).first(1 + random.below(text_.size() - 1)));
}

// What it knows is read; behind that, tokens are guessed, and from some place on wrongly.
bool Guest::begin(Random& random, Features& features) {
  const std::uint32_t length = sequence_.length();
  const auto known = static_cast<std::uint32_t>(sequence_.tokens().size());
  const auto end = static_cast<std::uint32_t>(length < known ? known : text_.size());
  const std::uint32_t count =
      std::min(end - length, 1 + static_cast<std::uint32_t>(random.below(kRowsMax)));
  const StepNeed need{&sequence_, count};
  Result<Reservation> room = toy_.cache().reserve({&need, 1});
  if (!room.ok()) {
    leave();
    return false;
  }
  step_.emplace(std::move(room.value()));
  step_->tokens.assign(text_.begin() + length, text_.begin() + length + count);
  step_->accepted = count;
  if (length == known) {
    step_->accepted = static_cast<std::uint32_t>(random.below(count + 1));
    for (std::uint32_t i = step_->accepted; i < count; ++i) step_->tokens[i] = '.';
    ++features["guest's draft"];
    features["guest's draft rejected"] += step_->accepted < count;
  }
  make_plan(random);
  return true;
}

void Guest::make_plan(Random& random) {
  Step& s = *step_;
  const Geometry& g = toy_.cache().geometry(root_);
  const auto count = static_cast<std::uint32_t>(s.tokens.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    s.positions.push_back(s.room.past(0) + i);
    s.wanted.push_back(i);
  }
  for (std::uint32_t i = 0; i < g.groups.size(); ++i) s.sequences.push_back(s.room.view(0, i, 0));
  for (std::uint32_t i = 0; i < g.groups.size(); ++i)
    s.groups.push_back(
        {toy_.cache().arena(), &s.sequences[i], 1, g.tokens_per_block, g.groups[i].window});
  const std::uint32_t layers = toy_.runtime().config().layers;
  s.gate.layers = static_cast<std::uint32_t>(random.below(layers + 1));
  s.late = s.gate.layers < layers && random.chance(0.3);
  s.gates[0] = &s.gate;
  // One more layer arrives whenever one is sealed.
  if (!s.late && s.gate.layers == 0) s.gate.layers = 1;
  s.notice = [&s](std::uint32_t layer) {
    CHECK(layer == s.sealed++);
    if (!s.late) s.gate.layers = std::max(s.gate.layers.load(), layer + 2);
  };
  s.plan = {.geometry = &g,
            .tokens = s.tokens,
            .positions = s.positions,
            .groups = s.groups,
            .wanted = s.wanted,
            .gates = s.gates,
            .sealed = &s.notice};
}

void Guest::end(Features& features) {
  Step& s = *step_;
  s.gate.deadline = toy_.clock().now() + 2'000'000;
  const Result<StepTicket> ticket = toy_.executor().submit(s.plan);
  const Result<StepResult> result =
      ticket.ok() ? toy_.executor().complete(ticket.value()) : Result<StepResult>(ticket.error());
  if (!result.ok()) return step_.reset();  // the device was lost: it tries again
  CHECK(s.sealed == toy_.runtime().config().layers);
  CHECK(result.value().dropped[0] == s.late);
  ++features["sealed notices"];
  ++features[s.late ? "gate too late" : "gate in time"];
  if (!s.late) {
    compare(result.value());
    s.room.commit(0, std::span(s.tokens).first(s.accepted));
  }
  step_.reset();
}

void Guest::compare(const StepResult& result) {
  const std::size_t vocabulary = toy_.runtime().config().vocabulary;
  for (std::uint32_t i = 0; i < step_->accepted; ++i) {
    const std::span<const float> row(&result.logits[i * vocabulary], vocabulary);
    if (std::isnan(row[0])) {  // from here on nothing is accepted
      step_->accepted = i;
      return;
    }
    CHECK(std::ranges::equal(row, truth_[step_->room.past(0) + i]));
  }
}

}  // namespace quire
