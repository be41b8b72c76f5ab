// A prompt is stored in a folder, in a shared store and in both, forgotten, restored, damaged and restored
// again: the answer stays the same, and what was damaged is noticed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/file.h"
#include "engine/client.h"
#include "engine/plan.h"
#include "engine/selftest.h"
#include "engine/session_store.h"
#include "engine/sessions.h"
#include "kv/tier/secret.h"

namespace quire {
namespace {

constexpr std::uint32_t kRestoredAnswer = 8;  // tokens
// On a busy machine a tier may be slower than computing is, and is then not waited for.
constexpr int kTries = 8;

// A folder of its own, which goes with it.
class ScratchFolder {
 public:
  static Result<ScratchFolder> make() {
    std::string path = std::filesystem::temp_directory_path().string() + "/quire-selftest-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr)
      return Error{Code::unavailable, path + ": cannot be made"};
    return ScratchFolder(path);
  }
  ScratchFolder(ScratchFolder&& o) noexcept : path_(std::exchange(o.path_, {})) {}
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// A bit of every 128 bytes of every file below: records are small, and padded.
void damage(const std::string& folder) {
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (!file.is_regular_file()) continue;
    std::fstream f(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::streamoff at = 64; at < static_cast<std::streamoff>(file.file_size()); at += 128) {
      f.seekg(at);
      const char byte = static_cast<char>(f.get() ^ 4);
      f.seekp(at);
      f.put(byte);
    }
  }
}

// A runtime with some places below memory, and what it answers.
class TierTrial {
 public:
  TierTrial(std::unique_ptr<Runtime> runtime, std::span<const TokenId> prompt)
      : runtime_(std::move(runtime)), prompt_(prompt) {}

  Runtime& runtime() { return *runtime_; }
  Result<GenerateResult> ask(std::span<const TokenId> prompt) {
    Client client(*runtime_);  // writes what there is when it ends
    return client.generate(prompt, {.tokens_max = kRestoredAnswer, .ignore_end = true});
  }
  void forget() { runtime_->cache().clear(true); }

  // Asks with an empty memory, and compares with what was computed. `found`: what the tiers should say.
  template <class Found>
  Result<SelftestCheck> again(const GenerateResult& computed, const Found& found) {
    bool used = false;
    GenerateResult got;
    for (int tries = 0; tries < kTries && !used; ++tries) {
      forget();
      TRY(got, ask(prompt_));
      used = found(got.timings.cached_tokens);
      if (got.answers[0].tokens != computed.answers[0].tokens) break;
    }
    const Generated &a = computed.answers[0], &b = got.answers[0];
    SelftestCheck check{.ok = used && a.tokens == b.tokens};
    check.compared = a.tokens.size();
    for (std::size_t i = 0; check.ok && i < a.choices.size(); ++i)
      check.ok = a.choices[i].logprob == b.choices[i].logprob;
    if (!used) check.detail = "it was not used, or its damage not noticed";
    return check;
  }

  // Without a layer that sees everything, blocks behind a window need not come back.
  bool sees_all() const {
    return std::ranges::any_of(runtime_->geometry().groups, [](const LayerGroup& g) {
      return (g.kind == GroupKind::full || g.kind == GroupKind::latent) && g.window == 0;
    });
  }
  bool enough(std::uint32_t tokens) const {
    return sees_all() ? tokens + 2 * runtime_->geometry().tokens_per_block > prompt_.size()
                      : tokens > 0;
  }
  std::uint64_t corrupt(TierPlace place) const {
    return runtime_->tiers()->stats(place).tier.corrupt;
  }
  std::uint64_t loaded(TierPlace place) const { return runtime_->tiers()->stats(place).up.blocks; }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::span<const TokenId> prompt_;
};

// A session is saved, everything is forgotten, and it goes on as it did before.
Result<SelftestCheck> check_session(Runtime& runtime, std::span<const TokenId> prompt) {
  const auto sessions = std::make_shared<Sessions>();
  KvPolicy kv;
  kv.retain = runtime.retain();
  kv.select = runtime.select();
  SessionStore store(runtime, {.run = [&](const std::function<void(Runtime&)>& f) -> Status {
                       f(runtime);
                       return {};
                     }});
  const auto go_on = [&](std::span<const TokenId> with) -> Result<Generated> {
    TRY(auto turn, sessions->begin("", "selftest", {.prompt = with, .kv = kv}));
    Client client(runtime);
    TRY(GenerateResult said,
        client.generate(
            with, {.tokens_max = kRestoredAnswer, .ignore_end = true, .session = std::move(turn)}));
    return std::move(said.answers[0]);
  };
  TRY(const Generated first, go_on(prompt));
  TRY(const Session session, sessions->find("", "selftest"));
  TRY_STATUS(store.save(session, "selftest"));
  std::vector<TokenId> longer = session.tokens;
  longer.insert(longer.end(), prompt.begin(),
                prompt.begin() + std::min<std::size_t>(8, prompt.size()));
  TRY(const Generated wanted, go_on(longer));
  TRY(const Session now, sessions->remove("", "selftest"));
  if (now.lease) TRY_STATUS(runtime.cache().release(*now.lease));
  runtime.cache().clear(true);
  runtime.tiers()->clear();
  TRY(LoadedSession loaded,
      store.load("", "selftest", "", [&](const std::string&) -> Result<KvPolicy> { return kv; }));
  const std::optional<LeaseId> lease = loaded.session.lease;
  TRY_STATUS(sessions->create(std::move(loaded.session)));
  TRY(const Generated got, go_on(longer));
  SelftestCheck check{.name = "a session saved and restored",
                      .ok = loaded.own && got.tokens == wanted.tokens};
  check.compared = wanted.tokens.size();
  for (std::size_t i = 0; check.ok && i < wanted.choices.size(); ++i)
    check.ok = wanted.choices[i].logprob == got.choices[i].logprob;
  if (lease) (void)runtime.cache().release(*lease);
  return check;
}

// A prompt that may hold a part of what it needs: the rest is read from the folder for every step.
Result<SelftestCheck> check_resident(Runtime& runtime, std::span<const TokenId> prompt) {
  SelftestCheck check{.name = "a context larger than memory"};
  std::vector<TokenId> longer;
  const std::uint32_t tokens =
      std::min(48 * runtime.geometry().tokens_per_block, runtime.context() - kRestoredAnswer);
  while (longer.size() < tokens) longer.push_back(prompt[longer.size() % prompt.size()]);
  const auto ask = [&](std::uint64_t resident) {
    runtime.cache().clear(true);
    runtime.tiers()->clear();
    Client client(runtime);
    return client.generate(
        longer, {.tokens_max = kRestoredAnswer, .ignore_end = true, .resident = resident});
  };
  TRY(const GenerateResult whole, ask(0));
  const auto small = ask(sequence_bytes(runtime.geometry(), tokens) * 15 / 16);
  if (!small.ok()) {
    check.ok = true;
    check.tried = false;
    check.detail = small.error().message;
    return check;
  }
  const Generated &a = whole.answers[0], &b = small.value().answers[0];
  check.compared = a.tokens.size();
  check.ok = a.tokens == b.tokens && small.value().timings.cold_bytes > 0;
  for (std::size_t i = 0; check.ok && i < a.choices.size(); ++i)
    check.ok = a.choices[i].logprob == b.choices[i].logprob;
  return check;
}

}  // namespace

Status selftest_tier(const std::string& path, const RuntimeOptions& base,
                     std::span<const TokenId> prompt, const std::string& prefix,
                     const std::function<void(const SelftestCheck&)>& report) {
  TRY(const ScratchFolder scratch, ScratchFolder::make());
  const std::string folder = scratch.path() + "/kv", store = scratch.path() + "/store",
                    secret = scratch.path() + "/secret";
  std::filesystem::create_directory(store);
  TRY_STATUS(write_file(secret, DeploymentSecret::random().text()));
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  const auto open = [&](bool own, bool shared) -> Result<TierTrial> {
    RuntimeOptions options = base;
    options.kv_secret_file = secret;
    if (own) options.kv_dir = folder;
    if (shared) options.kv_store = "file://" + store;
    TRY(std::unique_ptr<Runtime> runtime, Runtime::open(path, options));
    return TierTrial(std::move(runtime), prompt);
  };
  const auto say = [&](SelftestCheck check, const std::string& name) {
    check.name = prefix + name;
    report(check);
  };
  const auto blocks = [](std::uint64_t n) {
    return fmt::format("{} block{}", n, n == 1 ? "" : "s");
  };
  std::uint32_t tokens = 0;
  std::optional<GenerateResult> original;

  // Each on its own: the shared store keeps all of it, the folder the first half.
  for (const bool shared : {true, false}) {
    TRY(TierTrial trial, open(!shared, shared));
    const std::string where = shared ? "a shared store" : "a folder";
    TRY(GenerateResult computed, trial.ask(prompt));
    if (!original) original = computed;
    TRY(SelftestCheck restored, trial.again(computed, [&](std::uint32_t cached) {
      tokens = cached;
      return trial.enough(cached);
    }));
    say(std::move(restored), fmt::format("{} tokens restored from {}", tokens, where));
    damage(shared ? store : folder + "/segments");
    TRY(SelftestCheck damaged,
        trial.again(computed, [&](std::uint32_t) { return trial.corrupt(0) > 0; }));
    say(std::move(damaged), fmt::format("{} damaged: {} refused", where, blocks(trial.corrupt(0))));
    if (shared) continue;
    TRY(SelftestCheck session, check_session(trial.runtime(), prompt));
    std::string name = session.name;
    say(std::move(session), name);
    TRY(SelftestCheck resident, check_resident(trial.runtime(), prompt));
    name = resident.name;
    say(std::move(resident), name);
    trial.forget();
    trial.runtime().tiers()->clear();
    TRY([[maybe_unused]] const GenerateResult first, trial.ask(prompt.first(prompt.size() / 2)));
  }

  // The folder has the first half, the store all of it.
  TRY(TierTrial trial, open(true, true));
  TRY(SelftestCheck restored, trial.again(*original, [&](std::uint32_t cached) {
    tokens = cached;
    return trial.enough(cached);  // of which tier each block comes depends on who answers first
  }));
  say(std::move(restored), fmt::format("{} tokens restored from two tiers: {} of a folder, {} of a "
                                       "shared store",
                                       tokens, blocks(trial.loaded(0)), trial.loaded(1)));
  damage(store);
  damage(folder + "/segments");
  TRY(SelftestCheck damaged, trial.again(*original, [&](std::uint32_t) {
    return trial.corrupt(0) + trial.corrupt(1) > 0;
  }));
  say(std::move(damaged),
      fmt::format("two tiers damaged: {} refused", blocks(trial.corrupt(0) + trial.corrupt(1))));
  return {};
}

}  // namespace quire
