#include "lab/load/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace quire::load {
namespace {

double percentile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const std::size_t below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double tpot(const Record& r) {
  return (r.last_s - r.first_s) / static_cast<double>(r.usage.output - 1);
}

bool kept(const Record& r, const Slo& slo) {
  if (!r.error.empty()) return false;
  if (slo.ttft_s && r.first_s - r.sent_s > *slo.ttft_s) return false;
  if (slo.tpot_s && r.usage.output > 1 && tpot(r) > *slo.tpot_s) return false;
  return !slo.total_s || r.end_s - r.sent_s <= *slo.total_s;
}

Json to_json(const Distribution& d) {
  if (d.count == 0) return nullptr;
  return {{"count", d.count},   {"mean", d.mean * 1e3}, {"min", d.min * 1e3}, {"p50", d.p50 * 1e3},
          {"p90", d.p90 * 1e3}, {"p95", d.p95 * 1e3},   {"p99", d.p99 * 1e3}, {"max", d.max * 1e3}};
}

Json to_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

Distribution distribution(std::vector<double> values) {
  Distribution d;
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  d.count = values.size();
  d.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(d.count);
  d.min = values.front();
  d.p50 = percentile(values, 0.50);
  d.p90 = percentile(values, 0.90);
  d.p95 = percentile(values, 0.95);
  d.p99 = percentile(values, 0.99);
  d.max = values.back();
  return d;
}

Result<Slo> parse_slo(const std::string& text) {
  Slo slo;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const auto bad = [&] {
      return Error{
          Code::invalid,
          fmt::format("'{}' is not a limit; write for example ttft=500ms,tpot=40ms,total=10s",
                      item)};
    };
    const std::size_t equal = item.find('=');
    if (equal == std::string_view::npos) return bad();
    const std::string_view name = item.substr(0, equal), value = item.substr(equal + 1);
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const std::string_view unit = value.substr(static_cast<std::size_t>(end - value.data()));
    if (error != std::errc{} || !(number > 0) || (unit != "ms" && unit != "s")) return bad();
    const double seconds = unit == "ms" ? number / 1e3 : number;
    if (name == "ttft")
      slo.ttft_s = seconds;
    else if (name == "tpot")
      slo.tpot_s = seconds;
    else if (name == "total")
      slo.total_s = seconds;
    else
      return bad();
  }
  return slo;
}

Summary summarize(const Measured& run, const Slo& slo) {
  Summary s;
  s.requests = run.requests.size();
  s.seconds = run.seconds;
  s.client_cpu_s = run.client_cpu_s;
  std::vector<double> ttft, ttft_first, ttft_later, tpots, itl, total;
  std::uint64_t cached = 0, prompts_that_tell = 0;
  std::size_t good = 0;
  for (const Record& r : run.requests) {
    s.late_s_max = std::max(s.late_s_max, r.late_s);
    good += kept(r, slo);
    if (!r.error.empty()) {
      ++s.failed;
      if (s.errors.size() < 5 &&
          std::find(s.errors.begin(), s.errors.end(), r.error) == s.errors.end())
        s.errors.push_back(r.error);
      continue;
    }
    const double first = r.first_s - r.sent_s;
    ttft.push_back(first);
    (r.turn == 0 ? ttft_first : ttft_later).push_back(first);
    total.push_back(r.end_s - r.sent_s);
    if (r.usage.output > 1) tpots.push_back(tpot(r));
    itl.insert(itl.end(), r.gaps_s.begin(), r.gaps_s.end());
    s.prompt_tokens += r.usage.prompt;
    s.output_tokens += r.usage.output;
    if (r.usage.cached) {
      cached += *r.usage.cached;
      prompts_that_tell += r.usage.prompt;
    }
  }
  if (prompts_that_tell > 0)
    s.hit_rate = static_cast<double>(cached) / static_cast<double>(prompts_that_tell);
  if (run.seconds > 0) {
    const auto rate = [&](auto n) { return static_cast<double>(n) / run.seconds; };
    s.requests_per_s = rate(s.requests - s.failed);
    s.output_tokens_per_s = rate(s.output_tokens);
    s.prompt_tokens_per_s = rate(s.prompt_tokens);
    if (slo.any()) s.goodput_per_s = rate(good);
  }
  if (slo.any() && s.requests > 0)
    s.kept_slo = static_cast<double>(good) / static_cast<double>(s.requests);
  s.ttft_s = distribution(std::move(ttft));
  s.ttft_first_s = distribution(std::move(ttft_first));
  s.ttft_later_s = distribution(std::move(ttft_later));
  s.tpot_s = distribution(std::move(tpots));
  s.itl_s = distribution(std::move(itl));
  s.total_s = distribution(std::move(total));
  return s;
}

Json to_json(const Summary& s) {
  return {{"requests", s.requests},
          {"failed", s.failed},
          {"seconds", s.seconds},
          {"requests_per_second", s.requests_per_s},
          {"output_tokens_per_second", s.output_tokens_per_s},
          {"prompt_tokens_per_second", s.prompt_tokens_per_s},
          {"prompt_tokens", s.prompt_tokens},
          {"output_tokens", s.output_tokens},
          {"hit_rate", to_json(s.hit_rate)},
          {"ttft_ms", to_json(s.ttft_s)},
          {"ttft_first_turn_ms", to_json(s.ttft_first_s)},
          {"ttft_later_turns_ms", to_json(s.ttft_later_s)},
          {"tpot_ms", to_json(s.tpot_s)},
          {"itl_ms", to_json(s.itl_s)},
          {"total_ms", to_json(s.total_s)},
          {"goodput_requests_per_second", to_json(s.goodput_per_s)},
          {"kept_slo", to_json(s.kept_slo)},
          {"client_cpu_seconds", s.client_cpu_s},
          {"sent_late_ms_max", s.late_s_max * 1e3},
          {"errors", s.errors}};
}

std::string to_text(const Summary& s) {
  std::string text = fmt::format(
      "{} requests in {:.1f} s{}: {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} prompt "
      "tokens/s\n",
      s.requests, s.seconds, s.failed ? fmt::format(" ({} failed)", s.failed) : "",
      s.requests_per_s, s.output_tokens_per_s, s.prompt_tokens_per_s);
  if (s.hit_rate)
    text +=
        fmt::format("hit rate {:.1f} % of {} prompt tokens\n", 100 * *s.hit_rate, s.prompt_tokens);
  if (s.kept_slo)
    text += fmt::format("goodput {:.2f} requests/s ({:.1f} % kept the limits)\n",
                        s.goodput_per_s.value_or(0), 100 * *s.kept_slo);
  text += fmt::format("{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "p50", "p95", "p99",
                      "max");
  const auto row = [&](const char* name, const Distribution& d) {
    if (d.count > 0)
      text += fmt::format("{:<18}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name,
                          d.mean * 1e3, d.p50 * 1e3, d.p95 * 1e3, d.p99 * 1e3, d.max * 1e3);
  };
  row("TTFT", s.ttft_s);
  if (s.ttft_later_s.count > 0) {
    row("  first turns", s.ttft_first_s);
    row("  later turns", s.ttft_later_s);
  }
  row("TPOT", s.tpot_s);
  row("ITL", s.itl_s);
  row("whole answer", s.total_s);
  for (const std::string& e : s.errors) text += "failed: " + e + "\n";
  return text;
}

}  // namespace quire::load
