// A prompt is stored in a folder, forgotten, restored, damaged and restored again: the answer stays the
// same, and what was damaged is noticed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/client.h"
#include "engine/selftest.h"

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
  return {};
}

}  // namespace quire
