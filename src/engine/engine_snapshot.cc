// Snapshots: what a policy leaves of a text at its cut, where that depends on nothing that follows.
// Requests that begin with the same tokens and ask for the same go on from there.
#include <algorithm>

#include "engine/engine.h"

namespace quire {
namespace {

constexpr std::size_t kSnapshotsMax = 16;
constexpr std::uint64_t kShareOfCache = 8;  // all of them take at most an eighth of it

}  // namespace

// What is due of a job's policy. Without room for it, it is done before the job's next step.
void Engine::act(Job& job) {
  Answer& a = job.answers[0];
  if (!a.retain || !a.retain->due(runtime_, a.sequence)) return;
  const bool first = !a.retain->acted();
  if (job.width() == 1 && a.retain->reads_again(runtime_, a.sequence)) return;
  if (!a.retain->act(runtime_, a.sequence).ok()) return;
  const Request& r = job.request;
  if (!first || !a.retain->acted() || !a.retain->policy().snapshots() ||
      a.sequence.length() != a.retain->cut() || r.kv.write == KvWrite::none || find_snapshot(job))
    return;
  const std::uint64_t bytes = runtime_.cache().bytes(a.sequence);
  const std::uint64_t most = runtime_.kv_cache_bytes() / kShareOfCache;
  if (bytes > most) return;
  auto fork = runtime_.cache().fork(a.sequence);
  if (!fork.ok()) return;
  const auto tokens = std::span(r.prompt).first(a.sequence.length());
  (void)runtime_.cache().truncate(fork.value(), a.sequence.length());
  snapshots_.push_front({job.root,
                         a.retain->policy().text(),
                         r.kv.salt,
                         {tokens.begin(), tokens.end()},
                         std::move(fork.value()),
                         *a.retain,
                         bytes});
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < snapshots_.size(); ++i) {
    held += snapshots_[i].bytes;
    if (i < kSnapshotsMax && held <= most) continue;
    snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(i), snapshots_.end());
    break;
  }
}

Engine::Snapshot* Engine::find_snapshot(const Job& job) {
  const Request& r = job.request;
  if (!r.kv.retain || !r.kv.retain->snapshots() || !r.kv.reuse) return nullptr;
  const auto found = std::ranges::find_if(snapshots_, [&](const Snapshot& s) {
    return s.root == job.root && s.salt == r.kv.salt && s.policy == r.kv.retain->text() &&
           r.prompt.size() >= s.tokens.size() &&
           std::equal(s.tokens.begin(), s.tokens.end(), r.prompt.begin());
  });
  if (found == snapshots_.end()) return nullptr;
  std::rotate(snapshots_.begin(), found, found + 1);
  return &snapshots_.front();
}

void Engine::drop_snapshots(std::optional<RootId> root) {
  std::erase_if(snapshots_, [&](const Snapshot& s) { return !root || s.root == *root; });
}

// A waiting job that begins with a snapshot holds it as if it had been parked there.
bool Engine::place_snapshot(Job& job, const SequenceOptions& options) {
  const Snapshot* const found = find_snapshot(job);
  const Request& r = job.request;
  // The last token of a prompt is always computed.
  if (found == nullptr || r.prompt.size() <= found->tokens.size()) return false;
  auto fork = runtime_.cache().fork(found->sequence, options.token_capacity);
  if (!fork.ok()) return false;
  runtime_.cache().extend(fork.value(), std::span(r.prompt).subspan(found->tokens.size()));
  runtime_.cache().preempt(fork.value(), Preempt::park);
  Answer& a = job.answers.emplace_back();
  a.sequence = std::move(fork.value());
  a.retain = found->retain;
  job.placed = true;
  ++placed_;
  return true;
}

}  // namespace quire
