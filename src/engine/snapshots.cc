#include "engine/snapshots.h"

#include <algorithm>
#include <utility>

#include "engine/sessions.h"

namespace quire {
namespace {

constexpr std::size_t kSnapshotsMax = 64;
constexpr std::uint64_t kShareOfCache = 8;  // all of them take at most an eighth of it

}  // namespace

void Snapshots::keep(Job& job) {
  const Answer& a = job.answers[0];
  const Request& r = job.request;
  if (r.kv.write == KvWrite::none || !r.kv.reuse) return;
  const std::optional<std::string> name = a.programs.snapshot_name(a.sequence);
  // Only once: a snapshot that was dropped for lack of room would otherwise be stored again at
  // once.
  if (!name || std::exchange(job.snapshot_kept, true) || find(job, *name)) return;
  add(job, *name);
}

void Snapshots::keep_session(const Job& job) {
  const Answer& a = job.answers[0];
  const Request& r = job.request;
  if (r.kv.write == KvWrite::none || !r.kv.reuse || a.programs.empty()) return;
  if (r.kv.blend || r.kv.convert) return;  // these begin with what is cached, each time anew
  if (a.sequence.length() == 0 || a.sequence.reserved() > 0 || a.sequence.faulted()) return;
  add(job, r.session->state_name());
}

void Snapshots::add(const Job& job, const std::string& name) {
  const Answer& a = job.answers[0];
  const Request& r = job.request;
  const std::uint64_t bytes = runtime_.cache().bytes(a.sequence);
  const std::uint64_t most = runtime_.kv_cache_bytes() / kShareOfCache;
  if (bytes > most) return;
  auto fork = runtime_.cache().fork(a.sequence);
  if (!fork.ok()) return;
  const auto tokens = a.sequence.tokens().first(a.sequence.length());
  (void)runtime_.cache().truncate(fork.value(), a.sequence.length());
  all_.push_front({job.root,
                   name,
                   r.kv.salt,
                   r.kv.producer,
                   {tokens.begin(), tokens.end()},
                   std::move(fork.value()),
                   a.programs.fork_list(),
                   bytes});
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    held += all_[i].bytes;
    if (i < kSnapshotsMax && held <= most) continue;
    all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i), all_.end());
    break;
  }
}

Snapshots::Snapshot* Snapshots::find(const Job& job, const std::string& name) {
  const Request& r = job.request;
  auto found = all_.end();  // the longest: a session has several
  for (auto s = all_.begin(); s != all_.end(); ++s)
    if (s->root == job.root && s->salt == r.kv.salt && s->producer == r.kv.producer &&
        s->name == name && r.prompt.size() >= s->tokens.size() &&
        (found == all_.end() || s->tokens.size() > found->tokens.size()) &&
        std::equal(s->tokens.begin(), s->tokens.end(), r.prompt.begin()))
      found = s;
  if (found == all_.end()) return nullptr;
  std::rotate(all_.begin(), found, found + 1);
  return &all_.front();
}

bool Snapshots::place(const Job& job, const ProgramList& programs, std::uint32_t token_capacity,
                      Answer& to) {
  const Request& r = job.request;
  if (!r.kv.reuse || programs.empty()) return false;
  if (r.session && place(job, r.session->state_name(), token_capacity, to)) return true;
  const std::optional<std::string> name = programs.wanted_snapshot();
  return name && place(job, *name, token_capacity, to);
}

bool Snapshots::place(const Job& job, const std::string& name, std::uint32_t token_capacity,
                      Answer& to) {
  const Request& r = job.request;
  const Snapshot* const found = find(job, name);
  // The last token of a prompt is always computed.
  if (found == nullptr || r.prompt.size() <= found->tokens.size()) return false;
  auto fork = runtime_.cache().fork(found->sequence, token_capacity);
  if (!fork.ok()) return false;
  runtime_.cache().extend(fork.value(), std::span(r.prompt).subspan(found->tokens.size()));
  runtime_.cache().preempt(fork.value(), Preempt::park);
  to.sequence = std::move(fork.value());
  to.programs = found->programs.fork_list();
  return true;
}

bool Snapshots::drop_last() {
  if (all_.empty()) return false;
  all_.pop_back();
  return true;
}

void Snapshots::drop(std::optional<RootId> root) {
  std::erase_if(all_, [&](const Snapshot& s) { return !root || s.root == *root; });
}

}  // namespace quire
