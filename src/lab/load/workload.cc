#include "lab/load/workload.h"

#include <fmt/format.h>

#include <cmath>

#include "base/random.h"

namespace quire::load {

std::size_t Workload::requests() const {
  std::size_t count = 0;
  for (const SessionPlan& s : sessions) count += s.turns.size();
  return count;
}

Result<Workload> make_workload(const WorkloadShape& shape) {
  const bool shared = shape.kind == "shared-prefix", agent = shape.kind == "agent";
  if (!shared && !agent && shape.kind != "random")
    return Error{Code::not_found, fmt::format("no workload '{}'; there are: random shared-prefix "
                                              "agent, and trace with a file",
                                              shape.kind)};
  if (shape.sessions == 0 || shape.input == 0 || shape.output == 0 || shape.groups == 0)
    return Error{Code::invalid, "a workload needs sessions, input and output of at least 1"};
  Workload workload{shape.kind, {}};
  const auto seed_of = [&](std::uint64_t a, std::uint64_t b) {
    return mix64(mix64(mix64(shape.seed) ^ a) ^ b);
  };
  for (std::uint32_t s = 0; s < shape.sessions; ++s) {
    SessionPlan session;
    if (shape.prefix > 0 && (shared || agent))
      session.opening.push_back(
          {"system", seed_of(1, agent ? 0 : s % shape.groups), shape.prefix, {}});
    for (std::uint32_t t = 0; t < (agent ? shape.turns : 1); ++t)
      session.turns.push_back({.adds = {"user", seed_of(2 + t, s), shape.input, {}},
                               .output_tokens = shape.output,
                               .think_s = t == 0 ? 0 : shape.think_s});
    workload.sessions.push_back(std::move(session));
  }
  return workload;
}

void start_by_clock(Workload& workload, double rate, bool poisson, std::uint64_t seed) {
  Random random(seed);
  double at = 0;
  for (SessionPlan& s : workload.sessions) {
    s.start_s = at;
    at += poisson ? -std::log1p(-random.unit()) / rate : 1 / rate;
  }
}

}  // namespace quire::load
