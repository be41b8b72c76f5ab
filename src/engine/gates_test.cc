// The CPU executor keeps what model/executor.h promises about layers: it waits for those that are
// still on their way, drops only the sequence whose gate stays shut, and says which layers are sealed.
#include <atomic>
#include <thread>

#include "engine/testing.h"

namespace quire {
namespace {

constexpr std::uint32_t kLayers = 3, kRows = 10;
constexpr Nanoseconds kMillisecond = 1'000'000;

struct GateRun {
  std::vector<float> logits;  // of both sequences' last rows
  std::vector<std::uint8_t> dropped;
  std::vector<std::uint32_t> sealed;
};

// One step of two sequences of ten tokens. The second one waits for the gate.
GateRun run_gated(Runtime& runtime, const StoragePolicy& storage, LayerGate& gate) {
  KvCache& cache = runtime.cache();
  const RootId root = runtime.tenant_root("", &storage).value();
  const std::vector<TokenId> tokens = byte_tokens("one sheep,two sheep.");
  std::vector<Sequence> sequences;
  for (std::uint32_t i = 0; i < 2; ++i) {
    sequences.push_back(
        std::move(cache.open({.root = root, .token_capacity = 100, .reuse = false}).value()));
    cache.attach(sequences.back(), {});
    cache.extend(sequences.back(), std::span(tokens).subspan(i * kRows, kRows));
  }
  const StepNeed needs[] = {{&sequences[0], kRows}, {&sequences[1], kRows}};
  Reservation room = std::move(cache.reserve(needs).value());
  const Geometry& g = cache.geometry(root);
  std::vector<KvSequenceView> views;
  for (std::uint32_t i = 0; i < g.groups.size(); ++i)
    for (std::uint32_t s = 0; s < 2; ++s) views.push_back(room.view(s, i, s * kRows));
  std::vector<KvView> groups;
  for (std::uint32_t i = 0; i < g.groups.size(); ++i)
    groups.push_back({cache.arena(), &views[2 * i], 2, g.tokens_per_block, g.groups[i].window});
  std::vector<std::uint32_t> positions;
  for (std::uint32_t i = 0; i < 2 * kRows; ++i) positions.push_back(i % kRows);
  const std::uint32_t wanted[] = {kRows - 1, 2 * kRows - 1};
  LayerGate* const gates[] = {nullptr, &gate};
  GateRun run;
  const std::function<void(std::uint32_t)> sealed = [&](std::uint32_t layer) {
    run.sealed.push_back(layer);
  };
  Executor& executor = runtime.executor();
  EXPECT_TRUE(executor.traits().gates);
  const StepTicket ticket = executor
                                .submit({.geometry = &g,
                                         .tokens = tokens,
                                         .positions = positions,
                                         .groups = groups,
                                         .wanted = wanted,
                                         .gates = gates,
                                         .sealed = &sealed})
                                .value();
  const StepResult result = executor.complete(ticket).value();
  run.logits.assign(result.logits.begin(), result.logits.end());
  run.dropped.assign(result.dropped.begin(), result.dropped.end());
  return run;
}

class Gates : public ::testing::TestWithParam<const char*> {};

TEST_P(Gates, AStepWaitsForLayersAndDropsOneSequence) {
  for (const std::uint32_t threads : {1u, 3u}) {
    TinyRuntime runtime({.layers = kLayers, .head_dim = 64}, {.threads = threads});
    const StoragePolicy storage = find_format(GetParam()).value();
    const std::vector<std::uint32_t> each_layer = {0, 1, 2};

    LayerGate open;
    open.layers = kLayers;
    const GateRun expected = run_gated(*runtime, storage, open);
    EXPECT_EQ(expected.dropped, (std::vector<std::uint8_t>{0, 0}));
    EXPECT_EQ(expected.sealed, each_layer);

    // Another thread opens the layers one by one.
    LayerGate slow;
    slow.deadline = SteadyClock().now() + 60'000 * kMillisecond;
    const Nanoseconds start = SteadyClock().now();
    std::thread opens([&] {
      for (std::uint32_t l = 1; l <= kLayers; ++l) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        slow.layers.store(l, std::memory_order_release);
      }
    });
    const GateRun waited = run_gated(*runtime, storage, slow);
    EXPECT_GE(SteadyClock().now() - start, 15 * kMillisecond);
    opens.join();
    EXPECT_EQ(waited.logits, expected.logits);
    EXPECT_EQ(waited.dropped, expected.dropped);
    EXPECT_EQ(waited.sealed, each_layer);

    // One layer never arrives: its sequence is dropped, the other one notices nothing.
    LayerGate shut;
    shut.layers = kLayers - 1;
    shut.deadline = SteadyClock().now() + 20 * kMillisecond;
    const GateRun dropped = run_gated(*runtime, storage, shut);
    EXPECT_GE(SteadyClock().now(), shut.deadline);
    EXPECT_EQ(dropped.dropped, (std::vector<std::uint8_t>{0, 1}));
    const std::size_t vocabulary = expected.logits.size() / 2;
    EXPECT_TRUE(std::equal(expected.logits.begin(), expected.logits.begin() + vocabulary,
                           dropped.logits.begin()));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Gates, ::testing::Values("f16", "int8", "hadamard-int4"));

}  // namespace
}  // namespace quire
