// cli/replay.cc - `quire replay`: a recorded trace once more, with another cache.
#include <fmt/core.h>

#include <memory>

#include "base/byte_size.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/replay_live.h"
#include "cli/replay_virtual.h"
#include "lab/replay/share_plot.h"
#include "replay/block_replay.h"
#include "replay/cache_replay.h"

namespace quire::cli {
namespace {

using ShareCurves = std::vector<ShareCurve>;

struct ReplayCliOptions {
  std::string file, format = "auto", order = "auto", plot;
  VirtualCliOptions what_if;
  LiveCliOptions live;
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
  ShareCurves curves_;
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

void warn_of_gaps(bool whole) {
  if (!whole)
    fmt::print(stderr, "warning: the trace is not whole; what it lacks counts as never asked\n");
}

// What was asked for; else the recorded capacity, and around it if there is something to draw.
Result<std::vector<std::uint64_t>> capacities_of(const ReplayCliOptions& o, std::uint64_t recorded,
                                                 std::uint64_t block_bytes) {
  std::vector<std::uint64_t> all = o.capacities;
  for (const std::string& size : o.memory) {
    TRY(const std::uint64_t bytes, parse_size(size));
    if (block_bytes == 0)
      return Error{Code::invalid, "a trace of opaque blocks has no bytes: give --capacity-blocks"};
    all.push_back(bytes / block_bytes);
  }
  if (!all.empty()) return all;
  if (recorded == 0)
    return Error{Code::invalid, "the trace has no capacity: give --capacity-blocks"};
  if (o.plot.empty()) return std::vector{recorded};
  for (const double part : {0.0625, 0.125, 0.25, 0.5, 1.0, 2.0})
    all.push_back(std::max<std::uint64_t>(
        1, static_cast<std::uint64_t>(static_cast<double>(recorded) * part)));
  return all;
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
  return {{"order", "recorded"},
          {"evictor", r.evictor},
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
  warn_of_gaps(trace.value().whole);
  const auto asked = capacities_of(o, cache.capacity_blocks, cache.block_bytes);
  if (!asked.ok()) return fail(asked.error());
  const std::vector<std::uint64_t>& capacities = asked.value();
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

// Any trace, through a server in virtual time.
int replay_virtual(const ReplayCliOptions& o) {
  auto names = evictor_names(o, false);
  if (!names.ok()) return fail(kUsage, names.error().message);
  if (names.value().empty()) names.value().emplace_back();  // as recorded
  auto trace = read_asks(o.file);
  if (!trace.ok()) return fail(kFailed, trace.error().message);
  warn_of_gaps(trace.value().whole);
  std::uint64_t block_bytes = 0;
  const auto options =
      virtual_options(o.what_if, trace.value(), {.capacity_blocks = 0, .evictor = {}}, block_bytes);
  if (!options.ok()) return fail(options.error());
  if (!trace.value().costs.known() && o.what_if.costs.empty())
    fmt::print(stderr, "warning: the trace has no times; steps take round numbers, see --costs\n");
  const auto capacities = capacities_of(o, options.value().capacity_blocks, block_bytes);
  if (!capacities.ok()) return fail(capacities.error());
  ShareCurves curves;
  if (!o.json) fmt::print("{}", what_if_heading());
  for (const std::string& name : names.value()) {
    VirtualWorkerOptions asked = options.value();
    if (!name.empty()) asked.evictor = name;
    curves.push_back({asked.evictor, {}});
    for (const std::uint64_t capacity : capacities.value()) {
      asked.capacity_blocks = capacity;
      const auto w = what_if(trace.value().asks, asked);
      if (!w.ok()) return fail(w.error());
      if (o.json)
        print_json(what_if_json(w.value(), asked, trace.value(), block_bytes));
      else
        fmt::print("{}", what_if_line(w.value(), asked));
      std::fflush(stdout);
      curves.back().points.emplace_back(static_cast<double>(capacity), w.value().hit_share());
    }
  }
  if (o.plot.empty()) return kOk;
  const Status drawn =
      write_file(o.plot, share_page(o.file, curves, static_cast<double>(block_bytes)));
  return drawn.ok() ? kOk : fail(drawn.error());
}

Result<bool> is_our_own(const ReplayCliOptions& o) {
  if (o.format != "auto") return o.format == "quire";
  TRY(LineReader lines, LineReader::open(o.file));
  TRY(const std::optional<std::string_view> first, lines.next());
  return first && first->find("quire_trace") != std::string_view::npos;
}

int run_replay(const ReplayCliOptions& o) {
  if (!o.live.url.empty()) return replay_live(o.file, o.what_if.speed, o.live, o.json);
  const auto own = is_our_own(o);
  if (!own.ok()) return fail(kFailed, own.error().message);
  // What was recorded is repeated exactly; whoever asks "what if" gets a server that decides anew.
  const bool changes = own.value() && (!o.evictors.empty() || !o.capacities.empty() ||
                                       !o.memory.empty() || !o.plot.empty());
  if (o.order == "virtual" || (o.order == "auto" && (changes || o.what_if.asked())))
    return replay_virtual(o);
  if (o.what_if.asked())
    return fail(kUsage, "the recorded order has no scheduler; leave out --order recorded");
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
  app.add_option("--order", o->order,
                 "recorded: as it was; virtual: a server decides anew, in virtual time (auto)")
      ->check(CLI::IsMember({"auto", "recorded", "virtual"}));
  add_virtual_options(app, o->what_if);
  add_live_options(app, o->live);
  app.add_option("--plot", o->plot, "an HTML file: hit rate against memory");
  app.add_flag("--json", o->json, "print a JSON object for each evictor and capacity");
  return [o] { return run_replay(*o); };
}

}  // namespace

extern const Command kReplay = {
    "replay", "a recorded trace once more, with another cache or server",
    "examples:\n"
    "  quire serve model.gguf --trace trace.jsonl       records\n"
    "  quire replay trace.jsonl --json                  the same cache: the recorded hits\n"
    "  quire replay trace.jsonl --evictor all --kv-cache-memory 1GiB,2GiB --plot hits.html\n"
    "  quire replay trace.jsonl --kv-format int8 --tier disk:100GiB:2GiB\n"
    "  quire replay trace.jsonl --url http://127.0.0.1:8080    a live server, with the same "
    "timing\n"
    "  quire replay mooncake.jsonl.gz --evictor lru --capacity-blocks 10000 --json",
    declare_replay};

}  // namespace quire::cli
