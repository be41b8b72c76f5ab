#include "sim/asks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/plan.h"
#include "sim/toy_engine.h"

namespace quire {
namespace {

constexpr std::uint32_t kTextMax = 150;

template <class T, std::size_t n>
const T& one_of(Random& random, const T (&list)[n]) {
  return list[random.below(n)];
}

// Lets through what a hash of its own answer so far says, and ends some answers early.
class ToyMask final : public TokenMask {
 public:
  explicit ToyMask(std::uint64_t seed) : state_(seed) {}
  bool fill(std::span<std::uint32_t> bits) override {
    if (state_ % 4 == 0) return false;
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = static_cast<std::uint32_t>(mix64(state_ + i)) | 1u;
    return true;
  }
  bool accept(TokenId token) override {
    state_ = mix64(state_ ^ token);
    return state_ % 16 != 1;
  }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<ToyMask>(*this); }

 private:
  std::uint64_t state_;
};

}  // namespace

Asks::Asks(std::uint64_t seed, const Runtime& runtime)
    : seed_(seed),
      random_(mix64(seed ^ 0x61736b73)),
      pins_(random_.chance(0.3)),
      tiers_(runtime.tiers() != nullptr),
      block_bytes_(sequence_bytes(runtime.geometry(), kToyBlock)) {
  const double theme = random_.unit();
  theme_ = theme < 0.15   ? Theme::greedy
           : theme < 0.25 ? Theme::reading
           : theme < 0.4  ? Theme::cuts
                          : Theme::mixed;
  const bool cuts = theme_ == Theme::cuts;
  for (int i = 0; i < (cuts ? 1 : 3); ++i) {
    std::vector<TokenId>& text = texts_.emplace_back();
    while (text.size() < kTextMax) text.push_back(static_cast<TokenId>('a' + random_.below(26)));
  }
  tenants_ = {"", cuts ? "" : "red", ""};
  salts_ = {"", cuts ? "" : "salt", "", ""};
  if (theme_ == Theme::mixed) policies_.resize(2);  // plain
  for (int i = 0; i < (theme_ == Theme::greedy || cuts ? 2 : 5); ++i)
    policies_.push_back(draw_policy(runtime));
}

std::shared_ptr<const StoragePolicy> Asks::draw_storage() {
  constexpr std::string_view kFormats[] = {"f16",    "bf16",          "int8",
                                           "kivi-2", "hadamard-int4", "int8/hadamard-int4",
                                           "int8",   "hadamard-int4", "f16"};
  StoragePolicy p = find_format(one_of(random_, kFormats)).value();
  if (p.lossy() && random_.chance(0.4)) p.recent_exact = one_of(random_, {16u, 32u, 40u});
  if (p.lossy() && random_.chance(0.3)) p.sinks = one_of(random_, {4u, 16u});
  if (random_.chance(0.15)) p.window = one_of(random_, {24u, 32u, 60u});
  if (p.lossy() && random_.chance(0.15)) p.skip_layers = {0};
  if (random_.chance(0.15))
    p.prefill = parse_select_policy(random_.chance(0.5) ? "xattention:0.6" : "vertical-slash:20+24")
                    .value()
                    .prefill;
  return std::make_shared<const StoragePolicy>(p);
}

std::string Asks::draw_retain() {
  const std::span<const RetainMethod* const> methods = retain_methods();
  std::string text(methods[random_.below(methods.size())]->name);
  if (theme_ == Theme::reading) text = random_.chance(0.5) ? "kvzip" : "kvzip-uniform";
  if (random_.chance(0.2)) text = "ada-" + text;
  if (random_.chance(0.15)) text = "critical-" + text;
  const bool cuts = theme_ == Theme::cuts;
  text += random_.chance(0.5) ? fmt::format(":{}%", 20 + random_.below(50))
                              : fmt::format(":{}", 16 + random_.below(cuts ? 8 : 40));
  if (random_.chance(0.2)) text += fmt::format(",sink={}", random_.below(5));
  if (random_.chance(0.3)) text += fmt::format(",every={}", one_of(random_, {0, 1, 16, 24, 32}));
  if (cuts)
    text += fmt::format(",cut={}", one_of(random_, {64, 80, 100}));
  else if (random_.chance(0.5))
    text += fmt::format(",cut={}", one_of(random_, {20, 32, 48, 64, 100}));
  if (random_.chance(0.15))
    text += fmt::format(",merge={}", one_of(random_, {"value", "d2o", "cam"}));
  return text;
}

// Combinations that are refused are drawn again.
Asks::Policy Asks::draw_policy(const Runtime& runtime) {
  for (;;) {
    Policy p;
    if (random_.chance(0.5)) p.storage = draw_storage();
    if (p.storage && !runtime.check_storage(*p.storage).ok()) continue;
    const double kind = theme_ == Theme::greedy ? 1 : theme_ != Theme::mixed ? 0 : random_.unit();
    if (kind < 0.6) {
      auto policy = parse_retain_policy(draw_retain());
      if (!policy.ok() || !runtime.check_retain(policy.value(), p.storage.get()).ok()) continue;
      p.retain = std::make_shared<const RetainPolicy>(std::move(policy.value()));
    } else if (kind < 0.7) {
      const auto policy =
          parse_select_policy(random_.chance(0.5) ? "quest:40" : "quest:30%").value();
      if (!runtime.check_select(policy, p.storage.get()).ok()) continue;
      p.select = std::make_shared<const SelectPolicy>(policy);
    } else if (kind < 0.76) {
      p.blend = one_of(random_, {0.0, 0.2, 1.0});
    } else if (kind < 0.82) {
      p.convert = true;
    }
    return p;
  }
}

std::vector<TokenId> Asks::draw_prompt(Random& random) const {
  const std::vector<TokenId>& text = texts_[random.below(texts_.size())];
  const std::size_t length =
      random.chance(0.4) ? one_of(random, {32u, 64u, 96u, 128u}) : 1 + random.below(kTextMax);
  std::vector<TokenId> prompt(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
  if (random.chance(0.15)) {  // a text behind another prefix
    const std::vector<TokenId>& other = texts_[random.below(texts_.size())];
    prompt.resize(std::min<std::size_t>(prompt.size(), 20));
    prompt.insert(prompt.end(), other.begin(), other.begin() + 70);
  }
  for (std::size_t own = random.chance(theme_ == Theme::cuts ? 0.1 : 0.6) ? random.below(8) : 0;
       own > 0; --own)
    prompt.push_back(static_cast<TokenId>('a' + random.below(26)));
  return prompt;
}

void Asks::draw_sampling(Random& random, Request& r) {
  SamplingOptions& s = r.sampling;
  s.seed = random.below(4);
  if (random.chance(0.2)) s.logprobs = 1 + static_cast<std::uint32_t>(random.below(4));
  if (r.beams > 0) return;
  if (random.chance(0.4)) {
    s.temperature = 0.5f + static_cast<float>(random.unit());
    if (random.chance(0.3)) s.top_k = 5;
    if (random.chance(0.3)) s.top_p = 0.8f;
    if (random.chance(0.2)) s.min_p = 0.05f;
    if (random.chance(0.1)) s.typical_p = 0.7f;
  }
  if (random.chance(0.15)) s.repetition_penalty = 1.3f;
  if (random.chance(0.1)) s.presence_penalty = 0.5f;
  if (random.chance(0.1)) s.logit_bias = {{'e', 2.0f}, {'x', -3.0f}};
  if (random.chance(0.08)) r.mask = std::make_unique<ToyMask>(random.next());
}

// How many, and how they are drawn.
void Asks::draw_answers(Random& random, Request& r) const {
  if (random.chance(theme_ == Theme::reading ? 0.6 : 0.2))
    r.choices = 2 + static_cast<std::uint32_t>(random.below(2));
  if (theme_ == Theme::greedy) return;
  if (!r.kv.retain && !r.kv.select && random.chance(0.12)) {
    r.beams = 2 + static_cast<std::uint32_t>(random.below(2));
    r.choices = 1 + static_cast<std::uint32_t>(random.below(r.beams));
    r.tokens_max = std::min(r.tokens_max, 20u);
  }
  if (r.kv.retain && r.kv.retain->endless() && random.chance(0.2)) r.tokens_max += 200;
  draw_sampling(random, r);
  if (random.chance(0.1)) r.tokens_min = std::min(r.tokens_max, 4u);
  if (random.chance(0.1) && !r.kv.blend)
    r.prompt_logprobs = static_cast<std::int32_t>(random.below(3));
  if (r.prompt_logprobs >= 0 && random.chance(0.5))
    r.prompt_logprobs_from = 1 + static_cast<std::uint32_t>(random.below(r.prompt.size()));
}

// An embedding instead of an answer.
void Asks::draw_pooling(Random& random, Request& r) const {
  constexpr Pooling kWays[] = {Pooling::last, Pooling::mean, Pooling::cls};
  if (r.tokens_max > 0 || r.kv.retain || r.kv.select || r.kv.blend || r.kv.convert ||
      random.chance(0.3))
    return;
  r.pooling = kWays[random.below(3)];
  r.choices = 1;
  r.beams = 0;
}

// Larger than what it may hold: most of it is stored. Others are left as they are.
void Asks::draw_resident(Random& random, Request& r) const {
  const KvPolicy& kv = r.kv;
  const bool plain = !kv.retain && !kv.select && !kv.blend && !kv.convert && r.choices == 1 &&
                     r.beams == 0 && r.pooling == Pooling::none;
  if (!tiers_ || !plain || kv.write != KvWrite::all || !kv.disk || !random.chance(0.4)) return;
  r.kv.resident = block_bytes_ * (5 + random.below(6));
  if (kv.storage && kv.storage->lossy()) r.kv.resident /= 2;
}

Request Asks::make(std::uint64_t ask) const {
  Random random(mix64(seed_ ^ mix64(ask)));
  const Policy& policy = policies_[random.below(policies_.size())];
  Request r;
  r.prompt = draw_prompt(random);
  r.tokens_max = random.chance(0.08) ? 0 : 1 + static_cast<std::uint32_t>(random.below(40));
  if (random.chance(0.15)) r.tokens_max += 60;
  r.cut_tokens_max = random.chance(0.3);
  r.ignore_end = random.chance(0.5);
  r.kv.storage = policy.storage;
  r.kv.retain = policy.retain;
  r.kv.select = policy.select;
  r.kv.blend = policy.blend;
  r.kv.convert = policy.convert;
  draw_answers(random, r);
  draw_pooling(random, r);
  if (random.chance(0.1)) r.stop_tokens = {'q', 'z'};
  if (random.chance(0.15)) r.chunk = 1 + static_cast<std::uint32_t>(random.below(40));
  if (random.chance(0.2)) r.priority = static_cast<std::int32_t>(random.below(201)) - 100;
  if (random.chance(0.05)) r.deadline = 1'000'000 * static_cast<Nanoseconds>(5 + random.below(200));
  r.kv.tenant = tenants_[random.below(tenants_.size())];
  r.kv.salt = salts_[random.below(salts_.size())];
  r.kv.reuse = !random.chance(0.1);
  r.kv.write = random.chance(0.1)   ? KvWrite::none
               : random.chance(0.1) ? KvWrite::prompt
                                    : KvWrite::all;
  r.kv.priority = static_cast<std::uint8_t>(random.below(101));
  if (random.chance(0.1)) r.kv.ttl = 1'000'000 * static_cast<Nanoseconds>(1 + random.below(100));
  if (random.chance(0.1)) r.kv.disk = r.kv.remote = false;
  if (pins_ && random.chance(0.3))
    r.kv.leases.push_back({.ttl = random.chance(0.5) ? 50'000'000 : 0,
                           .pin = random.chance(0.7),
                           .breakpoint = random.chance(0.5)});
  draw_resident(random, r);
  return r;
}

}  // namespace quire
