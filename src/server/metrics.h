// server/metrics.h - what `GET /metrics` answers: the engine's counters under the names that
// dashboards, autoscalers and inference gateways already know (vLLM's), and the cache's own (kv_*).
//
// Filled from a snapshot, so a scrape takes no lock that the engine waits for.
//
//   const MetricsFormat format = metrics_format(request.header("accept"));
//   x->respond({.headers = {{"Content-Type", std::string(metrics_content_type(format))}},
//               .body = render_metrics(identity, service.snapshot(), counts, format)});
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "engine/service_stats.h"

namespace quire {

// What does not change while the server runs.
struct MetricsIdentity {
  std::string model_name, version, kv_format;
  std::uint32_t block_size = 32;
  std::uint64_t block_bytes = 1;  // of one block in all layers
  bool prefix_caching = true;
};

enum class MetricsFormat : std::uint8_t { prometheus, open_metrics };
// The one a scraper's Accept header asks for.
MetricsFormat metrics_format(std::string_view accept);
std::string_view metrics_content_type(MetricsFormat format);

// HTTP answers by (route, status). The route is the pattern, never the path as sent: clients must
// not be able to make new series.
using AnswerCounts = std::map<std::pair<std::string, int>, std::uint64_t>;

// What the server itself counts.
struct ServerCounts {
  AnswerCounts answers = {};
  std::uint64_t events_dropped = 0;                 // that subscribers were too slow for
  std::uint64_t spans_sent = 0, spans_dropped = 0;  // of traces
  std::uint64_t sessions = 0;                       // that have names
  std::uint64_t adapters = 0, adapters_max = 0;     // that are served, and that may be
  std::uint64_t adapter_bytes = 0;                  // of those in memory
};

std::string render_metrics(const MetricsIdentity& identity, const ServiceStats& stats,
                           const ServerCounts& counts,
                           MetricsFormat format = MetricsFormat::prometheus);

}  // namespace quire
