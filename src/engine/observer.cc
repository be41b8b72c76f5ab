#include "engine/observer.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/check.h"
#include "engine/lane_rows.h"
#include "engine/scoring.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

constexpr std::uint32_t kFirstMoment = 4;  // queries of the first tokens are unlike all others
constexpr std::uint32_t kAhead = 512;      // positions that expected queries are turned to
constexpr Signal kLastQueries = Signal::window_mass | Signal::below_counts;

}  // namespace

Observer::Observer(const Runtime& runtime, RootId root, Signal needs, std::uint32_t window,
                   std::uint32_t prompt_length)
    : needs_(needs),
      window_(asked(kLastQueries) ? window : 0),
      prompt_length_(prompt_length),
      query_heads_(runtime.config().query_heads),
      kv_heads_(runtime.config().kv_heads),
      head_dim_(runtime.config().head_dim) {
  const Geometry& geometry = runtime.cache().geometry(root);
  const auto g = std::ranges::find_if(geometry.groups, retains);
  if (g == geometry.groups.end()) return;
  layers_ = g->layers;
  const bool all = asked(Signal::total_mass);
  if (!all && window_ == 0 && !asked(Signal::query_moments)) return;
  tap_.emplace(runtime.config(), geometry, static_cast<std::uint32_t>(g - geometry.groups.begin()));
  const std::uint32_t per_block = geometry.tokens_per_block;
  if (all)
    tap_->watch(0, runtime.executor().traits().rows_max + std::max(window_, per_block) + per_block);
  else if (window_ > 0)
    tap_->watch(prompt_length - std::min(prompt_length, window_), window_ + 2 * per_block);
  if (asked(Signal::query_moments)) tap_->sum_moments(kFirstMoment, prompt_length);
}

Tap* Observer::before_step(std::uint32_t past, std::uint32_t rows) {
  if (!tap_) return nullptr;
  const std::uint32_t end = past + rows;
  if (tap_->count() > 0 && end > tap_->first() + tap_->count()) {
    const std::uint32_t last = end - std::min(end, std::max(window_, 1u));
    tap_->advance(
        std::max(tap_->first(), asked(Signal::total_mass) ? std::min(worked_, last) : last));
  }
  return &*tap_;
}

void Observer::after_step(Runtime& runtime, const Sequence& s) {
  const std::uint32_t per_block = runtime.geometry().tokens_per_block;
  work(runtime, s, s.length() / per_block * per_block);
}

void Observer::finish(Runtime& runtime, const Sequence& s) { work(runtime, s, s.length()); }

void Observer::work(Runtime& runtime, const Sequence& s, std::uint32_t end) {
  if (!asked(Signal::total_mass) || end <= worked_) return;
  const Nanoseconds began = SteadyClock().now();
  add_mass(runtime, s, *tap_, {.first = worked_, .rows = end - worked_}, mass_);
  worked_ = end;
  seconds_ += static_cast<double>(SteadyClock().now() - began) * 1e-9;
}

void Observer::add_mass(Runtime& runtime, const Sequence& s, Tap& tap, MassAsk ask,
                        ByQueryHead& to) const {
  const KvCache& cache = runtime.cache();
  const Geometry& geometry = cache.geometry(s.root());
  std::vector<KvSequenceView> views;
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) views.push_back(cache.view(s, g));
  const KvSequenceView& view = views[tap.group()];
  to.resize(layers_.size() * query_heads_);
  std::vector<float*> out;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t lane = i / query_heads_ * kv_heads_ + i % query_heads_ / group();
    to[i].resize((view.lanes ? view.lanes[lane].slots : 0) + s.length() - view.ragged_until);
    out.push_back(to[i].data());
  }
  runtime.executor().page_work()->add_mass(geometry, {cache.arena(), views}, tap, ask, out);
}

Result<std::vector<LaneScoring>> Observer::score(Runtime& runtime, const Sequence& s,
                                                 std::span<const RetainMethod> methods) {
  Scoring scoring(methods);
  double operations = std::numeric_limits<double>::infinity();
  for (bool done = false; !done;) {
    TRY(done, scoring.some(runtime, s, *this, operations));
  }
  return scoring.take();
}

double Observer::slot_operations(Signal needs) const {
  constexpr double kPlain = 16;  // of reading and scoring a slot, by dimension
  return head_dim_ *
         (kPlain + (asks(needs, Signal::query_moments) ? 2.0 * group() * head_dim_ : 0));
}

void Observer::sum_last_queries(Runtime& runtime, const Sequence& s,
                                std::span<const RetainMethod> methods) {
  Signal needs = Signal::none;
  for (const RetainMethod& m : methods) needs = needs | m.needs;
  if (asks(needs, kLastQueries)) {
    // Queries from before the last compaction saw tokens that are gone, so they do not count.
    const std::uint32_t seen =
        std::max(tap_->first(), runtime.cache().ragged_until(s, tap_->group()));
    const std::uint32_t rows = std::min(methods[0].window, s.length() - seen);
    const MassAsk ask{.first = s.length() - rows, .rows = rows};
    const auto gather_rule = [&](Signal signal, MassRule rule, float weight, ByQueryHead& to) {
      to.clear();
      MassAsk asking = ask;
      asking.rule = rule;
      asking.weight = weight;
      if (asks(needs, signal)) add_mass(runtime, s, *tap_, asking, to);
    };
    gather_rule(Signal::window_mass, MassRule::sum, 1.0f / static_cast<float>(rows), window_mass_);
    gather_rule(Signal::below_counts, MassRule::below, 1, below_);
  }
  if (asks(needs, Signal::query_moments) && moments_.empty()) {
    moments_.assign(layers_.size() * query_heads_, QueryMoments(head_dim_));
    for (std::uint32_t i = 0; i < moments_.size() && tap_->moment_count() > 0; ++i)
      moments_[i].add(tap_->moment_count(), tap_->sums(i / query_heads_, i % query_heads_),
                      tap_->products(i / query_heads_, i % query_heads_));
  }
}

void Observer::gather(const Runtime& runtime, const Sequence& s, Signal needs, std::uint32_t index,
                      std::uint32_t first_head, std::uint32_t heads, Gathered& to) const {
  const LaneParts parts{.keys = asks(needs, Signal::keys), .values = asks(needs, Signal::values)};
  to = {};
  for (std::uint32_t head = first_head; head < first_head + heads; ++head) {
    LaneRows rows = lane_rows(runtime, s, layers_[index], head, parts);
    const std::size_t slots = rows.tokens.size();
    for (std::uint32_t q = head * group(); q < (head + 1) * group(); ++q) {
      const auto take = [&](Signal signal, const ByQueryHead& from, std::vector<float>& into) {
        if (!asks(needs, signal) || from.empty()) return;
        const std::vector<float>& own = from[std::size_t{index} * query_heads_ + q];
        CHECK(own.size() <= slots);
        into.insert(into.end(), own.begin(), own.end());
        into.resize(into.size() + slots - own.size());
      };
      take(Signal::window_mass, window_mass_, to.window);
      take(Signal::below_counts, below_, to.below);
      take(Signal::total_mass, mass_, to.total);
      take(Signal::peak_mass, peak_, to.peak);
      if (asks(needs, Signal::query_moments)) gather_moments(runtime, index, q, to);
    }
    if (parts.keys) to.keys.insert(to.keys.end(), rows.keys.begin(), rows.keys.end());
    if (asks(needs, Signal::values))
      to.values.insert(to.values.end(), rows.values.begin(), rows.values.end());
    to.tokens = std::move(rows.tokens);
  }
  for (const std::uint32_t t : to.tokens) to.marks.push_back(t < marks_.size() ? marks_[t] : 0);
  to.in = {.layer = (index * kv_heads_ + first_head) / heads,
           .kv_heads = heads,
           .group = group(),
           .key_dim = head_dim_,
           .value_dim = head_dim_,
           .slots = static_cast<std::uint32_t>(to.tokens.size()),
           .seed = 1,
           .keys = to.keys,
           .values = to.values,
           .window_mass = to.window,
           .total_mass = to.total,
           .peak_mass = to.peak,
           .below_counts = to.below,
           .query_mean = to.mean,
           .query_covariance = to.covariance,
           .output_norms = {},
           .gates = {},
           .marks = to.marks};
}

void Observer::gather_moments(const Runtime& runtime, std::uint32_t index, std::uint32_t query_head,
                              Gathered& to) const {
  const std::size_t squared = std::size_t{head_dim_} * head_dim_;
  to.mean.resize(to.mean.size() + head_dim_);
  to.covariance.resize(to.covariance.size() + squared);
  const QueryMoments& moments = moments_[std::size_t{index} * query_heads_ + query_head];
  if (moments.count() == 0) return;
  if (to.cosines.empty()) {  // the same for all heads of a layer
    const std::span<const double> frequencies =
        runtime.executor().page_work()->rotation(layers_[index]);
    to.cosines.resize(frequencies.size());
    to.sines.resize(frequencies.size());
    mean_rotation(frequencies, prompt_length_, kAhead, to.cosines, to.sines);
    to.cosines.resize(head_dim_ / 2, 1.0);  // dimensions that are not rotated
    to.sines.resize(head_dim_ / 2, 0.0);
  }
  moments.turned(to.cosines, to.sines, std::span(to.mean).last(head_dim_),
                 std::span(to.covariance).last(squared));
}

std::vector<float> Observer::mass(std::uint32_t lane) const {
  if (mass_.empty()) return {};
  const std::uint32_t first = lane / kv_heads_ * query_heads_ + lane % kv_heads_ * group();
  std::vector<float> mean(mass_[first].size());
  for (std::uint32_t q = first; q < first + group(); ++q)
    for (std::size_t i = 0; i < mean.size(); ++i)
      mean[i] += mass_[q][i] / static_cast<float>(group());
  return mean;
}

void Observer::kept(const KeepSets& keep) {
  for (ByQueryHead* signal : {&mass_, &peak_})
    for (std::uint32_t i = 0; i < signal->size(); ++i) {
      std::vector<float>& of = (*signal)[i];
      std::size_t at = 0;
      for (const std::uint32_t slot :
           keep.lane(i / query_heads_ * kv_heads_ + i % query_heads_ / group()))
        if (slot < of.size()) of[at++] = of[slot];
      of.resize(at);
    }
}

std::vector<std::uint8_t> token_marks(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  std::vector<std::uint8_t> marks;
  for (const TokenId t : tokens) {
    const std::string text = tokenizer.decode({&t, 1}, {});
    const bool dots = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
      return std::ispunct(c) != 0 || std::isspace(c) != 0;
    });
    marks.push_back(tokenizer.is_special(t) ? kMarkSpecial : dots ? kMarkPunctuation : 0);
  }
  return marks;
}

}  // namespace quire
