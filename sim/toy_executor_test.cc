// The toy executor keeps the promises of model/executor.h that the simulator relies on: answers depend
// on what is read and on nothing else, gates drop sequences, sealed layers are reported.
#include "sim/toy_executor.h"

#include <gtest/gtest.h>

#include "engine/stepper.h"
#include "sim/toy_engine.h"

namespace quire {
namespace {

std::vector<TokenId> letters(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens;
  while (tokens.size() < count) tokens.push_back(static_cast<TokenId>('a' + random.below(26)));
  return tokens;
}

// Logits of a prompt's last token, read in steps of `rows` rows.
std::vector<float> read(const StoragePolicy* storage, ToyModel model,
                        const std::vector<TokenId>& prompt, std::uint32_t chunk) {
  ToyEngine toy({.model = model, .cache_bytes = 8 << 20}, {});
  const RootId root = toy.runtime().tenant_root("", storage).value();
  Sequence s = std::move(toy.cache().open({.root = root, .token_capacity = 300}).value());
  toy.cache().attach(s, prompt);
  Stepper stepper(toy.runtime());
  const auto logits = stepper.read(s, chunk);
  EXPECT_TRUE(logits.ok());
  return {logits.value().begin(), logits.value().end()};
}

TEST(ToyExecutor, ChunksDoNotMatter) {
  const std::vector<TokenId> prompt = letters(107, 1);
  for (const std::string_view name : {"f16", "int8", "hadamard-int4", "kivi-2"})
    for (const ToyModel model : {ToyModel::full, ToyModel::windows, ToyModel::latent})
      for (const std::uint32_t exact : {0u, 32u}) {
        StoragePolicy storage = find_format(name).value();
        if (exact > 0 && !storage.lossy()) continue;
        storage.recent_exact = storage.sinks = exact;
        ToyEngine holds({.model = model, .cache_bytes = 8 << 20}, {});
        if (!holds.runtime().check_storage(storage).ok()) continue;
        const std::vector<float> whole = read(&storage, model, prompt, 512);
        for (const std::uint32_t chunk : {1u, 7u, 16u, 40u})
          EXPECT_EQ(read(&storage, model, prompt, chunk), whole) << storage.name() << chunk;
      }
}

TEST(ToyExecutor, AnyTokenMatters) {
  const std::vector<TokenId> prompt = letters(60, 2);
  const std::vector<float> logits = read(nullptr, ToyModel::full, prompt, 512);
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    std::vector<TokenId> other = prompt;
    other[i] = '.';
    EXPECT_NE(read(nullptr, ToyModel::full, other, 512), logits) << i;
  }
}

// A step of two sequences, one of which waits for its layers.
TEST(ToyExecutor, GatesDropTheirSequenceAlone) {
  ToyEngine toy({.cache_bytes = 8 << 20}, {});
  const Geometry& g = toy.runtime().geometry();
  const std::vector<TokenId> tokens = letters(20, 3);
  std::vector<Sequence> sequences;
  for (int i = 0; i < 2; ++i) {
    sequences.push_back(std::move(toy.runtime().empty_sequence(100).value()));
    toy.cache().extend(sequences.back(), std::span(tokens).first(10));
  }
  const auto run = [&](std::uint32_t layers, std::vector<float>& logits) {
    const StepNeed needs[] = {{&sequences[0], 10}, {&sequences[1], 10}};
    Reservation room = std::move(toy.cache().reserve(needs).value());
    std::vector<KvSequenceView> views = {room.view(0, 0, 0), room.view(1, 0, 10)};
    const KvView view{toy.cache().arena(), views.data(), 2, kToyBlock, 0};
    std::vector<std::uint32_t> positions;
    for (std::uint32_t i = 0; i < 20; ++i) positions.push_back(i % 10);
    const std::uint32_t wanted[] = {9, 19};
    LayerGate gate;
    gate.layers = layers;
    gate.deadline = toy.clock().now() + 50'000'000;
    LayerGate* const gates[] = {nullptr, &gate};
    std::vector<std::uint32_t> sealed_layers;
    const std::function<void(std::uint32_t)> sealed = [&](std::uint32_t l) {
      sealed_layers.push_back(l);
    };
    Executor& executor = toy.runtime().executor();
    const auto ticket = executor.submit({.geometry = &g,
                                         .tokens = tokens,
                                         .positions = positions,
                                         .groups = {&view, 1},
                                         .wanted = wanted,
                                         .gates = gates,
                                         .sealed = &sealed});
    const StepResult result = executor.complete(ticket.value()).value();
    EXPECT_EQ(sealed_layers, (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_EQ(toy.clock().now() >= gate.deadline, layers < 3);
    EXPECT_EQ(result.dropped[0], 0);
    EXPECT_EQ(result.dropped[1], layers < 3);
    logits.assign(result.logits.begin(), result.logits.begin() + kToyBlock);
  };
  std::vector<float> open, closed;
  run(3, open);
  run(1, closed);
  EXPECT_EQ(open, closed);  // the other sequence notices nothing
}

TEST(ToyExecutor, LosesTheDevice) {
  ToyEngine toy({.cache_bytes = 8 << 20}, {});
  toy.trouble().lost = 1;
  auto log = std::make_shared<AnswerLog>(1);
  Request r;
  r.prompt = letters(10, 4);
  toy.submit(std::move(r), log, JobId{1});
  EXPECT_TRUE(toy.run());
  ASSERT_TRUE(log->failure);
  EXPECT_EQ(log->failure->kind, FailureKind::device);
}

}  // namespace
}  // namespace quire
