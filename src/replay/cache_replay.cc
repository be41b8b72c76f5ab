#include "replay/cache_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "kv/cache.h"
#include "kv/evict/evict.h"
#include "replay/asks.h"

namespace quire {
namespace {

constexpr std::size_t kOpenMax = 4096;              // requests at once
constexpr std::uint64_t kOpenTokensMax = 1u << 28;  // of these
constexpr std::uint64_t kBlocksMax = 1u << 22;      // 4 million blocks of made-up pages

// One group with small pages.
Geometry small_geometry(std::uint32_t block_size) {
  Geometry g;
  g.tokens_per_block = block_size;
  g.groups.push_back({.layers = {0},
                      .kv_heads = 1,
                      .key_dim = 16,
                      .value_dim = 16,
                      .format = find_format("f16").value()});
  g.places.push_back({0, 0});
  return g;
}

class CacheReplayer {
 public:
  CacheReplayer(const CacheEvents& trace, std::uint64_t capacity, const std::string& evictor)
      : trace_(trace), p_(trace.cache.block_size), geometry_(small_geometry(p_)) {
    result_.capacity_blocks = capacity;
    result_.evictor = evictor;
    const std::uint64_t bytes = capacity * geometry_.block_bytes(geometry_.groups[0]);
    CacheOptions options;
    options.budget_bytes = bytes;
    options.tokens_per_block = p_;
    options.evictor = evictor;
    options.node_capacity =
        static_cast<std::uint32_t>(std::max<std::uint64_t>(capacity * 2, 65536));
    options.poison = false;
    auto memory = reserve_host_memory({.bytes = bytes + (1 << 20), .page_bytes = 4096});
    CHECK(memory.ok());
    cache_.emplace(options, std::move(memory.value()), clock_);
    std::uint64_t room = kTraceKeysMax;
    for (const CacheEvent& e : trace.events)
      if (e.kind == CacheEvent::Kind::store) {
        std::vector<std::uint64_t>& keys = stored_[e.request];
        if (keys.size() <= e.block && e.block - keys.size() < room) {
          room -= e.block + 1 - keys.size();
          keys.resize(e.block + 1);
        }
        if (e.block < keys.size()) keys[e.block] = e.key;
      }
  }

  CacheReplay run() {
    Nanoseconds start = trace_.events.empty() ? 0 : trace_.events.front().time;
    for (const CacheEvent& e : trace_.events) {
      if (e.time - start > clock_.now()) clock_.advance(e.time - start - clock_.now());
      switch (e.kind) {
        case CacheEvent::Kind::attach:
          attach(e);
          break;
        case CacheEvent::Kind::store:
          reach(e.request, (e.block + 1) * p_);
          break;
        case CacheEvent::Kind::preempt:
          if (const auto it = open_.find(e.request);
              it != open_.end() && it->second.sequence.is_open())
            it->second.sequence.close();
          break;
        case CacheEvent::Kind::end:
          end(e);
          break;
        default:
          break;
      }
    }
    open_.clear();
    result_.evictions = cache_->stats().evictions;
    estimate();
    return result_;
  }

 private:
  struct Open {
    Sequence sequence;
    std::vector<TokenId> tokens;  // all it will ever have
    std::uint32_t prompt = 0, hit = 0, recorded = 0;
  };

  // The prompt's blocks by their keys, then those that it stored; the rest is its own.
  std::vector<TokenId> tokens_of(const CacheEvent& e) const {
    Ask ask{.number = e.request,
            .prompt_tokens = std::max<std::uint32_t>(e.prompt_tokens, 1),
            .piece = p_,
            .keys = e.keys};
    if (const auto it = stored_.find(e.request);
        it != stored_.end() && it->second.size() > ask.keys.size())
      ask.keys.insert(ask.keys.end(),
                      it->second.begin() + static_cast<std::ptrdiff_t>(ask.keys.size()),
                      it->second.end());
    ask.keyed_tokens = static_cast<std::uint32_t>(ask.keys.size()) * p_;
    if (ask.keyed_tokens > ask.prompt_tokens)
      ask.answer_tokens = ask.keyed_tokens - ask.prompt_tokens;
    return made_up_tokens(ask);
  }

  void attach(const CacheEvent& e) {
    if (!open_.contains(e.request) &&
        (open_.size() >= kOpenMax || open_tokens_ + e.prompt_tokens > kOpenTokensMax))
      return;
    Open& o = open_[e.request];
    const bool again = !o.tokens.empty();
    if (!again) {
      o.tokens = tokens_of(e);
      open_tokens_ += o.tokens.size();
      o.prompt = e.prompt_tokens;
    }
    RootIdentity identity;
    identity.tokens_per_block = p_;
    identity.tenant = e.tenant;
    const auto root = cache_->root(identity, geometry_);
    if (!root.ok()) return;
    const KeyChange salt[] = {{.position = 0, .kind = ChangeKind::salt, .value = e.salt}};
    auto opened = cache_->open({.root = root.value(),
                                .token_capacity = static_cast<std::uint32_t>(o.tokens.size()) + p_,
                                .reuse = e.reuse,
                                .changes = e.salt.empty() ? std::span<const KeyChange>{}
                                                          : std::span<const KeyChange>(salt),
                                .request = e.request});
    if (!opened.ok()) return;
    o.sequence = std::move(opened.value());
    const Attached got =
        cache_->attach(o.sequence, std::span(o.tokens).first(std::max<std::size_t>(o.prompt, 1)));
    if (again) return;  // a preempted request counts once
    o.hit = got.tokens / p_ * p_;
    o.recorded = e.hit_tokens / p_ * p_;
    ++result_.requests;
    result_.prompt_tokens += e.prompt_tokens;
    result_.blocks += e.keys.size();
    result_.hit_blocks += o.hit / p_;
    result_.recorded_hit_blocks += o.recorded / p_;
    result_.recorded_hit_tokens += e.hit_tokens;
    result_.differing += o.hit != o.recorded;
  }

  // Computes tokens up to this length.
  void reach(std::uint64_t request, std::uint32_t length) {
    const auto it = open_.find(request);
    if (it == open_.end() || !it->second.sequence.is_open()) return;
    Open& o = it->second;
    length = std::min<std::uint32_t>(length, static_cast<std::uint32_t>(o.tokens.size()));
    if (length <= o.sequence.length()) return;
    const std::uint32_t count = length - o.sequence.length();
    const StepNeed need{&o.sequence, count};
    Result<Reservation> step = cache_->reserve({&need, 1});
    if (!step.ok()) {
      ++result_.no_room;
      return;
    }
    step.value().commit(0, std::span(o.tokens).subspan(o.sequence.length(), count));
  }

  void end(const CacheEvent& e) {
    const auto it = open_.find(e.request);
    if (it == open_.end()) return;
    if (e.reason == "finished") {
      reach(e.request, it->second.prompt);
      ends_.push_back({static_cast<double>(it->second.prompt), static_cast<double>(it->second.hit),
                       static_cast<double>(it->second.recorded), e.queue_s, e.first_token_s});
    }
    open_tokens_ -= it->second.tokens.size();
    open_.erase(it);
  }

  // What a prompt token costs: the median over requests that computed many.
  void estimate() {
    std::vector<double> costs;
    for (const Ended& e : ends_)
      if (e.prompt - e.recorded >= 32 && e.first_token_s > e.queue_s)
        costs.push_back((e.first_token_s - e.queue_s) / (e.prompt - e.recorded));
    if (ends_.empty()) return;
    if (!costs.empty()) {
      std::nth_element(costs.begin(), costs.begin() + static_cast<std::ptrdiff_t>(costs.size() / 2),
                       costs.end());
      result_.token_s = costs[costs.size() / 2];
    }
    for (const Ended& e : ends_) {
      result_.recorded_first_token_s += e.first_token_s;
      result_.first_token_s +=
          std::max(0.0, e.first_token_s + (e.recorded - e.hit) * result_.token_s);
    }
    result_.recorded_first_token_s /= static_cast<double>(ends_.size());
    result_.first_token_s /= static_cast<double>(ends_.size());
  }

  struct Ended {
    double prompt, hit, recorded, queue_s, first_token_s;
  };

  const CacheEvents& trace_;
  std::uint32_t p_;
  Geometry geometry_;
  ManualClock clock_;
  std::optional<KvCache> cache_;
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> stored_;  // keys, by request
  std::unordered_map<std::uint64_t, Open> open_;
  std::uint64_t open_tokens_ = 0;
  std::vector<Ended> ends_;
  CacheReplay result_;
};

}  // namespace

Result<CacheReplay> replay_cache(const CacheEvents& trace, const CacheReplayOptions& options) {
  const std::uint64_t capacity =
      options.capacity_blocks > 0 ? options.capacity_blocks : trace.cache.capacity_blocks;
  if (capacity == 0 || capacity > kBlocksMax)
    return Error{Code::invalid,
                 fmt::format("a replay holds 1 to {} blocks, not {}", kBlocksMax, capacity)};
  const std::string evictor = !options.evictor.empty() ? options.evictor
                              : !trace.cache.evictor.empty()
                                  ? trace.cache.evictor
                                  : std::string(evict_policies()[0]->name);
  TRY(const EvictPolicy* policy, find_evict_policy(evictor));
  if (trace.cache.block_size > 256 || trace.cache.block_size % 16 != 0)
    return Error{Code::invalid,
                 fmt::format("blocks of {} tokens cannot be replayed", trace.cache.block_size)};
  return CacheReplayer(trace, capacity, std::string(policy->name)).run();
}

}  // namespace quire
