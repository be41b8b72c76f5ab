// cli/selftest.cc - `quire selftest`: proves on this machine and model that the answer does not
// depend on how it was made.
#include <fmt/core.h>

#include <chrono>
#include <cstring>
#include <numeric>

#include "base/random.h"
#include "cli/calibrations.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "engine/selftest.h"

namespace quire::cli {
namespace {

struct SelftestOptions {
  ModelOptionsCli model;
  bool all = false, json = false;
};

int run_selftest(const SelftestOptions& o) {
  const bool made_up = !o.model.random_weights.empty();
  const auto path = made_up ? Result<std::string>(o.model.random_weights) : find_model(o.model);
  if (!path.ok()) return fail(path.error());
  auto base = runtime_options(o.model);
  if (!base.ok()) return fail(base.error());
  if (!made_up) {
    auto calibrations = stored_calibrations(path.value());
    if (!calibrations.ok()) return fail(calibrations.error());
    base.value().calibrations = std::move(calibrations.value());
  }
  const auto started = std::chrono::steady_clock::now();
  Json checks = Json::array();
  std::size_t left_out = 0;
  const auto report = [&](const SelftestCheck& c) {
    left_out += !c.tried;
    if (o.json)
      checks.push_back({{"check", c.name},
                        {"ok", c.ok},
                        {"tried", c.tried},
                        {"compared", c.compared},
                        {"detail", c.detail}});
    else
      fmt::print("{}  {}{}\n",
                 !c.tried ? "not tried"
                 : c.ok   ? "same"
                          : "DIFFERS",
                 c.name, c.detail.empty() ? "" : ": " + c.detail);
    std::fflush(stdout);
  };
  const auto result = selftest(path.value(), base.value(), o.all, report);
  if (!result.ok()) return fail(result.error());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (o.json)
    print_json({{"ok", result.value()},
                {"not_tried", left_out},
                {"seconds", seconds},
                {"checks", checks}});
  else
    fmt::print("{}{} in {:.1f} s\n",
               result.value() ? "every answer is bit for bit the same" : "FAILED",
               left_out ? fmt::format(" ({} not tried),", left_out) : ",", seconds);
  return result.value() ? kOk : kUnverified;
}

std::function<int()> declare_selftest(CLI::App& app) {
  auto o = std::make_shared<SelftestOptions>();
  add_model_options(app, o->model);
  app.add_flag("--all", o->all, "every format (or the one named), method and block size");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_selftest(*o); };
}

}  // namespace

extern const Command kSelftest = {"selftest",
                                  "prove that batching, chunking and caching change no answer",
                                  "Compares logits bit for bit and exits 7 when any differ.\n"
                                  "examples:\n"
                                  "  quire selftest model.gguf\n"
                                  "  quire selftest model.gguf --all --json",
                                  declare_selftest};

}  // namespace quire::cli
