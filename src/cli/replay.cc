// cli/replay.cc - `quire replay`: a recorded trace once more, with another cache.
#include <fmt/core.h>

#include <memory>

#include "base/byte_size.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "lab/replay/block_replay.h"
#include "lab/replay/cache_replay.h"
#include "lab/replay/lines.h"
#include "lab/replay/mooncake.h"
#include "lab/replay/share_plot.h"

namespace quire::cli {
namespace {

struct ReplayCliOptions {
  std::string file, format = "auto", plot;
  std::vector<std::string> evictors, memory;
  std::vector<std::uint64_t> capacities;
  bool json = false;
};

// Prints one line per evictor, one column per capacity, or JSON; draws them all.
class ReplayTable {
 public:
  ReplayTable(const ReplayCliOptions& o, std::span<const std::uint64_t> capacities) : o_(o) {
    if (o.json) return;
    fmt::print("{:<14}", "evictor");
    for (const std::uint64_t c : capacities)
      fmt::print("{:>12}", c == 0 ? "unbounded" : fmt::format("{}", c));
    fmt::print("\n");
  }
  void begin(std::string_view evictor) {
    if (!o_.json) fmt::print("{:<14}", evictor);
    curves_.push_back({std::string(evictor), {}});
  }
  void add(std::uint64_t capacity, double share, const Json& json) {
    if (o_.json)
      print_json(json);
    else
      fmt::print("{:>12.4f}", share);
    std::fflush(stdout);
    if (capacity > 0) curves_.back().points.emplace_back(static_cast<double>(capacity), share);
  }
  void end() {
    if (!o_.json) fmt::print("\n");
  }
  Status draw(double block_bytes) const {
    if (o_.plot.empty()) return {};
    return write_file(o_.plot, share_page(o_.file, curves_, block_bytes));
  }

 private:
  const ReplayCliOptions& o_;
  std::vector<ShareCurve> curves_;
};

Result<std::vector<std::string>> evictor_names(const ReplayCliOptions& o, bool future) {
  const auto known = future ? replay_evict_policies() : evict_policies();
  std::vector<std::string> names;
  for (const std::string& name : o.evictors) {
    if (name != "all") {
      TRY_STATUS(future ? find_replay_evict_policy(name) : find_evict_policy(name));
      names.push_back(name);
      continue;
    }
    for (const EvictPolicy* p : known) names.emplace_back(p->name);
  }
  return names;
}

// Opaque blocks, one request after another.
int replay_opaque(const ReplayCliOptions& o) {
  auto names = evictor_names(o, true);
  if (!names.ok()) return fail(kUsage, names.error().message);
  if (names.value().empty()) names.value().emplace_back(evict_policies()[0]->name);
  auto trace = read_mooncake(o.file);
  if (!trace.ok()) return fail(kFailed, trace.error().message);
  std::vector<BlockChain> chains;
  for (TraceRequest& r : trace.value()) chains.push_back(std::move(r.chain));
  std::vector<std::uint64_t> capacities = o.capacities;
  if (!o.memory.empty())
    return fail(kUsage, "a trace of opaque blocks has no bytes: give --capacity-blocks");
  if (capacities.empty()) capacities.push_back(0);
  ReplayTable table(o, capacities);
  for (const std::string& name : names.value()) {
    table.begin(name);
    for (const std::uint64_t capacity : capacities) {
      const BlockReplay r =
          replay_blocks(chains, *find_replay_evict_policy(name).value(), capacity);
      table.add(capacity, r.hit_share(),
                {{"evictor", name},
                 {"capacity_blocks", capacity},
                 {"requests", chains.size()},
                 {"blocks", r.blocks},
                 {"unique_blocks", r.unique_blocks},
                 {"hit_blocks", r.hit_blocks},
                 {"evicted_blocks", r.evicted_blocks},
                 {"hit_share", r.hit_share()}});
    }
    table.end();
  }
  if (const Status s = table.draw(0); !s.ok()) return fail(s.error());
  return kOk;
}

Json cache_replay_json(const CacheReplay& r, const TracedCache& cache) {
  Json evictions = Json::object();
  for (std::size_t i = 0; i < kReasonCount; ++i)
    if (r.evictions[i] > 0)
      evictions[std::string(reason_name(static_cast<Reason>(i)))] = r.evictions[i];
  return {{"evictor", r.evictor},
          {"capacity_blocks", r.capacity_blocks},
          {"cache_bytes", r.capacity_blocks * cache.block_bytes},
          {"requests", r.requests},
          {"prompt_tokens", r.prompt_tokens},
          {"blocks", r.blocks},
          {"hit_blocks", r.hit_blocks},
          {"hit_share", r.hit_share()},
          {"recorded_hit_blocks", r.recorded_hit_blocks},
          {"recorded_hit_tokens", r.recorded_hit_tokens},
          {"differing_requests", r.differing},
          {"no_room", r.no_room},
          {"evictions", evictions},
          {"est",
           {{"prompt_token_ms", r.token_s * 1e3},
            {"first_token_ms", r.first_token_s * 1e3},
            {"recorded_first_token_ms", r.recorded_first_token_s * 1e3}}}};
}

// A trace of our own, through the real cache.
int replay_recorded(const ReplayCliOptions& o) {
  auto names = evictor_names(o, false);
  if (!names.ok()) return fail(kUsage, names.error().message);
  if (names.value().empty()) names.value().emplace_back();  // as recorded
  const auto trace = read_cache_events(o.file);
  if (!trace.ok()) return fail(kFailed, trace.error().message);
  const TracedCache& cache = trace.value().cache;
  if (!trace.value().whole)
    fmt::print(stderr, "warning: the trace is not whole; what it lacks counts as never asked\n");
  std::vector<std::uint64_t> capacities = o.capacities;
  for (const std::string& size : o.memory) {
    const auto bytes = parse_size(size);
    if (!bytes.ok()) return fail(bytes.error());
    capacities.push_back(bytes.value() / std::max<std::uint64_t>(cache.block_bytes, 1));
  }
  if (capacities.empty() && o.plot.empty()) capacities.push_back(cache.capacity_blocks);
  if (capacities.empty())
    for (const double part : {0.0625, 0.125, 0.25, 0.5, 1.0, 2.0})
      capacities.push_back(std::max<std::uint64_t>(
          1, static_cast<std::uint64_t>(static_cast<double>(cache.capacity_blocks) * part)));
  ReplayTable table(o, capacities);
  for (const std::string& name : names.value()) {
    table.begin(name.empty() ? cache.evictor : name);
    for (const std::uint64_t capacity : capacities) {
      const auto r = replay_cache(trace.value(), {.capacity_blocks = capacity, .evictor = name});
      if (!r.ok()) return fail(r.error());
      table.add(capacity, r.value().hit_share(), cache_replay_json(r.value(), cache));
    }
    table.end();
  }
  if (const Status s = table.draw(static_cast<double>(cache.block_bytes)); !s.ok())
    return fail(s.error());
  return kOk;
}

Result<bool> is_our_own(const ReplayCliOptions& o) {
  if (o.format != "auto") return o.format == "quire";
  TRY(LineReader lines, LineReader::open(o.file));
  TRY(const std::optional<std::string_view> first, lines.next());
  return first && first->find("quire_trace") != std::string_view::npos;
}

int run_replay(const ReplayCliOptions& o) {
  const auto own = is_our_own(o);
  if (!own.ok()) return fail(kFailed, own.error().message);
  return own.value() ? replay_recorded(o) : replay_opaque(o);
}

std::function<int()> declare_replay(CLI::App& app) {
  auto o = std::make_shared<ReplayCliOptions>();
  app.add_option("FILE", o->file, "a trace, plain or compressed with gzip")->required();
  app.add_option("--format", o->format, "quire (serve --trace), mooncake, or auto (auto)")
      ->check(CLI::IsMember({"auto", "quire", "mooncake"}));
  app.add_option("--evictor", o->evictors, "lru, s3fifo, odds, ..., or all (as recorded, or odds)")
      ->delimiter(',');
  app.add_option("--capacity-blocks", o->capacities,
                 "blocks that fit, several separated by commas (as recorded, or no bound)")
      ->delimiter(',');
  app.add_option("--kv-cache-memory", o->memory, "the same in bytes, e.g. 1GiB,4GiB")
      ->delimiter(',');
  app.add_option("--plot", o->plot, "an HTML file: hit rate against memory");
  app.add_flag("--json", o->json, "print a JSON object for each evictor and capacity");
  return [o] { return run_replay(*o); };
}

}  // namespace

extern const Command kReplay = {
    "replay", "a recorded trace once more, with another cache",
    "examples:\n"
    "  quire serve model.gguf --trace trace.jsonl       records\n"
    "  quire replay trace.jsonl --json                  the same cache: the recorded hits\n"
    "  quire replay trace.jsonl --evictor all --kv-cache-memory 1GiB,2GiB --plot hits.html\n"
    "  quire replay mooncake.jsonl.gz --evictor lru --capacity-blocks 10000 --json",
    declare_replay};

}  // namespace quire::cli
