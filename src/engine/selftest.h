// engine/selftest.h - the same prompt computed in many ways, compared bit for bit.
#pragma once

#include <functional>
#include <string>

#include "engine/runtime.h"

namespace quire {

struct SelftestCheck {
  std::string name;
  bool ok = false;
  bool tried = true;           // false: nothing was compared, and `detail` says why
  std::uint64_t compared = 0;  // logits, or tokens with their log-probabilities
  std::string detail = {};     // where they first differ
};

// Opens the model several times (threads, instruction sets, and with `all` every format, unless the
// options name one). True when every check held; an error when the model could not be run at all.
Result<bool> selftest(const std::string& path, const RuntimeOptions& base, bool all,
                      const std::function<void(const SelftestCheck&)>& report);

enum class SelftestMethods { few, all, thoroughly };

// Retention methods on one prompt, a few or all of them, `thoroughly` with long answers: the tokens
// that stay and the answer must not depend on how the prompt was read. Selection and approximate
// reuse are checked in the same way (selftest_retain.cc).
Status selftest_retain(Runtime& runtime, std::span<const TokenId> prompt, const std::string& prefix,
                       SelftestMethods methods,
                       const std::function<void(const SelftestCheck&)>& report);

// In a lossy format: exact blocks encoded instead of computed, and what follows them
// (selftest_convert.cc).
Status selftest_convert(Runtime& runtime, std::span<const TokenId> prompt,
                        const std::string& prefix,
                        const std::function<void(const SelftestCheck&)>& report);

// Equal and overlapping requests at once: each is answered as it is alone (selftest_engine.cc).
Status selftest_engine(Runtime& runtime, std::span<const TokenId> prompt, const std::string& prefix,
                       const std::function<void(const SelftestCheck&)>& report);

// Blocks in a folder: restored, damaged, restored again; and a prompt most of whose blocks stay there
// (selftest_tier.cc). Opens the model once more.
Status selftest_tier(const std::string& path, const RuntimeOptions& base,
                     std::span<const TokenId> prompt, const std::string& prefix,
                     const std::function<void(const SelftestCheck&)>& report);

}  // namespace quire
