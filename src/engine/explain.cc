#include "engine/explain.h"

#include "model/adapter/adapter.h"

namespace quire {
namespace {

constexpr std::size_t kEventsMax = 64;
constexpr std::uint64_t kFewRecords = 64;                     // compared while the engine waits
constexpr std::uint32_t kTokensBefore = 4, kTokensAfter = 8;  // shown around a divergence

std::uint32_t shared_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<std::uint32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::vector<TokenId> around(std::span<const TokenId> tokens, std::uint32_t at) {
  const std::size_t begin = at - std::min(at, kTokensBefore);
  const std::size_t end = std::min<std::size_t>(tokens.size(), at + kTokensAfter);
  return {tokens.begin() + static_cast<std::ptrdiff_t>(std::min(begin, end)),
          tokens.begin() + static_cast<std::ptrdiff_t>(end)};
}

std::string segment_at(std::span<const PromptSegment> segments, std::uint32_t token) {
  for (const PromptSegment& s : segments)
    if (s.begin <= token && token < s.end) return s.name;
  return {};
}

// All tokens of the segments that are called so.
std::vector<TokenId> tokens_of(const RequestRecord& r, std::string_view name) {
  std::vector<TokenId> out;
  for (const PromptSegment& s : r.segments) {
    const std::size_t end = std::min<std::size_t>(s.end, r.prompt.size());
    if (s.name.starts_with(name) && s.begin < end)
      out.insert(out.end(), r.prompt.begin() + s.begin,
                 r.prompt.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return out;
}

// Tokens at the edge of a segment may belong to the text beside it: a difference there says nothing.
bool part_differs(const RequestRecord& a, const RequestRecord& b, std::string_view name) {
  constexpr std::size_t kEdge = 2;
  const std::vector<TokenId> x = tokens_of(a, name), y = tokens_of(b, name);
  if (x.empty() != y.empty()) return true;
  const auto front = std::ranges::mismatch(x, y).in1 - x.begin();
  const auto back = std::mismatch(x.rbegin(), x.rend(), y.rbegin(), y.rend()).first - x.rbegin();
  return static_cast<std::size_t>(std::max(front, back)) + kEdge < std::max(x.size(), y.size());
}

// Reasons that mean: the block was cached once and is gone.
bool about_residency(Reason r) {
  return r == Reason::evicted || r == Reason::expired || r == Reason::cleared ||
         r == Reason::in_flight || r == Reason::window_dropped;
}

}  // namespace

std::string_view outcome_name(Outcome outcome) {
  constexpr std::string_view names[] = {"hit", "partial_hit", "miss", "disabled"};
  return names[static_cast<std::size_t>(outcome)];
}

RequestRecord make_record(const Request& r) {
  RequestRecord record;
  record.id = r.id;
  record.family = r.family;
  record.model = r.model;
  record.tenant = r.kv.tenant;
  record.salt = r.kv.salt;
  if (r.kv.adapters) record.adapter = r.kv.adapters->digest();
  if (r.kv.storage) record.format = r.kv.storage->name();
  record.prompt = r.prompt;
  record.prompt_tokens = static_cast<std::uint32_t>(r.prompt.size());
  record.segments = r.segments;
  record.reuse = r.kv.reuse;
  return record;
}

RequestLog::RequestLog(std::uint32_t records_max, std::uint64_t prompt_tokens_max)
    : records_max_(std::max(records_max, 1u)), prompt_tokens_max_(prompt_tokens_max) {}

void RequestLog::add(RequestRecord record) {
  const std::uint64_t at = next_++;
  held_ += weight(record);
  by_id_[record.id] = at;
  by_number_[record.number] = at;
  if (ring_.size() < records_max_) {
    ring_.push_back(std::move(record));
  } else {
    RequestRecord& old = ring_[at % records_max_];
    if (const auto it = by_id_.find(old.id); it != by_id_.end() && it->second == at - records_max_)
      by_id_.erase(it);
    by_number_.erase(old.number);
    held_ -= weight(old);
    old = std::move(record);
  }
  prompts_from_ = std::max(prompts_from_, first());
  for (; held_ > prompt_tokens_max_ && prompts_from_ < next_; ++prompts_from_) {
    RequestRecord& r = ring_[prompts_from_ % records_max_];
    held_ -= weight(r);
    r.prompt = {};
    r.segments = {};
    r.keys = {};
  }
}

// What a record holds of its prompt, in tokens' worth of memory.
std::uint64_t RequestLog::weight(const RequestRecord& r) {
  return r.prompt.size() + r.keys.size() * (sizeof(r.keys[0]) / sizeof(TokenId)) +
         r.segments.size() * (sizeof(PromptSegment) / sizeof(TokenId));
}

RequestRecord* RequestLog::find(std::uint64_t number) {
  const auto it = by_number_.find(number);
  return it == by_number_.end() ? nullptr : &ring_[it->second % records_max_];
}

const RequestRecord* RequestLog::find(std::string_view id) const {
  const auto it = by_id_.find(std::string(id));
  return it == by_id_.end() ? nullptr : &ring_[it->second % records_max_];
}

std::vector<const RequestRecord*> RequestLog::latest(std::size_t count) const {
  std::vector<const RequestRecord*> out;
  for (std::uint64_t n = next_; n > first() && out.size() < count; --n)
    out.push_back(&ring_[(n - 1) % records_max_]);
  return out;
}

const RequestRecord* RequestLog::most_similar(const RequestRecord& to, std::uint64_t before,
                                              std::uint64_t count) const {
  const RequestRecord* best = nullptr;
  std::pair<std::uint32_t, bool> best_shared{0, false};
  const std::uint64_t from = std::max(first(), before - std::min(before, count));
  for (std::uint64_t n = before; n > from; --n) {
    const RequestRecord& r = ring_[(n - 1) % records_max_];
    if (r.tenant != to.tenant || r.prompt.empty()) continue;
    const std::pair shared{shared_prefix(to.prompt, r.prompt),
                           !to.family.empty() && r.family == to.family};
    if (shared > best_shared) {
      best = &r;
      best_shared = shared;
    }
  }
  return best;
}

// Where two prompts part, and what would have served more. The texts of requests with another salt are
// not shown.
void RequestLog::compare(const RequestRecord& record, const RequestRecord& other,
                         Explanation& e) const {
  using Kind = Explanation::Alternative::Kind;
  e.compared_to = other.id;
  e.other_model = other.model != record.model;
  e.other_family = other.family != record.family;
  e.other_salt = other.salt != record.salt;
  e.other_adapter = other.adapter != record.adapter;
  if (record.prompt.empty() || other.prompt.empty()) return;
  const std::uint32_t prompt = record.prompt_tokens, cached = record.cached_tokens;
  const std::uint32_t shared = e.shared_prefix_tokens = shared_prefix(record.prompt, other.prompt);
  if (shared < other.prompt.size()) {
    e.changed_segment = segment_at(record.segments, shared);
    if (e.changed_segment.empty()) e.changed_segment = segment_at(other.segments, shared);
    e.other_tools = part_differs(record, other, "tools");
    e.other_system = part_differs(record, other, "system");
  }
  const std::uint32_t whole = shared / tokens_per_block * tokens_per_block;
  // The last token of a prompt is computed in any case.
  const bool more = std::min(shared, prompt - 1) / tokens_per_block > cached / tokens_per_block;
  e.reused_all = !more;
  if (more && e.other_salt && !about_residency(e.reason)) {
    e.reason = Reason::salt_mismatch;
    e.alternatives.push_back({Kind::same_salt, 0, whole});
  } else if (more && e.other_adapter && !about_residency(e.reason)) {
    e.reason = Reason::adapter_mismatch;
  } else if (more && other.format != record.format && !about_residency(e.reason)) {
    e.reason = Reason::format_mismatch;
    e.alternatives.push_back({Kind::same_format, 0, whole});
  } else if (shared < prompt && (e.reason == Reason::tokens_diverged ||
                                 (e.reason == Reason::never_seen && shared > 0))) {
    e.reason = Reason::tokens_diverged;
    e.at_token = std::max(shared, e.at_token);
    if (e.other_salt) return;
    e.was = around(other.prompt, shared);
    e.now = around(record.prompt, shared);
    // The text after the change did not change: it could come before it.
    const std::size_t room = std::min(record.prompt.size(), other.prompt.size()) - shared;
    std::size_t tail = 0;
    while (tail < room &&
           record.prompt[prompt - 1 - tail] == other.prompt[other.prompt.size() - 1 - tail])
      ++tail;
    const auto end = static_cast<std::uint32_t>(shared + tail);
    const std::uint32_t would = end / tokens_per_block * tokens_per_block;
    if (would > cached) e.alternatives.push_back({Kind::move_text, end, would});
  } else if (more && about_residency(e.reason) && e.reason != Reason::in_flight) {
    e.alternatives.push_back({Kind::pin, whole, whole});
  }
}

Explanation RequestLog::explain(const RequestRecord& record, std::uint64_t before,
                                std::uint64_t count, Ids compare_to) const {
  const std::uint32_t cached = record.cached_tokens, prompt = record.prompt_tokens;
  Explanation e;
  e.request_id = record.id;
  e.reason = record.reason;
  e.prompt_tokens = prompt;
  e.cached_tokens = cached;
  e.missed_tokens = prompt - cached;
  e.outcome = !record.reuse ? Outcome::disabled
              : cached > 0 && cached / tokens_per_block >= (prompt - 1) / tokens_per_block
                  ? Outcome::hit
              : cached > 0 ? Outcome::partial_hit
                           : Outcome::miss;
  e.at_token = std::min(cached, prompt - 1);
  const RequestRecord* other = nullptr;
  if (compare_to.empty()) {
    other = most_similar(record, before, count);
  } else {
    for (const std::string& id : compare_to)
      if (const RequestRecord* r = find(id); r && r->tenant == record.tenant && !other) other = r;
    e.compare_missing = other == nullptr;
  }
  if (other) compare(record, *other, e);
  e.block = e.at_token / tokens_per_block;
  e.segment = segment_at(record.segments, e.at_token);
  for (const PromptSegment& s : record.segments)
    e.segments.push_back({s.name, s.begin, s.end, std::clamp(cached, s.begin, s.end) - s.begin});
  e.prefill_ms = record.done.prefill_seconds * 1e3;
  std::uint32_t could = cached;
  for (const Explanation::Alternative& a : e.alternatives) could = std::max(could, a.would_cache);
  if (e.reason == Reason::in_flight)
    could = std::max(could, e.shared_prefix_tokens / tokens_per_block * tokens_per_block);
  e.avoidable_ms = (could - cached) * token_seconds * 1e3;
  return e;
}

void RequestLog::add_events(const RequestRecord& record, const Journal& journal,
                            Explanation& e) const {
  const std::uint64_t end =
      record.journal_end > 0 ? std::min(record.journal_end, journal.next()) : journal.next();
  std::vector<std::uint64_t> keys = record.keys;
  std::ranges::sort(keys);
  for (std::uint64_t n = journal.first(); n < end && e.events.size() < kEventsMax; ++n) {
    const JournalRecord& j = journal.at(n);
    const bool own = n >= record.journal_first && j.request == record.number;
    const bool lost = n < record.journal_first && reason_kind(j.reason) == ReasonKind::eviction &&
                      std::ranges::binary_search(keys, j.key);
    if (own || lost) e.events.push_back(j);
  }
}

std::optional<Explanation> RequestLog::explain(std::string_view id, const Journal& journal,
                                               Ids compare_to) const {
  const auto it = by_id_.find(std::string(id));
  if (it == by_id_.end()) return {};
  const RequestRecord& record = ring_[it->second % records_max_];
  Explanation e = explain(record, it->second, records_max_, compare_to);
  add_events(record, journal, e);
  return e;
}

Explanation RequestLog::explain(const Request& request, const Attached& attached,
                                Ids compare_to) const {
  RequestRecord record = make_record(request);
  record.cached_tokens = attached.tokens;
  record.reason = request.kv.reuse ? attached.reason : Reason::reuse_disabled;
  return explain(record, next_, records_max_, compare_to);
}

std::optional<Explanation> RequestLog::explain_now(std::uint64_t number, Ids compare_to) const {
  const auto it = by_number_.find(number);
  if (it == by_number_.end()) return {};
  return explain(ring_[it->second % records_max_], it->second, kFewRecords, compare_to);
}

}  // namespace quire
