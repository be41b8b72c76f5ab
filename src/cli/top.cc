// cli/top.cc - `quire top`: a running server in the terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>

#include "base/file.h"
#include "cli/command.h"
#include "net/http_client.h"

namespace quire::cli {
namespace {

struct TopOptions {
  std::string url, key_file;
  double interval = 2;
  std::uint32_t count = 0;
  bool json = false;
};

// The samples of a page in Prometheus' text format: the sum over all labels but those kept apart.
struct Samples {
  std::map<std::string, double, std::less<>> sums;
  std::map<std::string, double, std::less<>> tenants;  // kv_tenant_bytes by tenant
  double at(std::string_view name) const {
    const auto it = sums.find(name);
    return it == sums.end() ? 0 : it->second;
  }
};

Samples read_samples(std::string_view page) {
  Samples s;
  while (!page.empty()) {
    const std::string_view line = page.substr(0, page.find('\n'));
    page.remove_prefix(std::min(page.size(), line.size() + 1));
    const std::size_t name_end = line.find_first_of("{ "), value = line.rfind(' ');
    if (line.empty() || line[0] == '#' || name_end == std::string_view::npos) continue;
    const double number = std::strtod(std::string(line.substr(value + 1)).c_str(), nullptr);
    const std::string_view name = line.substr(0, name_end);
    s.sums[std::string(name)] += number;
    if (name != "kv_tenant_bytes") continue;
    constexpr std::string_view kLabel = "tenant=\"";
    const std::size_t at = line.find(kLabel);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = line.substr(at + kLabel.size());
    s.tenants[std::string(rest.substr(0, rest.find('"')))] += number;
  }
  return s;
}

// Names come from clients: control characters must not reach the terminal.
std::string printable(const std::string& name) {
  std::string out;
  for (const char c : name) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  return out.substr(0, 40);
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

Json top_json(const Samples& now, const Samples& before, double seconds) {
  const auto rate = [&](std::string_view name) {
    return seconds > 0 ? (now.at(name) - before.at(name)) / seconds : 0;
  };
  const auto mean_ms = [&](const std::string& name) {
    return 1e3 * ratio(now.at(name + "_sum") - before.at(name + "_sum"),
                       now.at(name + "_count") - before.at(name + "_count"));
  };
  Json tenants = Json::object();
  for (const auto& [name, bytes] : now.tenants) tenants[printable(name)] = bytes;
  return {{"running", now.at("vllm:num_requests_running")},
          {"waiting", now.at("vllm:num_requests_waiting")},
          {"cache_usage", now.at("vllm:kv_cache_usage_perc")},
          {"hit_rate", ratio(now.at("vllm:prefix_cache_hits_total"),
                             now.at("vllm:prefix_cache_queries_total"))},
          {"hit_rate_now",
           ratio(rate("vllm:prefix_cache_hits_total"), rate("vllm:prefix_cache_queries_total"))},
          {"below_hit_rate", ratio(now.at("vllm:external_prefix_cache_hits_total"),
                                   now.at("vllm:external_prefix_cache_queries_total"))},
          {"prompt_tokens_s", rate("vllm:prompt_tokens_total")},
          {"generated_tokens_s", rate("vllm:generation_tokens_total")},
          {"first_token_ms", mean_ms("vllm:time_to_first_token_seconds")},
          {"token_ms", mean_ms("vllm:inter_token_latency_seconds")},
          {"kv_bytes", now.at("kv_bytes")},
          {"kv_capacity_bytes", now.at("kv_capacity_bytes")},
          {"evictions_s", rate("kv_evictions_total")},
          {"preemptions", now.at("vllm:num_preemptions_total")},
          {"tenants", tenants}};
}

void print_top(const std::string& url, const Json& j, bool screen) {
  const auto n = [&](const char* name) { return j[name].get<double>(); };
  if (screen) fmt::print("\x1b[H\x1b[2J");
  fmt::print("{}\n\n", url);
  fmt::print("requests   {:>8.0f} running   {:>8.0f} waiting   {:>8.0f} preempted so far\n",
             n("running"), n("waiting"), n("preemptions"));
  fmt::print(
      "tokens     {:>8.0f}/s read    {:>8.0f}/s made    first after {:.0f} ms, then every {:.1f} "
      "ms\n",
      n("prompt_tokens_s"), n("generated_tokens_s"), n("first_token_ms"), n("token_ms"));
  fmt::print("hit rate   {:>8.3f} now       {:>8.3f} so far    {:>8.3f} below memory\n",
             n("hit_rate_now"), n("hit_rate"), n("below_hit_rate"));
  fmt::print("cache      {:>8.1f} MiB of {:.1f} MiB, {:.0f} % in use, {:.1f} evictions/s\n",
             n("kv_bytes") / 0x1p20, n("kv_capacity_bytes") / 0x1p20, n("cache_usage") * 100,
             n("evictions_s"));
  for (const auto& [name, bytes] : j["tenants"].items())
    fmt::print("  tenant {:<40}{:>10.1f} MiB\n", name.empty() ? "(no name)" : name,
               bytes.get<double>() / 0x1p20);
  std::fflush(stdout);
}

int run_top(const TopOptions& o) {
  std::string url = o.url;
  if (url.empty()) {
    const char* const named = std::getenv("QUIRE_URL");
    url = named ? named : "http://127.0.0.1:8080";
  }
  const auto endpoint = Endpoint::from_url(url);
  if (!endpoint.ok()) return fail(kUsage, endpoint.error().message);
  std::string headers;
  if (!o.key_file.empty()) {
    auto key = read_file(o.key_file);
    if (!key.ok()) return fail(key.error());
    const std::string word = key.value().substr(0, key.value().find_first_of(" \t\r\n"));
    headers = "Authorization: Bearer " + word + "\r\n";
  }
  const bool screen = isatty(STDOUT_FILENO) && !o.json;
  Samples before;
  auto last = std::chrono::steady_clock::now();
  for (std::uint32_t n = 0; o.count == 0 || n < o.count; ++n) {
    if (n > 0) std::this_thread::sleep_for(std::chrono::duration<double>(o.interval));
    const auto page = http_fetch(endpoint.value(), endpoint.value().base + "/metrics", "", headers);
    if (!page.ok())
      return fail(kUnreachable, url + ": " + page.error().message,
                  "is `quire serve` running there?");
    const auto at = std::chrono::steady_clock::now();
    const Samples now = read_samples(page.value());
    const Json j = top_json(now, n == 0 ? now : before,
                            n == 0 ? 0 : std::chrono::duration<double>(at - last).count());
    if (o.json)
      print_json(j);
    else
      print_top(url, j, screen);
    before = now;
    last = at;
  }
  return kOk;
}

std::function<int()> declare_top(CLI::App& app) {
  auto o = std::make_shared<TopOptions>();
  app.add_option("URL,--url", o->url, "the server ($QUIRE_URL, or http://127.0.0.1:8080)");
  app.add_option("--key-file", o->key_file, "a file whose first word is an API key");
  app.add_option("--interval", o->interval, "seconds between two looks (2)")
      ->check(CLI::Range(0.1, 3600.0));
  app.add_option("--count", o->count, "looks, then it ends (0: until Ctrl-C)");
  app.add_flag("--json", o->json, "a JSON object for each look");
  return [o] { return run_top(*o); };
}

}  // namespace

extern const Command kTop = {"top", "a running server in the terminal",
                             "examples:\n"
                             "  quire top\n"
                             "  quire top http://127.0.0.1:9000 --count 1 --json",
                             declare_top};

}  // namespace quire::cli
