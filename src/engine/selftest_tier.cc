// A prompt is stored in a folder, forgotten, restored, damaged and restored again: the answer stays the
// same, and what was damaged is noticed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/client.h"
#include "engine/plan.h"
#include "engine/selftest.h"
#include "engine/session_store.h"
#include "engine/sessions.h"

namespace quire {
namespace {

constexpr std::uint32_t kRestoredAnswer = 8;  // tokens

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

// A bit of every 128 bytes of every volume: records are small, and padded.
void damage(const std::string& folder) {
  for (const auto& file : std::filesystem::directory_iterator(folder + "/segments")) {
    std::fstream f(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::streamoff at = 64; at < static_cast<std::streamoff>(file.file_size()); at += 128) {
      f.seekg(at);
      const char byte = static_cast<char>(f.get() ^ 4);
      f.seekp(at);
      f.put(byte);
    }
  }
}

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
      std::min(40 * runtime.geometry().tokens_per_block, runtime.context() - kRestoredAnswer);
  while (longer.size() < tokens) longer.push_back(prompt[longer.size() % prompt.size()]);
  const auto ask = [&](std::uint64_t resident) {
    runtime.cache().clear(true);
    runtime.tiers()->clear();
    Client client(runtime);
    return client.generate(
        longer, {.tokens_max = kRestoredAnswer, .ignore_end = true, .resident = resident});
  };
  TRY(const GenerateResult whole, ask(0));
  const auto small = ask(sequence_bytes(runtime.geometry(), tokens) * 3 / 5);
  if (!small.ok()) {
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
  TRY(const ScratchFolder folder, ScratchFolder::make());
  RuntimeOptions options = base;
  options.kv_dir = folder.path() + "/kv";
  TRY(const std::unique_ptr<Runtime> runtime, Runtime::open(path, options));
  const auto ask = [&]() -> Result<GenerateResult> {
    Client client(*runtime);  // writes what there is when it ends
    return client.generate(prompt, {.tokens_max = kRestoredAnswer, .ignore_end = true});
  };
  const auto forget = [&] { runtime->cache().clear(true); };
  TRY(const GenerateResult computed, ask());
  const auto compare = [&](const std::string& name, const GenerateResult& got, bool found) {
    const Generated &a = computed.answers[0], &b = got.answers[0];
    SelftestCheck check{.name = prefix + name, .ok = found && a.tokens == b.tokens};
    check.compared = a.tokens.size();
    for (std::size_t i = 0; check.ok && i < a.choices.size(); ++i)
      check.ok = a.choices[i].logprob == b.choices[i].logprob;
    if (!found) check.detail = "the folder was not used, or its damage not noticed";
    report(check);
  };
  forget();
  TRY(const GenerateResult restored, ask());
  const std::uint32_t tokens = restored.timings.cached_tokens;
  // Without a layer that sees everything, blocks behind a window need not come back.
  const bool sees_all = std::ranges::any_of(runtime->geometry().groups, [](const LayerGroup& g) {
    return g.kind == GroupKind::full && g.window == 0;
  });
  const bool enough =
      sees_all ? tokens + 2 * runtime->geometry().tokens_per_block > prompt.size() : tokens > 0;
  compare(fmt::format("{} tokens restored from a folder", tokens), restored, enough);
  forget();
  damage(options.kv_dir);
  TRY(const GenerateResult again, ask());
  const TierStats stats = runtime->tiers()->stats().tier;
  compare(fmt::format("a damaged folder: {} block{} refused", stats.corrupt,
                      stats.corrupt == 1 ? "" : "s"),
          again, stats.corrupt > 0);
  TRY(SelftestCheck session, check_session(*runtime, prompt));
  session.name = prefix + session.name;
  report(session);
  TRY(SelftestCheck resident, check_resident(*runtime, prompt));
  resident.name = prefix + resident.name;
  report(resident);
  return {};
}

}  // namespace quire
