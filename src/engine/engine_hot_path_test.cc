// A step that only decodes allocates nothing: counted by replacing operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/engine_testing.h"

namespace {
std::atomic<std::uint64_t> allocations = 0;
}

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace quire {
namespace {

struct DeafSink final : RequestSink {
  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done&) override {}
  void failed(const Failure&) override {}
};

TEST(EngineHotPath, DecodingAllocatesNothing) {
  TinyEngine e({.layers = 2}, {.threads = 2}, {.step_tokens = 64});
  Request longest;  // the model's tables grow with the longest sequence there has been
  longest.prompt.assign(1000, 'a');
  e.submit(std::move(longest));
  e.run();
  for (std::uint32_t i = 0; i < 20; ++i) {
    Request r;
    r.prompt = byte_tokens("a prompt of its own: " + std::to_string(i));
    r.tokens_max = 600;
    r.ignore_end = true;
    r.choices = 1 + i % 3;
    if (i % 2) r.sampling = {.temperature = 1, .top_p = i % 4 == 1 ? 0.9f : 1.f, .seed = i};
    PreparedJob p = prepare_job(*e.runtime, e.options, std::move(r), std::make_shared<DeafSink>());
    p.job->id = static_cast<JobId>(i);
    p.job->submitted = e.clock.now();
    e.engine->submit(std::move(p.job));
  }
  for (int i = 0; i < 200; ++i) e.engine->step();  // prompts are read, scratch has grown
  const std::uint64_t before = allocations;
  for (int i = 0; i < 280; ++i) ASSERT_TRUE(e.engine->step());  // across many block edges
  e.engine->stats();
  EXPECT_EQ(allocations - before, 0u);
  EXPECT_EQ(e.engine->stats().sequences_running, 39u);
}

}  // namespace
}  // namespace quire
