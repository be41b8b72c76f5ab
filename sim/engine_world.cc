#include "sim/engine_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::size_t kLiveMax = 12;
constexpr std::uint64_t kAsks = 48;  // of one world: each is answered alone once

std::string spelled(const std::vector<Choice>& tokens) {
  std::string out;
  for (const Choice& c : tokens) out += fmt::format("{} ", c.token);
  return out;
}

bool same(const Choice& a, const Choice& b) {
  return a.token == b.token && a.logprob == b.logprob &&
         std::ranges::equal(a.alternatives, b.alternatives,
                            [](const TokenLogprob& x, const TokenLogprob& y) {
                              return x.token == y.token && x.logprob == y.logprob;
                            });
}

std::string described(const Request& r) {
  const KvPolicy& kv = r.kv;
  return fmt::format(
      "prompt {} tokens_max {} n {} beams {} format {} budget {} select {} reuse {} write {} chunk "
      "{} prompt_logprobs {} temperature {} tenant '{}' salt '{}' adapter '{}' priority {}",
      r.prompt.size(), r.tokens_max, r.choices, r.beams, kv.storage ? kv.storage->name() : "-",
      kv.retain ? kv.retain->text() : "-", kv.select ? kv.select->text() : "-", kv.reuse,
      static_cast<int>(kv.write), r.chunk, r.prompt_logprobs, r.sampling.temperature, kv.tenant,
      kv.salt, kv.adapters ? kv.adapters->digest() : "", r.priority);
}

}  // namespace

Request EngineWorld::make(std::uint64_t ask, std::uint32_t tokens_max) const {
  Request r = asks_.make(ask);
  r.tokens_max = tokens_max;
  r.cut_tokens_max = false;
  r.deadline = 0;
  r.kv.leases.clear();
  r.kv.resident = 0;
  return r;
}

// Several at once: the same again, or others.
void EngineWorld::arrive() {
  if (live_.size() >= kLiveMax) return;
  std::uint64_t ask = random_.below(kAsks);
  if (!recent_.empty() && random_.chance(0.4)) ask = recent_[random_.below(recent_.size())];
  const std::uint64_t count = random_.chance(0.4) ? 1 + random_.below(5) : 1;
  const bool equal = random_.chance(0.7);
  if (count > 1) ++report_.features[equal ? "equal at once" : "equal policy at once"];
  const auto policy = asks_.make(ask).kv.retain;
  for (std::uint64_t i = 0; i < count; ++i) {
    submit(ask);
    if (equal) continue;
    do ask = random_.below(kAsks);
    while (asks_.make(ask).kv.retain != policy);
  }
  recent_.push_back(ask);
  if (recent_.size() > 6) recent_.pop_front();
}

void EngineWorld::submit(std::uint64_t ask) {
  Request r = asks_.make(ask);
  r.id = fmt::format("{}", ask);
  Live l{.ask = ask,
         .tokens_max = 0,
         .choices = r.choices,
         .comparable = !r.kv.blend && !r.kv.convert,
         .timed = r.deadline > 0,
         .log = std::make_shared<AnswerLog>(r.choices),
         .finished = std::vector<bool>(r.choices),
         .losses = crowd_.trouble().losses,
         .nans = crowd_.trouble().nans};
  const std::uint32_t asked = r.tokens_max;
  Features seen = report_.features;
  Asks::count(r, seen);
  const auto id = static_cast<JobId>(++jobs_);
  const ToyEngine::Submitted made = crowd_.submit(std::move(r), l.log, id);
  if (made.failure.kind != FailureKind::none) {
    ++report_.features[made.failure.kind == FailureKind::kv_capacity ? "too large" : "refused"];
    if (options_.verbose) fmt::print("ask {} refused: {}\n", ask, made.failure.message);
    return;
  }
  report_.features = std::move(seen);
  report_.features["cut to what fits"] += made.tokens_max < asked;
  report_.features["model with windows"] += opened_.model == ToyModel::windows;
  report_.features["model with latent attention"] += opened_.model == ToyModel::latent;
  report_.features["drawn by the executor"] += opened_.draws;
  ++report_.requests;
  l.tokens_max = made.tokens_max;
  if (options_.verbose)
    fmt::print("job {} ask {}: {}\n", jobs_, ask, described(make(ask, l.tokens_max)));
  live_.emplace(id, std::move(l));
}

// Clients that lose patience, or have read enough.
void EngineWorld::leave() {
  if (live_.empty()) return;
  auto at = live_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random_.below(live_.size())));
  Live& l = at->second;
  if (random_.chance(0.5)) {
    l.cancelled = true;
    ++report_.features["cancelled"];
    return crowd_.engine().cancel(at->first);
  }
  const auto choice = static_cast<std::uint32_t>(random_.below(l.choices));
  if (l.log->answers[choice].tokens.empty() || l.log->answers[choice].finish) return;
  l.finished[choice] = true;
  ++report_.features["client finished it"];
  crowd_.engine().finish(at->first, choice);
}

void EngineWorld::collect() {
  for (auto at = live_.begin(); at != live_.end();) {
    if (!at->second.log->over()) {
      ++at;
      continue;
    }
    judge(at->second);
    at = live_.erase(at);
  }
}

void EngineWorld::wrong(const Live& l, const std::string& what) {
  fmt::print(stderr, "ask {} ({}): {}\n", l.ask, described(make(l.ask, l.tokens_max)), what);
  std::abort();
}

void EngineWorld::judge(const Live& l) {
  if (l.log->failure) judge_failure(l);
  if (l.log->result) {
    ++report_.features["finished"];
    keep_leases(l);
    report_.features["converted"] += l.log->result->converted;
    report_.features["blended"] += l.log->result->approximate_tokens > 0;
    report_.features["resumed"] += l.log->result->preemptions > 0;
    report_.features["cold blocks"] += l.log->result->cold_blocks > 0;
    report_.features["cold blocks lost"] += l.log->result->lost_blocks > 0;
    if (l.log->result->preemptions > crowd_.service().preemptions_max)
      wrong(l, fmt::format("it gave way {} times", l.log->result->preemptions));
  }
  if (l.log->admission) {
    report_.features["cached tokens"] += l.log->admission->cached_tokens > 0;
    report_.features["waited for a prefix"] += l.log->admission->waited_tokens > 0;
    report_.features["loaded from a tier"] += l.log->admission->loaded_tokens > 0;
    report_.features["loaded from a store"] += l.log->admission->remote_tokens > 0;
    report_.features["load failed"] += l.log->admission->reason == Reason::load_failed;
    report_.features["load too slow"] += l.log->admission->reason == Reason::load_too_slow;
    const auto retain = asks_.make(l.ask).kv.retain;
    report_.features["began with a snapshot"] +=
        retain && retain->cut > 0 && l.log->admission->cached_tokens >= retain->cut;
  }
  if (l.comparable) compare(l);
}

void EngineWorld::judge_failure(const Live& l) {
  const Failure& f = *l.log->failure;
  switch (f.kind) {
    case FailureKind::cancelled:
      if (!l.cancelled) wrong(l, "cancelled by nobody");
      return;
    case FailureKind::deadline:
      if (!l.timed) wrong(l, "has no deadline");
      ++report_.features["deadline passed"];
      return;
    case FailureKind::device:
      if (crowd_.trouble().losses == l.losses) wrong(l, "no device was lost: " + f.message);
      ++report_.features["device lost"];
      return;
    case FailureKind::numeric:
      if (crowd_.trouble().nans == l.nans) wrong(l, "all numbers were finite");
      ++report_.features["not finite"];
      return;
    case FailureKind::tier:
      if (opened_.tiers.empty()) wrong(l, "there is no tier: " + f.message);
      ++report_.features["tier gave up"];
      return;
    case FailureKind::quota:
      if (!limits_) wrong(l, "nobody has a quota: " + f.message);
      ++report_.features["over quota"];
      return;
    case FailureKind::no_room:
      if (crowd_.cache().stats().pinned_bytes > 0 || memory_fails_ || guest_ || resizes_) return;
      if (opened_.nodes < ToyEngineOptions{}.nodes) return;  // no room for a root
      wrong(l, "no room, although it fits alone: " + f.message);
    default:
      wrong(l, "failed: " + f.message);
  }
}

void EngineWorld::compare(const Live& l) {
  const AnswerLog& alone =
      alone_.answers(l.ask, l.tokens_max, [&] { return make(l.ask, l.tokens_max); });
  ++report_.compared;
  ++report_.features["compared with alone"];
  for (std::uint32_t c = 0; c < l.choices; ++c) compare_answer(l, c, alone.answers[c]);
  const std::vector<PromptLogprob>&mine = l.log->prompt, &theirs = alone.prompt;
  const bool scored =
      mine.empty() || std::ranges::equal(mine, theirs, [](const auto& a, const auto& b) {
        return same({a.token, a.logprob, a.alternatives}, {b.token, b.logprob, b.alternatives});
      });
  if (!scored || (l.log->result && mine.size() != theirs.size()))
    wrong(l, "log-probabilities of its prompt are others than alone");
  if (l.log->result && l.log->result->pooled != alone.result->pooled)
    wrong(l, "its embedding is another than alone");
}

// As far as its tokens were reported.
void EngineWorld::compare_answer(const Live& l, std::uint32_t choice,
                                 const AnswerLog::Answer& alone) {
  const AnswerLog::Answer& mine = l.log->answers[choice];
  const bool begins =
      mine.tokens.size() <= alone.tokens.size() &&
      std::equal(mine.tokens.begin(), mine.tokens.end(), alone.tokens.begin(), same);
  const bool whole = l.log->result && !l.finished[choice];
  if (begins &&
      (!whole || (mine.tokens.size() == alone.tokens.size() && mine.finish == alone.finish)))
    return;
  wrong(l, fmt::format("choice {} is another than alone\n  here  {}\n  alone {}", choice,
                       spelled(mine.tokens), spelled(alone.tokens)));
}

}  // namespace quire
