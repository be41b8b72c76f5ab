#include "engine/retain.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "engine/lane_rows.h"
#include "engine/stepper.h"
#include "kv/planted.h"

namespace quire {
namespace {

std::uint32_t cut_of(const RetainPolicy& policy, std::uint32_t prompt_length) {
  return policy.cut > 0 ? std::min(policy.cut, prompt_length) : prompt_length;
}

}  // namespace

Retaining::Retaining(const Runtime& runtime, std::shared_ptr<const RetainPolicy> policy,
                     std::uint32_t prompt_length, RootId root)
    : policy_(std::move(policy)),
      observer_(runtime, root, policy_->needs(), policy_->method.window,
                cut_of(*policy_, prompt_length)),
      fresh_(std::make_shared<Observer>(observer_)),
      prompt_length_(cut_of(*policy_, prompt_length)),
      budget_(policy_->budget(prompt_length_)),
      tokens_per_block_(runtime.geometry().tokens_per_block),
      merge_states_(policy_->merger ? observer_.layers().size() * runtime.config().kv_heads : 0) {}

std::uint32_t Retaining::serve_max() const {
  return prompt_length_ - std::min(prompt_length_, policy_->prompt_queries());
}

std::uint32_t Retaining::more_tokens() const {
  return asks(policy_->needs(), Signal::peak_mass) ? repeat_tokens(prompt_length_) : 0;
}

void Retaining::open(SequenceOptions& options) const {
  options.token_capacity += more_tokens();
  options.serve_max = std::min(options.serve_max, serve_max());
  options.recomputable = false;
}

// A step ends wherever the program may drop tokens: at the cut, and from there on every `every`
// tokens.
std::uint32_t Retaining::rows_max(std::uint32_t past) const {
  if (past < prompt_length_) return prompt_length_ - past;
  if (policy_->every == 0 || planted(Bug::cut_ignores_every)) return 0xffffffffu;
  const std::uint32_t next = std::max(last_ + policy_->every, past + 1);
  return (next + tokens_per_block_ - 1) / tokens_per_block_ * tokens_per_block_ - past;
}

void Retaining::reset(Sequence&) {
  observer_ = *fresh_;
  scoring_.reset();
  compaction_.reset();
  merges_ = false;
  prompt_done_ = dropped_ = false;
  last_ = shift_ = 0;
  for (MergeState& state : merge_states_) state = {};
}

Status Retaining::truncate(std::uint32_t) {
  if (!dropped_) return {};
  return Error{Code::unsupported, "tokens that kv_budget dropped do not come back"};
}

bool Retaining::due(const Sequence& s) const {
  if (compaction_) return true;
  if (!prompt_done_) return s.length() >= prompt_length_;
  return policy_->every > 0 && s.length() % tokens_per_block_ == 0 && s.length() > last_ &&
         s.length() - last_ >= policy_->every;
}

// In parts, so that other requests do not wait for it.
Program::Work Retaining::work(Stepper& stepper, Sequence& s, double& rows) {
  if (!due(s) || decided(stepper.runtime(), s)) return Work::none;
  if (rows <= 0) return Work::unfinished;
  const Result<bool> done = decide_some(stepper, s, rows);
  if (done.ok()) return done.value() ? Work::done : Work::unfinished;
  // If there is no room, the next step tries again, when other jobs may have been preempted. If the
  // device does not answer, the step notices that, too, for all jobs.
  if (done.error().code == Code::exhausted || done.error().code == Code::unavailable)
    return Work::none;
  problem_ = done.error().message;
  return Work::failed;
}

void Retaining::settle(Stepper& stepper, Sequence& s) {
  if (due(s) && decided(stepper.runtime(), s)) (void)drop_due(stepper, s);
}

void Retaining::after_step(Stepper& stepper, Sequence& s) {
  observer_.after_step(stepper.runtime(), s);
}

// The state at a cut depends only on the tokens before it. A prompt that is shorter than its cut is
// judged at its own length, so no other request can start from there.
std::optional<std::string> Retaining::wanted_snapshot() const {
  const bool at_cut = prompt_length_ == policy_->cut || planted(Bug::snapshot_short_of_cut);
  if (!policy_->snapshots() || !at_cut) return {};
  return policy_->text();
}

std::optional<std::string> Retaining::snapshot_name(const Sequence& s) const {
  return dropped_ && s.length() == prompt_length_ && !compaction_ ? wanted_snapshot()
                                                                  : std::nullopt;
}

Status Retaining::drop_due(Stepper& stepper, Sequence& s) {
  Runtime& runtime = stepper.runtime();
  if (!due(s)) return {};
  for (bool done = decided(runtime, s); !done;) {
    double rows = std::numeric_limits<double>::infinity();
    TRY(done, decide_some(stepper, s, rows));
  }
  if (compaction_) {
    const Status done = compaction_->carry_out(runtime, s);
    dropped_ |= compaction_->began();
    TRY_STATUS(done);
    observer_.kept(compaction_->held());
    compaction_.reset();
  }
  if (policy_->endless()) TRY_STATUS(rebase(runtime, s));
  prompt_done_ = true;
  last_ = s.length();
  return {};
}

bool Retaining::all_stay(const Runtime& runtime, const Sequence& s) const {
  const std::uint32_t kv_heads = runtime.config().kv_heads;
  std::uint64_t slots = 0, lanes = 0;
  for (const std::uint32_t layer : observer_.layers())
    for (std::uint32_t h = 0; h < kv_heads; ++h, ++lanes) slots += lane_slots(runtime, s, layer, h);
  return s.length() < runtime.geometry().tokens_per_block || slots <= budget_ * lanes;
}

bool Retaining::decided(const Runtime& runtime, const Sequence& s) const {
  if (compaction_) return !merges_;
  return !scoring_ && all_stay(runtime, s);
}

Result<bool> Retaining::decide_some(Stepper& stepper, Sequence& s, double& rows) {
  Runtime& runtime = stepper.runtime();
  const Signal needs = policy_->needs();
  if (asks(needs, Signal::peak_mass) && !observer_.has_read_again()) {
    const auto now = static_cast<std::uint32_t>(std::min(std::max(rows, 1.0), 1e9));
    TRY([[maybe_unused]] const bool read, observer_.read_some(stepper, s, now));
    rows -= now;
    return false;
  }
  if (!scoring_ && !compaction_) {
    if (asks(needs, Signal::marks))
      observer_.set_marks(token_marks(runtime.tokenizer(), s.tokens()));
    observer_.finish(runtime, s);
    scoring_.emplace(std::span(&policy_->method, 1));
  }
  const double row = row_operations(runtime.config());
  double operations = rows * row;
  if (scoring_) {
    TRY(const bool scored, scoring_->some(runtime, s, observer_, operations));
    rows = operations / row;
    if (!scored) return false;
    const std::vector<LaneScoring> all = scoring_->take();
    compaction_.emplace(runtime, s, observer_.layers(), policy_->method, all[0], budget_);
    scoring_.reset();
    merges_ = policy_->merger != nullptr;
    return !merges_;
  }
  merges_ =
      !compaction_->merge_some(runtime, s, *policy_->merger, observer_, merge_states_, operations);
  rows = operations / row;
  return !merges_;
}

// Before positions leave the range that the model was trained on, all tokens but the first ones
// move to lower positions, right behind the first ones. Their keys are rotated by the difference.
// If the window is less than half of the range, this happens at most once to a key.
Status Retaining::rebase(Runtime& runtime, Sequence& s) {
  const std::uint32_t per_block = runtime.geometry().tokens_per_block;
  const std::uint32_t ahead = std::max(policy_->every, per_block) + per_block;
  if (!dropped_ || s.length() % per_block != 0 || s.length() - shift_ + ahead <= runtime.context())
    return {};
  if (runtime.config().learned_positions)
    return Error{
        Code::unsupported,
        "a text beyond the context of a model with learned positions: they cannot be moved"};
  const Geometry& geometry = runtime.cache().geometry(s.root());
  const std::uint32_t kv_heads = runtime.config().kv_heads, dim = runtime.config().head_dim;
  const std::vector<std::uint32_t>& layers = observer_.layers();
  const std::vector<std::uint32_t> tokens = lane_tokens(runtime, s, layers[0], 0);
  const std::uint32_t sinks = policy_->method.sinks;
  const auto first = std::ranges::lower_bound(tokens, sinks);
  if (first == tokens.end() || *first <= shift_ + sinks) return {};
  const std::uint32_t delta = *first - shift_ - sinks;
  const auto still = static_cast<std::uint32_t>(first - tokens.begin());
  for (const std::uint32_t layer : layers)
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      const LayerPlace place = geometry.places[layer];
      TRY_STATUS(runtime.cache().own_lane(s, place.group, place.index * kv_heads + head));
    }
  for (const std::uint32_t layer : layers)
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
      LaneRows rows = lane_rows(runtime, s, layer, head, {.values = true});
      runtime.executor().page_work()->rotate_keys(layer, -static_cast<std::int32_t>(delta),
                                                  static_cast<std::uint32_t>(tokens.size()) - still,
                                                  rows.keys.data() + std::size_t{still} * dim);
      write_lane(runtime, s, layer, head, rows.keys, rows.values);
    }
  shift_ += delta;
  return {};
}

}  // namespace quire
