// cli/kv_folder.cc - `quire kv ls|stats|fsck|rm FOLDER`: a folder of cached blocks, without a server.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "cli/command.h"
#include "cli/model_options.h"
#include "kv/tier/disk_store.h"

namespace quire::cli {
namespace {

struct FolderCli {
  std::string folder;
  std::vector<std::string> names;
  bool json = false, all = false;
};

std::shared_ptr<FolderCli> add_folder_options(CLI::App& app) {
  auto o = std::make_shared<FolderCli>();
  app.add_option("FOLDER", o->folder, "the cache folder")->required();
  app.add_flag("--json", o->json, "print JSON");
  return o;
}

// A store and the files it is in.
struct OpenFolder {
  std::unique_ptr<Files> files = system_files();
  std::unique_ptr<DiskStore> store = {};
};

Result<OpenFolder> open_folder(const FolderCli& o, bool read_only) {
  OpenFolder folder;
  DiskStoreOptions options;
  options.folder = {.path = o.folder, .read_only = read_only, .create = false};
  TRY(folder.store, DiskStore::open(*folder.files, options));
  for (const std::string& problem : folder.store->problems())
    if (read_only)
      fmt::print(stderr, "{}: {}\n  hint: `quire kv fsck {}` repairs it\n", o.folder, problem,
                 o.folder);
  return folder;
}

std::string time_text(std::uint32_t seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(seconds)));
}

int run_kv_ls(const FolderCli& o) {
  const auto folder = open_folder(o, true);
  if (!folder.ok()) return fail(folder.error());
  const std::vector<DiskEntry> entries = folder.value().store->index().entries();
  if (!o.json)
    fmt::print("{:<32}  {:>12}  {:>5}  {:<19}  file\n", "record", "bytes", "hits", "used");
  Json rows = Json::array();
  for (const DiskEntry& e : entries) {
    if (o.json)
      rows.push_back({{"record", e.name.hex()},
                      {"bytes", e.bytes()},
                      {"hits", e.hits},
                      {"last_use", e.last_use},
                      {"recompute_us", e.recompute_us},
                      {"file", volume_file_name(e.volume)}});
    else
      fmt::print("{}  {:>12}  {:>5}  {}  {}\n", e.name.hex(), e.bytes(), e.hits,
                 time_text(e.last_use), volume_file_name(e.volume));
  }
  if (o.json) print_json({{"folder", o.folder}, {"records", rows}});
  return kOk;
}

int run_kv_stats(const FolderCli& o) {
  const auto folder = open_folder(o, true);
  if (!folder.ok()) return fail(folder.error());
  DiskStore& store = *folder.value().store;
  std::uint64_t live = 0, used = 0, recompute_us = 0;
  std::uint32_t newest = 0, oldest = UINT32_MAX;
  store.index().for_each([&](const DiskEntry& e) {
    live += e.bytes();
    used += e.hits > 0;
    recompute_us += e.recompute_us;
    newest = std::max(newest, e.last_use);
    oldest = std::min(oldest, e.last_use);
  });
  const TierStats stats = store.stats();
  const TierCost cost = store.saved_cost();
  if (o.json) {
    print_json({{"folder", o.folder},
                {"records", stats.records},
                {"records_used", used},
                {"files", store.volume_count()},
                {"bytes", stats.stored_bytes},
                {"live_bytes", live},
                {"recompute_s", static_cast<double>(recompute_us) * 1e-6},
                {"first_byte_s", cost.first_byte_s},
                {"bytes_per_s", cost.bytes_per_s},
                {"secret", store.folder().secret().fingerprint()}});
    return kOk;
  }
  fmt::print("{}\n  {} records in {} files, {} ({} in use)\n", o.folder, stats.records,
             store.volume_count(), human_bytes(static_cast<double>(stats.stored_bytes)),
             human_bytes(static_cast<double>(live)));
  if (stats.records == 0) return kOk;
  fmt::print("  {} of them were used since they were written; {:.1f} s of computing\n", used,
             static_cast<double>(recompute_us) * 1e-6);
  fmt::print("  used between {} and {}\n", time_text(oldest), time_text(newest));
  if (cost.first_byte_s > 0)
    fmt::print("  measured: {:.2f} ms to the first byte, {}/s\n", cost.first_byte_s * 1e3,
               human_bytes(cost.bytes_per_s));
  return kOk;
}

int run_kv_fsck(const FolderCli& o) {
  const auto folder = open_folder(o, false);
  if (!folder.ok()) return fail(folder.error());
  DiskStore& store = *folder.value().store;
  std::vector<std::string> problems = store.problems();
  const std::uint64_t before = store.index().size();
  const std::vector<VolumeDamage> damage = store.check();
  for (const VolumeDamage& d : damage)
    for (const std::string& p : d.problems)
      problems.push_back(fmt::format("segments/{}: {}", volume_file_name(d.volume), p));
  if (const Status repaired = store.repair(damage); !repaired.ok()) return fail(repaired.error());
  const std::uint64_t after = store.index().size();
  if (o.json)
    print_json({{"folder", o.folder},
                {"problems", problems},
                {"records", after},
                {"records_lost", before - after},
                {"files", store.volume_count()}});
  else
    for (const std::string& p : problems) fmt::print("{}\n", p);
  if (!o.json)
    fmt::print("{}: {} records in {} files, {}\n", o.folder, after, store.volume_count(),
               problems.empty() ? "all whole"
                                : fmt::format("repaired; {} records were lost", before - after));
  return problems.empty() ? kOk : kFailed;
}

int run_kv_rm(const FolderCli& o) {
  if (o.all == !o.names.empty())
    return fail(kUsage, "say which records to remove", "names of `quire kv ls`, or --all");
  const auto folder = open_folder(o, false);
  if (!folder.ok()) return fail(folder.error());
  DiskStore& store = *folder.value().store;
  const std::uint64_t before = store.index().size();
  if (o.all) {
    if (const Status cleared = store.clear(); !cleared.ok()) return fail(cleared.error());
  }
  for (const std::string& wanted : o.names) {
    std::vector<RecordName> found;
    store.index().for_each([&](const DiskEntry& e) {
      if (wanted.size() >= 4 && e.name.hex().starts_with(wanted)) found.push_back(e.name);
    });
    if (found.size() != 1)
      return fail(kFailed, fmt::format("{} records begin '{}'", found.size(), wanted),
                  "`quire kv ls` lists them; four digits or more must tell one from the others");
    store.erase(found);
  }
  if (const Status saved = store.save(true); !saved.ok()) return fail(saved.error());
  const std::uint64_t removed = before - store.index().size();
  if (o.json)
    print_json({{"folder", o.folder}, {"removed", removed}, {"records", store.index().size()}});
  else
    fmt::print("{}: {} records removed, {} are left\n", o.folder, removed, store.index().size());
  return kOk;
}

template <int (*run)(const FolderCli&)>
std::function<int()> declare_kv_folder(CLI::App& app) {
  auto o = add_folder_options(app);
  return [o] { return run(*o); };
}

std::function<int()> declare_kv_rm(CLI::App& app) {
  auto o = add_folder_options(app);
  app.add_option("RECORD", o->names, "names of records, or how they begin");
  app.add_flag("--all", o->all, "remove all records");
  return [o] { return run_kv_rm(*o); };
}

}  // namespace

extern const Command kKvLs = {"kv ls", "the records in a cache folder",
                              "examples:\n"
                              "  quire kv ls ~/.cache/quire/kv\n"
                              "  quire kv ls ~/.cache/quire/kv --json",
                              declare_kv_folder<run_kv_ls>};
extern const Command kKvStats = {"kv stats", "what a cache folder holds",
                                 "examples:\n"
                                 "  quire kv stats ~/.cache/quire/kv",
                                 declare_kv_folder<run_kv_stats>};
extern const Command kKvFsck = {"kv fsck", "check every byte of a cache folder, and repair it",
                                "Exits 0 if the folder is whole, 1 if it was damaged and has been "
                                "repaired.\n"
                                "examples:\n"
                                "  quire kv fsck ~/.cache/quire/kv",
                                declare_kv_folder<run_kv_fsck>};
extern const Command kKvRm = {"kv rm", "remove records from a cache folder",
                              "examples:\n"
                              "  quire kv rm ~/.cache/quire/kv 3f9a12c4\n"
                              "  quire kv rm ~/.cache/quire/kv --all",
                              declare_kv_rm};

}  // namespace quire::cli
