// Any text is a trace or an error that says why, and what a trace asks for can be run in virtual time, or
// is refused.
#include "base/check.h"
#include "replay/what_if.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto trace = parse_asks({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!trace.ok()) {
    CHECK(!trace.error().message.empty());
    return 0;
  }
  std::uint64_t tokens = 0;
  for (const Ask& a : trace.value().asks) {
    CHECK(a.piece > 0 && a.arrival >= 0 && a.prompt_tokens > 0);
    CHECK(made_up_tokens(a, 100).size() <= 100);
    tokens += std::uint64_t{a.prompt_tokens} + a.answer_tokens;
  }
  if (tokens > 5000 || trace.value().asks.size() > 50) return 0;
  VirtualWorkerOptions change{.capacity_blocks = 0, .block_size = 0, .evictor = {}};
  const VirtualWorkerOptions options = what_if_options(trace.value(), change);
  const auto w = what_if(trace.value().asks, options);
  if (!w.ok()) {
    CHECK(!w.error().message.empty());
    return 0;
  }
  CHECK(w.value().requests == trace.value().asks.size());
  CHECK(w.value().hit_tokens.memory <= w.value().prompt_tokens);
  CHECK(w.value().seconds >= 0);
  return 0;
}
