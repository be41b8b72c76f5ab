// cli/pull.cc - `quire pull`, `ls` and `rm`: models by name.
#include "cli/pull.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/model_options.h"
#include "cli/progress_line.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

struct PullCli {
  std::string name;
  std::uint32_t connections = 4;
  bool json = false;
};

int pull(const PullCli& o) {
  const auto name = HubName::parse(o.name);
  if (!name.ok()) return fail(name.error());
  const auto pulled = pull_with_progress(name.value(), o.connections);
  if (!pulled.ok()) return fail(pulled.error());
  const PulledModel& model = pulled.value();
  if (o.json) {
    print_json({{"name", name.value().text()},
                {"path", model.path},
                {"commit", model.commit},
                {"bytes", model.bytes},
                {"files", model.files},
                {"others", model.others}});
    return kOk;
  }
  fmt::print("{}\n", model.path);
  if (!model.others.empty() && name.value().file.empty())
    fmt::print(
        stderr,
        "of {} GGUF files {} was chosen; name another one as {}:FILE (`--json` lists them)\n",
        model.others.size() + 1, model.files.front(), name.value().text());
  return kOk;
}

// A model in one of the two folders.
struct Listed {
  std::string name, path;
  std::uint64_t bytes = 0;
  std::int64_t changed_s = 0;
  bool pulled = false;
};

std::uint64_t bytes_below(const fs::path& path) {
  std::error_code bad;
  if (!fs::is_directory(path, bad)) return fs::file_size(path, bad);
  std::uint64_t bytes = 0;
  fs::directory_iterator at(path, bad);
  for (const fs::directory_iterator end; !bad && at != end; at.increment(bad)) {
    std::error_code none;
    if (at->is_regular_file(none)) bytes += at->file_size(none);
  }
  return bytes;
}

std::vector<Listed> listed_models() {
  std::vector<Listed> all;
  for (const std::string& name : cached_models()) {
    const auto path = find_model(name);
    if (!path.ok()) continue;
    struct stat info {};
    ::stat(path.value().c_str(), &info);
    all.push_back({name, path.value(), bytes_below(path.value()), info.st_mtime, false});
  }
  for (const CachedModel& m : HubCache().models())
    all.push_back({m.name.text(), m.path, m.bytes, m.changed_s, true});
  return all;
}

int list_local_models(const PullCli& o) {
  const std::vector<Listed> all = listed_models();
  if (o.json) {
    Json rows = Json::array();
    for (const Listed& m : all)
      rows.push_back({{"name", m.name},
                      {"path", m.path},
                      {"bytes", m.bytes},
                      {"changed", m.changed_s},
                      {"from", m.pulled ? "hub" : "folder"}});
    print_json({{"models", rows}, {"folders", {model_cache_folder(), HubCache().folder()}}});
    return kOk;
  }
  if (all.empty()) {
    fmt::print(stderr, "no models in {} and {}; `quire pull hf:OWNER/REPO` fetches one\n",
               model_cache_folder(), HubCache().folder());
    return kOk;
  }
  std::size_t width = 4;
  for (const Listed& m : all) width = std::max(width, m.name.size());
  fmt::print("{:<{}}  {:>10}  changed\n", "name", width, "size");
  for (const Listed& m : all)
    fmt::print("{:<{}}  {:>10}  {:%Y-%m-%d}\n", m.name, width,
               human_bytes(static_cast<double>(m.bytes)),
               fmt::localtime(static_cast<std::time_t>(m.changed_s)));
  return kOk;
}

int remove_model(const PullCli& o) {
  std::uint64_t freed = 0;
  const std::vector<Listed> all = listed_models();
  const auto own =
      std::ranges::find_if(all, [&](const Listed& m) { return !m.pulled && m.name == o.name; });
  if (own != all.end()) {  // by the name that `quire ls` shows; never by path
    std::error_code error;
    freed = own->bytes;
    fs::remove_all(own->path, error);
    if (error) return fail(kFailed, own->path + ": cannot be removed: " + error.message());
  } else {
    const auto name = HubName::parse(o.name);
    if (!name.ok())
      return fail(kNoModel, "no model is named '" + o.name + "'",
                  "`quire ls` lists those that are there");
    const auto removed = HubCache().remove(name.value());
    if (!removed.ok()) return fail(removed.error());
    freed = removed.value();
  }
  fmt::print(stderr, "removed {}: {} are free\n", o.name, human_bytes(static_cast<double>(freed)));
  return kOk;
}

std::function<int()> declare_pull(CLI::App& app) {
  auto o = std::make_shared<PullCli>();
  app.add_option("NAME", o->name, "hf:OWNER/REPO[@REVISION][:FILE], also without hf:")->required();
  app.add_option("--connections", o->connections, "parts that are fetched at once (4)")
      ->check(CLI::Range(1, 32))
      ->group(kRare);
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return pull(*o); };
}

std::function<int()> declare_ls(CLI::App& app) {
  auto o = std::make_shared<PullCli>();
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return list_local_models(*o); };
}

std::function<int()> declare_rm(CLI::App& app) {
  auto o = std::make_shared<PullCli>();
  app.add_option("NAME", o->name, "as `quire ls` shows it; a repository without :FILE goes whole")
      ->required();
  return [o] { return remove_model(*o); };
}

}  // namespace

Result<PulledModel> pull_with_progress(const HubName& name, std::uint32_t connections) {
  TRY(HubAccess access, HubAccess::from_environment());
  std::mutex mutex;
  ProgressLine line("fetched", "MB of " + name.text(), 1e6);
  return pull_model(name, {.access = std::move(access),
                           .connections = connections,
                           .log =
                               [&](const std::string& text) {
                                 const std::lock_guard lock(mutex);
                                 fmt::print(stderr, "{}\n", text);
                               },
                           .progress =
                               [&](std::uint64_t done, std::uint64_t all) {
                                 const std::lock_guard lock(mutex);
                                 line.at(done, all);
                               }});
}

extern const Command kPull = {
    "pull", "fetch a model from Hugging Face, or from HF_ENDPOINT",
    "What broke off goes on where it was. Without FILE, of several GGUF files that of Q4_K_M.\n"
    "examples:\n"
    "  quire pull hf:unsloth/Qwen3-0.6B-GGUF\n"
    "  quire pull hf:unsloth/Qwen3-0.6B-GGUF:Q8_0\n"
    "  HF_TOKEN=... quire pull meta-llama/Llama-3.2-1B",
    declare_pull};
extern const Command kLs = {"ls", "the models that are here",
                            "example:\n"
                            "  quire ls",
                            declare_ls};
extern const Command kList = {"list", "the same as ls",
                              "example:\n"
                              "  quire list --json",
                              declare_ls};
extern const Command kRm = {"rm", "remove a model that `quire ls` lists",
                            "examples:\n"
                            "  quire rm smollm2-135m-instruct-q4_1\n"
                            "  quire rm hf:unsloth/Qwen3-0.6B-GGUF:Q8_0",
                            declare_rm};

}  // namespace quire::cli
