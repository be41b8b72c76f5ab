// lab/load/summary.h - the figures of a run: latencies with their tails, rates, what kept its promise.
//
// TTFT    from the request's first byte sent to the first text received
// TPOT    of one request: (last text - first text) / (output tokens - 1)
// ITL     between one chunk of text and the next, over all requests
// goodput requests a second that kept every limit of the Slo
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "lab/load/run.h"

namespace quire::load {

struct Distribution {
  std::size_t count = 0;
  double mean = 0, min = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Percentiles by linear interpolation between the two nearest values.
Distribution distribution(std::vector<double> values);

struct Slo {
  std::optional<double> ttft_s, tpot_s, total_s;  // what is not set is not asked
  bool any() const { return ttft_s || tpot_s || total_s; }
};
// "ttft=500ms,tpot=40ms,total=10s"
Result<Slo> parse_slo(const std::string& text);

struct Summary {
  std::size_t requests = 0, failed = 0;
  double seconds = 0, requests_per_s = 0, output_tokens_per_s = 0, prompt_tokens_per_s = 0;
  std::uint64_t prompt_tokens = 0, output_tokens = 0;
  std::optional<double> hit_rate;  // cached of prompt tokens, where the server tells
  Distribution ttft_s, ttft_first_s, ttft_later_s;  // of all turns, first turns, later turns
  Distribution tpot_s, itl_s, total_s;
  std::optional<double> goodput_per_s, kept_slo;  // kept_slo: share of all requests
  double late_s_max = 0, client_cpu_s = 0;
  std::vector<std::string> errors;  // each kind once, at most 5
};
Summary summarize(const Measured& run, const Slo& slo);

Json to_json(const Summary& summary);
std::string to_text(const Summary& summary);

}  // namespace quire::load
