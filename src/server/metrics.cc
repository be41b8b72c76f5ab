#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <limits>

#include "engine/draft/source.h"
#include "kv/reason.h"

namespace quire {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr const char* kTier = "cpu";  // where the engine's own blocks live

// Families as they are added; a sample goes to the one opened last.
class Page {
 public:
  explicit Page(const MetricsIdentity& identity)
      : common_{{"model_name", identity.model_name}, {"engine", "0"}} {}

  Page& open(const char* name, MetricType type, const char* help) {
    families_.push_back({name, help, type, {}});
    return *this;
  }
  Page& sample(double value, const Labels& labels = {}) {
    ClientMetric& metric = add(labels);
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        value;
    return *this;
  }
  void gauge(const char* name, const char* help, double value, const Labels& labels = {}) {
    open(name, MetricType::Gauge, help).sample(value, labels);
  }
  void counter(const char* name, const char* help, double value, const Labels& labels = {}) {
    open(name, MetricType::Counter, help).sample(value, labels);
  }
  void histogram(const char* name, const char* help, const Histogram& h) {
    open(name, MetricType::Histogram, help).sample(h);
  }
  Page& sample(const Histogram& h, const Labels& labels = {}) {
    ClientMetric::Histogram& to = add(labels).histogram;
    to.sample_count = h.count;
    to.sample_sum = h.sum;
    to.bucket.reserve(h.bounds.size() + 1);
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < h.bounds.size(); ++i)
      to.bucket.push_back({below += h.counts[i], h.bounds[i]});
    to.bucket.push_back({h.count, std::numeric_limits<double>::infinity()});
    return *this;
  }
  const std::vector<MetricFamily>& families() const { return families_; }

 private:
  ClientMetric& add(const Labels& labels) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = common_;
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    return metric;
  }
  Labels common_;
  std::vector<MetricFamily> families_;
};

double number(auto n) { return static_cast<double>(n); }

void add_requests(Page& page, const ServiceStats& s) {
  page.gauge("vllm:num_requests_running", "Requests that are read or answered now.",
             s.requests_running);
  page.gauge("vllm:num_requests_waiting", "Requests that wait to be admitted.", s.requests_waiting);
  page.open("vllm:num_requests_waiting_by_reason", MetricType::Gauge,
            "Waiting requests: for memory, or for a prefix that another request computes.")
      .sample(number(s.requests_waiting) - s.waiting_for_prefix, {{"reason", "capacity"}})
      .sample(s.waiting_for_prefix, {{"reason", "deferred"}});
  page.counter("vllm:num_preemptions_total", "Requests that lost their place for a while.",
               number(s.preemptions_recompute + s.preemptions_parked));
  const auto finished = [&](Finish f) { return number(s.finished[static_cast<std::size_t>(f)]); };
  page.open("vllm:request_success_total", MetricType::Counter, "Answers, by how they ended.")
      .sample(finished(Finish::end_token) + finished(Finish::stop_string) + finished(Finish::mask),
              {{"finished_reason", "stop"}})
      .sample(finished(Finish::length), {{"finished_reason", "length"}})
      .sample(finished(Finish::cancelled), {{"finished_reason", "abort"}});
  page.open("kv_requests_failed_total", MetricType::Counter, "Requests refused or broken off.");
  for (std::size_t i = 1; i < s.failed.size(); ++i)
    page.sample(number(s.failed[i]),
                {{"reason", std::string(failure_name(static_cast<FailureKind>(i)))}});
  page.gauge("vllm:lora_requests_info", "Adapters: none are served.",
             number(std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count()),
             {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}});
}

// What moves between memory and tiers. Without one, a disk's figures are all 0.
void add_tiers(Page& page, const std::vector<TierLinkStats>& tiers) {
  struct Named {
    TierLinkStats of;
    Labels tier, down, up;
    Labels miss(const char* cause) const {
      Labels labels = tier;
      labels.push_back({"cause", cause});
      return labels;
    }
  };
  std::vector<Named> all;
  const auto add = [&](const TierLinkStats& of, std::string name) {
    all.push_back(
        {of, {{"tier", name}}, {{"from", kTier}, {"to", name}}, {{"from", name}, {"to", kTier}}});
  };
  for (const TierLinkStats& t : tiers) add(t, std::string(t.name));
  if (tiers.empty()) {
    TierLinkStats none;
    none.tier.open = 0;
    add(none, "disk");
  }
  const auto family = [&](const char* name, MetricType type, const char* help,
                          const auto& samples) {
    page.open(name, type, help);
    for (const Named& t : all) samples(t);
  };
  family("kv_transfers_total", MetricType::Counter, "Blocks moved between tiers.",
         [&](const Named& t) {
           page.sample(number(t.of.down.blocks), t.down).sample(number(t.of.up.blocks), t.up);
         });
  family("kv_transfer_bytes_total", MetricType::Counter, "Bytes moved between tiers.",
         [&](const Named& t) {
           page.sample(number(t.of.down.bytes), t.down).sample(number(t.of.up.bytes), t.up);
         });
  family("kv_transfer_seconds", MetricType::Histogram, "Time of a batch of blocks.",
         [&](const Named& t) {
           page.sample(t.of.down.seconds, t.down).sample(t.of.up.seconds, t.up);
         });
  family("kv_transfer_queue_bytes", MetricType::Gauge, "Bytes that wait to be moved.",
         [&](const Named& t) {
           page.sample(number(t.of.write_queue_bytes), t.down)
               .sample(number(t.of.cost.queued_bytes), t.up);
         });
  family("kv_tier_open", MetricType::Gauge,
         "1: the tier works; 0: it closed itself, or there is none.",
         [&](const Named& t) { page.sample(t.of.tier.open != 0 ? 1 : 0, t.tier); });
  family("kv_tier_closings_total", MetricType::Counter, "How often it closed itself.",
         [&](const Named& t) { page.sample(number(t.of.tier.closings), t.tier); });
  family("kv_tier_misses_total", MetricType::Counter, "Blocks it could not give, by why.",
         [&](const Named& t) {
           page.sample(number(t.of.tier.absent), t.miss("absent"))
               .sample(number(t.of.tier.corrupt), t.miss("corrupt"))
               .sample(number(t.of.tier.failed), t.miss("failed"));
         });
  family("kv_tier_bytes", MetricType::Gauge, "Bytes it holds; of a shared one nobody knows.",
         [&](const Named& t) { page.sample(number(t.of.tier.stored_bytes), t.tier); });
}

void add_tokens(Page& page, const ServiceStats& s) {
  page.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.",
               number(s.prompt_tokens));
  page.counter("vllm:prompt_tokens_cached_total", "Prompt tokens served from the cache.",
               number(s.prompt_tokens_cached));
  page.open("vllm:prompt_tokens_cached_by_source_total", MetricType::Counter,
            "Prompt tokens served from the cache, by where they were.")
      .sample(number(s.prompt_tokens_cached - s.prompt_tokens_loaded), {{"source", "device"}})
      .sample(0, {{"source", "host"}})
      .sample(number(s.prompt_tokens_loaded - s.prompt_tokens_remote), {{"source", "disk"}})
      .sample(number(s.prompt_tokens_remote), {{"source", "remote"}})
      .sample(0, {{"source", "p2p"}});
  page.counter("vllm:generation_tokens_total", "Tokens made.", number(s.tokens_generated));
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.",
               number(s.prompt_tokens));
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found.",
               number(s.prompt_tokens_cached));
  page.counter("vllm:external_prefix_cache_queries_total", "Prompt tokens looked up elsewhere.",
               s.tiers.empty() ? 0 : number(s.prompt_tokens));
  page.counter("vllm:external_prefix_cache_hits_total", "Prompt tokens loaded from elsewhere.",
               number(s.prompt_tokens_loaded));
}

void add_latencies(Page& page, const ServiceStats& s) {
  const struct {
    const char *name, *help;
    const Histogram& values;
  } all[] = {
      {"vllm:time_to_first_token_seconds", "From submission to the first token.",
       s.first_token_seconds},
      {"vllm:inter_token_latency_seconds", "Between two tokens of one answer.",
       s.inter_token_seconds},
      {"vllm:request_time_per_output_token_seconds", "Mean time per token of one answer.",
       s.token_seconds},
      {"vllm:e2e_request_latency_seconds", "From submission to the last token.", s.request_seconds},
      {"vllm:request_queue_time_seconds", "From submission to admission.", s.queue_seconds},
      {"vllm:request_prefill_time_seconds", "From admission to the first token.",
       s.prefill_seconds},
      {"vllm:request_decode_time_seconds", "From the first token to the last.", s.decode_seconds},
      {"vllm:request_inference_time_seconds", "From admission to the last token.",
       s.inference_seconds},
      {"vllm:request_prompt_tokens", "Prompt tokens of a request.", s.request_prompt_tokens},
      {"vllm:request_generation_tokens", "Tokens made for a request.", s.request_generated_tokens},
      {"vllm:request_prefill_kv_computed_tokens", "Prompt tokens the cache did not have.",
       s.request_computed_tokens},
      {"vllm:request_params_n", "Choices asked for.", s.request_choices},
      {"vllm:request_params_max_tokens", "Most tokens asked for.", s.request_tokens_max},
      {"vllm:iteration_tokens_total", "Rows of one step.", s.rows_per_step},
      {"vllm:kv_block_lifetime_seconds", "From storing a block to evicting it.",
       s.block_times.lifetime},
      {"vllm:kv_block_idle_before_evict_seconds", "From a block's last use to evicting it.",
       s.block_times.idle_before_evict},
      {"vllm:kv_block_reuse_gap_seconds", "From one use of a block to the next hit.",
       s.block_times.reuse_gap},
      {"kv_lookup_seconds", "Finding a prompt's prefix in the index.", s.lookup_seconds},
  };
  for (const auto& h : all) page.histogram(h.name, h.help, h.values);
}

void add_cache(Page& page, const ServiceStats& s, const MetricsIdentity& identity) {
  const CacheStats& c = s.cache;
  const std::uint64_t total = c.budget_bytes / identity.block_bytes,
                      active = std::min(c.referenced_blocks, total),
                      kept = std::min(c.cached_blocks, total - active),
                      pinned = std::min(c.pinned_bytes / identity.block_bytes, kept);
  const std::string size = std::to_string(identity.block_size);
  page.gauge("vllm:kv_cache_usage_perc", "Share of the cache that running requests and pins hold.",
             s.kv_usage);
  page.gauge("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc under its older name.",
             s.kv_usage);
  page.gauge("vllm:cache_config_info", "The configuration of the cache, as labels.", 1,
             {{"block_size", size},
              {"num_gpu_blocks", std::to_string(total)},
              {"cache_dtype", identity.kv_format},
              {"enable_prefix_caching", identity.prefix_caching ? "True" : "False"}});
  page.open("kv_blocks", MetricType::Gauge, "Blocks by state.")
      .sample(number(total - active - kept), {{"tier", kTier}, {"state", "free"}})
      .sample(number(active), {{"tier", kTier}, {"state", "active"}})
      .sample(number(kept - pinned), {{"tier", kTier}, {"state", "cached"}})
      .sample(number(pinned), {{"tier", kTier}, {"state", "pinned"}});
  page.gauge("kv_bytes", "Bytes that hold keys and values.",
             number(c.referenced_bytes + c.cached_bytes),
             {{"tier", kTier}, {"format", identity.kv_format}});
  page.open("kv_quant_error", MetricType::Gauge,
            "Mean square lost in encoding keys and values, relative to their own; sampled.")
      .sample(s.key_error, {{"side", "keys"}})
      .sample(s.value_error, {{"side", "values"}});
  page.gauge("kv_capacity_bytes", "Bytes the cache may use.", number(c.budget_bytes),
             {{"tier", kTier}});
  page.gauge("kv_pins", "Leases and pins.", number(c.leases), {{"tier", kTier}});
  page.gauge("kv_lease_bytes", "Bytes that pins hold.", number(c.pinned_bytes), {{"tier", kTier}});
  page.gauge("kv_nodes", "Nodes of the prefix index.", number(c.nodes));
  page.gauge("kv_tail_waste_tokens", "Committed bytes without payload, in tokens.",
             number(c.waste_bytes) * identity.block_size / number(identity.block_bytes));
  const double stored = number(c.tokens_published);
  page.gauge("kv_dedup_ratio", "Tokens read or stored for each token stored.",
             stored > 0 ? (stored + number(c.tokens_hit)) / stored : 1);
  page.counter("kv_saved_prefill_tokens_total", "Prompt tokens that were not computed again.",
               number(s.prompt_tokens_cached));
  page.counter("kv_saved_prefill_seconds_total",
               "Time that computing cached prompt tokens would have taken (estimate).",
               s.saved_prefill_seconds);
  page.counter("kv_shared_in_flight_tokens_total",
               "Prompt tokens that were waited for while another request computed them.",
               number(s.prompt_tokens_waited));
  page.counter("kv_ghost_hits_total", "Prompt tokens that a larger cache would have served.",
               number(c.ghost_hits[2]));
  page.open("kv_ghost_size_multiplier_hits_total", MetricType::Counter,
            "Prompt tokens that a cache of 2, 4 and 8 times the size would have served.");
  for (std::size_t i = 0; i < c.ghost_hits.size(); ++i)
    page.sample(number(c.ghost_hits[i]), {{"x", std::to_string(2u << i)}});

  add_tiers(page, s.tiers);
  page.counter("kv_cold_bytes_total", "Bytes that steps read from tiers (kv.resident).",
               number(s.cold_bytes));
  page.counter("kv_cold_hidden_bytes_total",
               "Of these, those that came before they were waited for.",
               number(s.cold_hidden_bytes));
  page.counter("kv_cold_tokens_total", "Tokens computed beside cold blocks.",
               number(s.cold_tokens));
  page.counter("kv_cold_lost_blocks_total", "Cold blocks that a tier lost.", number(s.lost_blocks));

  page.open("kv_tenant_bytes", MetricType::Gauge, "Bytes of cached prefixes, by tenant.");
  for (std::size_t i = 0; i < s.tenants->size(); ++i)
    page.sample(number(s.tenant_bytes[i]), {{"tenant", (*s.tenants)[i]}, {"tier", kTier}});

  page.open("kv_evictions_total", MetricType::Counter, "Blocks that left memory, by cause.");
  for (std::size_t i = 0; i < kReasonCount; ++i)
    if (const Reason r = static_cast<Reason>(i); reason_kind(r) == ReasonKind::eviction)
      page.sample(
          number(c.evictions[i]),
          {{"tier", kTier},
           {"cause", std::string(reason_name(r).substr(std::string_view("evicted_").size()))}});
  page.open("kv_miss_total", MetricType::Counter, "Requests by why their next token missed.");
  for (std::size_t i = 0; i < kReasonCount; ++i)
    if (const Reason r = static_cast<Reason>(i); reason_kind(r) == ReasonKind::miss)
      page.sample(number(s.missed[i]), {{"reason", std::string(reason_name(r))}});
}

void add_drafts(Page& page, const ServiceStats& s) {
  const auto by_source = [&](const char* name, const char* help, auto count) {
    page.open(name, MetricType::Counter, help);
    for (std::size_t i = 0; i < draft_sources().size(); ++i)
      page.sample(number(count(s.drafts[i])), {{"source", std::string(draft_sources()[i].name)}});
  };
  by_source("vllm:spec_decode_num_drafts_total", "Drafts that steps checked.",
            [](const DraftTally& t) { return t.drafts; });
  by_source("vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts that steps checked.",
            [](const DraftTally& t) { return t.tokens; });
  by_source("vllm:spec_decode_num_accepted_tokens_total", "Tokens of drafts that were accepted.",
            [](const DraftTally& t) { return t.accepted; });
  page.open("vllm:spec_decode_num_accepted_tokens_per_pos_total", MetricType::Counter,
            "Tokens of drafts that came true, by their place in the draft.");
  for (std::size_t at = 0; at < DraftTally::kPositions; ++at) {
    std::uint64_t sum = 0;
    for (const DraftTally& t : s.drafts) sum += t.accepted_at[at];
    page.sample(number(sum), {{"position", std::to_string(at)}});
  }
}

void add_process(Page& page, const ServiceStats& s, const MetricsIdentity& identity) {
  page.open("engine_seconds_total", MetricType::Counter, "Where the engine thread's time went.")
      .sample(s.forward_seconds, {{"part", "forward"}})
      .sample(s.sample_seconds, {{"part", "sample"}})
      .sample(std::max(0.0, s.step_seconds - s.forward_seconds - s.sample_seconds),
              {{"part", "other"}})
      .sample(s.idle_seconds, {{"part", "idle"}});
  page.counter("engine_steps_total", "Forward passes.", number(s.steps));
  page.counter("engine_steps_ahead_total",
               "Forward passes that were submitted before the tokens of the last one were known.",
               number(s.steps_ahead));
  page.gauge("build_info", "What this program is.", 1, {{"version", identity.version}});
  long pages = 0;
  if (std::FILE* statm = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(statm, "%*d %ld", &pages) != 1) pages = 0;
    std::fclose(statm);
  }
  page.gauge("process_resident_memory_bytes", "Memory in use.",
             number(pages) * number(sysconf(_SC_PAGESIZE)));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  page.counter("process_cpu_seconds_total", "Processor time, user and system.",
               number(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   number(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
}

// OpenMetrics names a counter's family without the suffix that its samples carry, and says where
// the answer ends.
std::string as_open_metrics(const std::string& text) {
  std::string out;
  out.reserve(text.size() + 8);
  std::string_view rest = text;
  std::string_view counter;  // the family that the HELP line before named, if it is one
  std::string held;          // a HELP line waits for its TYPE line
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with("# HELP ")) {
      held = line;
      continue;
    }
    if (line.starts_with("# TYPE ")) {
      constexpr std::string_view kSuffix = "_total counter";
      const bool is_counter = line.ends_with(kSuffix);
      if (is_counter) {
        counter = line.substr(7, line.size() - 7 - kSuffix.size());
        if (const std::size_t at = held.find("_total ");
            at == std::string_view("# HELP ").size() + counter.size())
          held.erase(at, 6);
      }
      if (!held.empty()) out += held + '\n';
      held.clear();
      if (is_counter)
        out.append("# TYPE ").append(counter).append(" counter\n");
      else
        out.append(line) += '\n';
      continue;
    }
    out.append(line) += '\n';
  }
  return out + "# EOF\n";
}

}  // namespace

MetricsFormat metrics_format(std::string_view accept) {
  return accept.find("application/openmetrics-text") != std::string_view::npos
             ? MetricsFormat::open_metrics
             : MetricsFormat::prometheus;
}

std::string_view metrics_content_type(MetricsFormat format) {
  return format == MetricsFormat::open_metrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string render_metrics(const MetricsIdentity& identity, const ServiceStats& stats,
                           const ServerCounts& counts, MetricsFormat format) {
  Page page(identity);
  add_requests(page, stats);
  add_tokens(page, stats);
  add_latencies(page, stats);
  add_cache(page, stats, identity);
  add_drafts(page, stats);
  add_process(page, stats, identity);
  page.open("http_requests_total", MetricType::Counter, "HTTP answers by route and status.");
  for (const auto& [key, count] : counts.answers)
    page.sample(number(count), {{"route", key.first}, {"code", std::to_string(key.second)}});
  page.counter("kv_events_dropped_total", "Events that subscribers were too slow for.",
               number(counts.events_dropped));
  page.gauge("kv_sessions", "Named sessions.", number(counts.sessions));
  page.counter("trace_spans_total", "Spans that the trace collector took.",
               number(counts.spans_sent));
  page.counter("trace_spans_dropped_total", "Spans that could not be delivered.",
               number(counts.spans_dropped));
  const std::string text = prometheus::TextSerializer().Serialize(page.families());
  return format == MetricsFormat::open_metrics ? as_open_metrics(text) : text;
}

}  // namespace quire
