// server/metrics.h - what `GET /metrics` answers: the engine's counters under the names that
// dashboards, autoscalers and inference gateways already know (vLLM's), and the cache's own (kv_*).
//
// Filled from a snapshot, so a scrape takes no lock that the engine waits for.
//
//   Metrics metrics({.model_name = "m", .block_size = 32, ...});
//   metrics.count_request("/v1/chat/completions", 200);          // any thread, once a request
//   std::string text = metrics.render(service.snapshot());       // prometheus_content_type()
#pragma once

#include <memory>
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

class Metrics {
 public:
  explicit Metrics(MetricsIdentity identity);
  ~Metrics();

  // `route` is the pattern, never the path as sent: clients must not be able to make new series.
  void count_request(std::string_view route, int status);

  std::string render(const ServiceStats& stats,
                     MetricsFormat format = MetricsFormat::prometheus) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
