#include "replay/asks.h"

#include <algorithm>
#include <unordered_map>

#include "base/random.h"

namespace quire {
namespace {

KvWrite write_of(const std::string& name) {
  return name == "none" ? KvWrite::none : name == "prompt" ? KvWrite::prompt : KvWrite::all;
}

void by_arrival(std::vector<Ask>& asks) {
  std::ranges::stable_sort(asks, {}, &Ask::arrival);
  if (asks.empty()) return;
  const Nanoseconds first = asks.front().arrival;
  for (Ask& a : asks) a.arrival -= first;
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// For traces that hold no costs: what a prompt's token and an answer's token took in the middle.
StepCosts guess_costs(std::span<const Ask> asks,
                      const std::unordered_map<std::size_t, double>& queued) {
  std::vector<double> prompt, answer;
  for (const auto& [i, queue_s] : queued) {
    const Ask& a = asks[i];
    const double computed = static_cast<double>(a.prompt_tokens) - a.recorded_hit_tokens;
    if (computed >= 32 && a.recorded_first_token_s > queue_s)
      prompt.push_back((a.recorded_first_token_s - queue_s) / computed);
    if (a.answer_tokens > 1 && a.recorded_decode_s > 0)
      answer.push_back(a.recorded_decode_s / (a.answer_tokens - 1));
  }
  return {.step = median_of(std::move(answer)), .prompt_token = median_of(std::move(prompt))};
}

Result<AskedTrace> asks_in(LineReader lines, bool own, std::uint64_t events_max = kTraceEventsMax) {
  if (own) {
    TRY(const CacheEvents events, read_cache_events(std::move(lines), events_max));
    return asks_of(events);
  }
  TRY(std::vector<TraceRequest> requests, read_mooncake(std::move(lines)));
  return asks_of(std::move(requests));
}

}  // namespace

std::uint64_t AskedTrace::prompt_tokens() const {
  std::uint64_t sum = 0;
  for (const Ask& a : asks) sum += a.prompt_tokens;
  return sum;
}

std::uint64_t AskedTrace::answer_tokens() const {
  std::uint64_t sum = 0;
  for (const Ask& a : asks) sum += a.answer_tokens;
  return sum;
}

// A request is attached once, and again after a preemption. Blocks that it stores behind its prompt
// have the keys by which later requests ask for them. One that failed was answered as far as it got.
AskedTrace asks_of(const CacheEvents& trace) {
  AskedTrace made{.asks = {}, .recorded = trace.cache, .costs = trace.costs, .whole = trace.whole};
  std::unordered_map<std::uint64_t, std::size_t> at;  // by request
  std::uint64_t room = kTraceKeysMax;
  std::unordered_map<std::size_t, double> queued;  // seconds, by ask
  for (const CacheEvent& e : trace.events) {
    if (e.kind == CacheEvent::Kind::attach) {
      if (!at.try_emplace(e.request, made.asks.size()).second) continue;
      made.asks.push_back({.number = e.request,
                           .arrival = e.arrived,
                           .prompt_tokens = std::max<std::uint32_t>(e.prompt_tokens, 1),
                           .piece = trace.cache.block_size,
                           .keys = e.keys,
                           .tenant = e.tenant,
                           .salt = e.salt,
                           .reuse = e.reuse,
                           .write = write_of(e.write),
                           .priority = e.priority,
                           .ttl = static_cast<Nanoseconds>(e.ttl_s * 1e9),
                           .recorded_hit_tokens = e.hit_tokens});
      continue;
    }
    const auto known = at.find(e.request);
    if (known == at.end()) continue;
    Ask& ask = made.asks[known->second];
    if (e.kind == CacheEvent::Kind::store && e.block >= ask.keys.size() &&
        e.block - ask.keys.size() < room) {
      room -= e.block + 1 - ask.keys.size();
      ask.keys.resize(e.block + 1);
      ask.keys[e.block] = e.key;
    }
    if (e.kind == CacheEvent::Kind::end) {
      ask.answer_tokens = e.generated_tokens / std::max<std::uint32_t>(e.choices, 1);
      ask.recorded_first_token_s = e.first_token_s;
      ask.recorded_decode_s = e.decode_s;
      queued[known->second] = e.queue_s;
    }
  }
  if (!made.costs.known()) made.costs = guess_costs(made.asks, queued);
  for (Ask& a : made.asks) a.keyed_tokens = static_cast<std::uint32_t>(a.keys.size()) * a.piece;
  by_arrival(made.asks);
  return made;
}

AskedTrace asks_of(std::vector<TraceRequest> trace) {
  AskedTrace made;
  for (TraceRequest& r : trace) {
    const auto all = std::uint64_t{kMooncakeBlockTokens} * r.chain.ids.size();
    Ask& ask = made.asks.emplace_back(Ask{
        .number = made.asks.size() + 1,
        .arrival = r.arrival,
        .prompt_tokens = std::max<std::uint32_t>(r.input_tokens, 1),
        .answer_tokens = r.output_tokens,
        .piece = kMooncakeBlockTokens,
        .keyed_tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(all, r.input_tokens)),
        .keys = std::move(r.chain.ids)});
    for (std::uint64_t& key : ask.keys) key = mix64(key + 1) | 1;  // 0 would be its own text
  }
  by_arrival(made.asks);
  return made;
}

Result<AskedTrace> read_asks(const std::string& path) {
  bool own = false;
  {
    TRY(LineReader lines, LineReader::open(path));
    TRY(const std::optional<std::string_view> first, lines.next());
    own = first && first->find("\"quire_trace\"") != std::string_view::npos;
  }
  TRY(LineReader lines, LineReader::open(path));
  return asks_in(std::move(lines), own);
}

Result<AskedTrace> parse_asks(std::string text, const std::string& name, std::uint64_t events_max) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const bool own =
      std::string_view(text).substr(0, end).find("\"quire_trace\"") != std::string_view::npos;
  return asks_in(LineReader::over(std::move(text), name), own, events_max);
}

std::vector<TokenId> made_up_tokens(const Ask& ask, std::uint32_t limit, std::uint32_t vocabulary) {
  const auto length = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::uint64_t{ask.prompt_tokens} + ask.answer_tokens, limit));
  std::vector<TokenId> tokens(length);
  for (std::uint32_t i = 0; i < length; ++i) {
    const std::uint32_t piece = i / ask.piece;
    const std::uint64_t key = i < ask.keyed_tokens && piece < ask.keys.size() ? ask.keys[piece] : 0;
    const std::uint64_t seed =
        key != 0 ? mix64(key ^ mix64(i % ask.piece + 1)) : mix64(mix64(~ask.number) + i);
    tokens[i] = static_cast<TokenId>((seed >> 32) * vocabulary >> 32);
  }
  return tokens;
}

}  // namespace quire
