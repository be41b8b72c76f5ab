#include "cli/command.h"

#include <fmt/core.h>

#include <cstdio>

namespace quire::cli {

#define QUIRE_COMMAND(name) extern const Command k##name
QUIRE_COMMAND(Serve);
QUIRE_COMMAND(Run);
QUIRE_COMMAND(Chat);
QUIRE_COMMAND(Pull);
QUIRE_COMMAND(Ls);
QUIRE_COMMAND(List);
QUIRE_COMMAND(Rm);

QUIRE_COMMAND(Bench);
QUIRE_COMMAND(BenchServe);
QUIRE_COMMAND(BenchKv);
QUIRE_COMMAND(BenchRetain);
QUIRE_COMMAND(Show);
QUIRE_COMMAND(Plan);
QUIRE_COMMAND(Replay);
QUIRE_COMMAND(Top);
QUIRE_COMMAND(Eval);
QUIRE_COMMAND(EvalFormats);
QUIRE_COMMAND(Selftest);
QUIRE_COMMAND(KvFormats);
QUIRE_COMMAND(KvMethods);
QUIRE_COMMAND(KvLs);
QUIRE_COMMAND(KvStats);
QUIRE_COMMAND(KvFsck);
QUIRE_COMMAND(KvRm);
QUIRE_COMMAND(Leaderboard);
QUIRE_COMMAND(Probe);
QUIRE_COMMAND(Calibrate);
QUIRE_COMMAND(Tokenize);
QUIRE_COMMAND(Detokenize);
QUIRE_COMMAND(Template);
QUIRE_COMMAND(Version);
QUIRE_COMMAND(Completion);
#undef QUIRE_COMMAND

std::span<const Command> commands() {
  static const Command all[] = {
      kServe,     kRun,        kChat,       kPull,        kLs,         kList,     kRm,
      kBench,     kBenchServe, kBenchKv,    kBenchRetain, kShow,       kPlan,     kReplay,
      kTop,       kSelftest,   kEval,       kTokenize,    kDetokenize, kTemplate, kEvalFormats,
      kKvFormats, kKvMethods,  kKvLs,       kKvStats,     kKvFsck,     kKvRm,     kLeaderboard,
      kProbe,     kCalibrate,  kCompletion, kVersion};
  return all;
}

int fail(int exit_code, const std::string& message, const std::string& hint) {
  fmt::print(stderr, "error: {}\n", message);
  if (!hint.empty()) fmt::print(stderr, "  hint: {}\n", hint);
  return exit_code;
}

int fail(const Error& error) {
  switch (error.code) {
    case Code::invalid:
      return fail(kUsage, error.message);
    case Code::not_found:
    case Code::corrupt:
    case Code::unsupported:
      return fail(kNoModel, error.message);
    case Code::exhausted:
      return fail(kNoMemory, error.message);
    case Code::cancelled:
      return fail(kInterrupted, error.message);
    case Code::unavailable:
      return fail(kFailed, error.message);
  }
  return fail(kFailed, error.message);
}

void print_json(const Json& value) {
  // Replaces what is not UTF-8, so that a half-finished character cannot break the output.
  fmt::print("{}\n", value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace quire::cli
