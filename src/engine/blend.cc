#include "engine/blend.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/lane_rows.h"
#include "engine/stepper.h"

namespace quire {
namespace {

constexpr std::uint32_t kCheckLayer = 1;  // whose values say what differs

std::uint32_t check_layer(const Runtime& r) { return std::min(kCheckLayer, r.config().layers - 1); }

// The sequence that holds a text, or nothing.
Sequence hold(Runtime& runtime, CachedText text, const SequenceOptions& like) {
  const auto length = static_cast<std::uint32_t>(text.tokens.size());
  text.tokens.push_back(0);  // the last token of a prompt is never served
  auto opened = runtime.cache().open({.root = like.root,
                                      .token_capacity = length + 1,
                                      .publish = false,
                                      .changes = like.changes,
                                      .request = like.request});
  if (!opened.ok()) return {};
  if (runtime.cache().attach(opened.value(), text.tokens, text.keys).tokens < length) return {};
  return std::move(opened.value());
}

}  // namespace

std::optional<Blend> find_blend(Runtime& runtime, Sequence& s, double recompute,
                                const SequenceOptions& options) {
  if (runtime.config().learned_positions) return {};  // what stood elsewhere cannot be turned
  const std::uint32_t per_block = runtime.geometry().tokens_per_block;
  const std::span<const TokenId> prompt = s.tokens();
  const auto end = static_cast<std::uint32_t>(prompt.size()) - 1;  // the last is always computed
  if (s.length() + per_block > end) return {};
  struct Found {
    std::uint32_t to, count;
    TextPlace last;
  };
  std::vector<Found> found;
  for (std::uint32_t at = s.length(); at + per_block <= end;) {
    std::optional<TextPlace> after;
    if (!found.empty() && found.back().to + found.back().count == at) after = found.back().last;
    const auto place = runtime.cache().find_text(s, prompt.subspan(at, per_block), after);
    if (!place) {
      ++at;
      continue;
    }
    if (place->follows)
      found.back() = {found.back().to, found.back().count + per_block, *place};
    else
      found.push_back({at, per_block, *place});
    at += per_block;
  }
  std::vector<CachedText> texts;  // before anything is held, as that changes the cache
  for (const Found& f : found) texts.push_back(runtime.cache().text(f.last));
  std::vector<Blend::Run> runs;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Found& f = found[i];
    Sequence source = hold(runtime, std::move(texts[i]), options);
    if (!source.is_open()) continue;
    runs.push_back({f.to, f.last.end - f.count, f.count, std::move(source)});
  }
  if (runs.empty()) return {};
  return Blend(s, recompute, std::move(runs));
}

Blend::Blend(Sequence& s, double recompute, std::vector<Run> runs)
    : s_(&s),
      recompute_(recompute),
      runs_(std::move(runs)),
      begin_(s.length()),
      end_(runs_.back().to + runs_.back().count) {}

Status Blend::lay(Runtime& runtime) {
  CHECK(!laid_ && s_->length() == begin_);
  const Geometry& geometry = runtime.cache().geometry(s_->root());
  const StepNeed need{s_, end_ - begin_};
  TRY(Reservation room, runtime.cache().reserve({&need, 1}));
  s_->limit_purity(begin_);
  std::vector<KvSequenceView> views;
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) views.push_back(room.view(0, g, 0));
  for (const Run& run : runs_) copy(runtime, run, views);
  room.commit(0, need.count);
  laid_ = true;
  for (Run& run : runs_) run.source.close();
  if (recompute_ > 0 && recompute_ < 1) {
    old_ = check_values(runtime);
    looked_ = begin_;
  } else {
    choose(runtime);
  }
  return {};
}

// Rows of one run, page by page of the sequence, in every lane.
void Blend::copy(Runtime& runtime, const Run& run, std::span<const KvSequenceView> views) const {
  const Geometry& geometry = runtime.cache().geometry(s_->root());
  const std::uint32_t per_block = geometry.tokens_per_block, kv_heads = runtime.config().kv_heads;
  const std::int32_t delta =
      static_cast<std::int32_t>(run.to) - static_cast<std::int32_t>(run.from);
  for (std::uint32_t layer = 0; layer < runtime.config().layers; ++layer)
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      const LayerPlace place = geometry.places[layer];
      const LayerGroup& g = geometry.groups[place.group];
      LaneRows rows = lane_rows(runtime, run.source, layer, head, {.values = true},
                                {run.from, run.from + run.count});
      const std::size_t first = run.from - rows.tokens[0];
      float* const keys = rows.keys.data() + first * g.key_dim;
      const float* const values = rows.values.data() + first * g.value_dim;
      runtime.executor().page_work()->rotate_keys(layer, delta, run.count, keys);
      const std::size_t page_bytes = geometry.page_bytes(g);
      std::vector<std::byte> page(page_bytes);
      std::vector<float> key_rows(std::size_t{per_block} * g.key_dim),
          value_rows(std::size_t{per_block} * g.value_dim);
      for (std::uint32_t i = 0; i < run.count; i += per_block) {
        const std::uint32_t count = std::min(per_block, run.count - i);
        std::copy_n(keys + std::size_t{i} * g.key_dim, count * g.key_dim, key_rows.begin());
        std::copy_n(values + std::size_t{i} * g.value_dim, count * g.value_dim, value_rows.begin());
        g.format->encode(geometry.page_shape(g), key_rows.data(), value_rows.data(), page.data());
        for (std::uint32_t slot = 0; slot < count; ++slot) {
          const std::uint32_t to = run.to + i + slot;
          std::byte* const there =
              arena_at(runtime.cache().arena(), views[place.group].blocks[to / per_block]) +
              (std::size_t{place.index} * kv_heads + head) * page_bytes;
          g.format->copy_slot(geometry.page_shape(g), page.data(), slot, there, to % per_block);
        }
      }
    }
}

// Of the layer that is looked at, [token][head][dim], of the tokens it is about.
std::vector<float> Blend::check_values(const Runtime& runtime) const {
  const std::uint32_t kv_heads = runtime.config().kv_heads, dim = runtime.config().head_dim;
  std::vector<float> all(std::size_t{end_ - begin_} * kv_heads * dim);
  for (std::uint32_t head = 0; head < kv_heads; ++head) {
    const LaneRows rows = lane_rows(runtime, *s_, check_layer(runtime), head,
                                    {.keys = false, .values = true}, {begin_, end_});
    const float* const values = rows.values.data() + std::size_t{begin_ - rows.tokens[0]} * dim;
    for (std::uint32_t t = 0; t < end_ - begin_; ++t)
      std::copy_n(values + std::size_t{t} * dim, dim,
                  all.data() + (std::size_t{t} * kv_heads + head) * dim);
  }
  return all;
}

// What was found nowhere, and of the rest those that changed most.
void Blend::choose(const Runtime& runtime) {
  std::vector<std::uint32_t> copied;
  std::uint32_t at = begin_;
  for (const Run& run : runs_) {
    for (; at < run.to; ++at) again_.push_back(at);
    for (; at < run.to + run.count; ++at) copied.push_back(at);
  }
  std::size_t wanted = recompute_ >= 1 ? copied.size() : 0;
  if (!old_.empty()) {
    const std::vector<float> now = check_values(runtime);
    const std::size_t width = now.size() / (end_ - begin_);
    std::vector<double> changed(end_ - begin_);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double d = double{now[i]} - old_[i];
      changed[i / width] += d * d;
    }
    std::ranges::sort(copied, [&](std::uint32_t a, std::uint32_t b) {
      const double x = changed[a - begin_], y = changed[b - begin_];
      return x != y ? x > y : a < b;
    });
    wanted = static_cast<std::size_t>(recompute_ * static_cast<double>(copied.size()) + 0.5);
    old_.clear();
  }
  again_.insert(again_.end(), copied.begin(), copied.begin() + static_cast<std::ptrdiff_t>(wanted));
  std::ranges::sort(again_);
  reused_ = static_cast<std::uint32_t>(copied.size() - wanted);
  looked_ = end_;
}

Status Blend::advance(Stepper& stepper, std::uint32_t rows) {
  CHECK(laid_);
  Runtime& runtime = stepper.runtime();
  rows = std::max(1u, std::min(rows, stepper.rows_max()));
  std::vector<std::uint32_t> now;
  if (looked_ < end_) {  // a few layers, of all
    for (; now.size() < rows && looked_ < end_; ++looked_) now.push_back(looked_);
    TRY_STATUS(stepper.compute_again(*s_, now, check_layer(runtime)));
    if (looked_ == end_) choose(runtime);
    return {};
  }
  for (; now.size() < rows && next_ < again_.size(); ++next_) now.push_back(again_[next_]);
  return now.empty() ? Status() : stepper.compute_again(*s_, now, runtime.config().layers - 1);
}

std::unique_ptr<Program> Blending::fork() const {
  auto copy = std::make_unique<Blending>(recompute_);
  CHECK(!blend_);  // answers begin when the prompt is there
  copy->laid_ = laid_;
  return copy;
}

void Blending::attached(Stepper& stepper, Sequence& s, const SequenceOptions& options) {
  blend_ = find_blend(stepper.runtime(), s, recompute_, options);
  // If there is no room for all runs, the prompt is read step by step without reuse.
  if (blend_ && !blend_->lay(stepper.runtime()).ok()) blend_.reset();
  laid_ = blend_.has_value();
}

Program::Work Blending::work(Stepper& stepper, Sequence&, double& rows) {
  if (!blend_) return Work::none;
  if (rows <= 0) return Work::unfinished;
  const auto now = static_cast<std::uint32_t>(std::min(std::max(rows, 1.0), 1e9));
  failed_ = blend_->advance(stepper, now);
  rows -= now;
  if (failed_.ok() && !blend_->done()) return Work::unfinished;
  reused_ = blend_->reused();
  blend_.reset();
  return Work::done;
}

}  // namespace quire
