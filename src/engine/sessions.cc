#include "engine/sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "model/adapter/adapter.h"
#include "text/utf8.h"

namespace quire {
namespace {

std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Error no_session(const std::string& id) {
  return {Code::not_found, fmt::format("there is no session '{}'", id)};
}

Error session_busy(const std::string& id) {
  return {Code::unavailable,
          fmt::format("a request goes on with session '{}' now; wait for it, or set "
                      "kv.session_mode to \"fork\"",
                      id)};
}

template <class T>
bool same_text(const std::shared_ptr<const T>& a, const std::shared_ptr<const T>& b) {
  return a == b || (a && b && a->text() == b->text());
}

std::string state_name(std::uint32_t first_prompt, const KvPolicy& kv) {
  return fmt::format("session {} {} {}", first_prompt, kv.retain ? kv.retain->text() : "-",
                     kv.select ? kv.select->text() : "-");
}

bool begins_with(std::span<const TokenId> text, std::span<const TokenId> with) {
  return text.size() > with.size() && std::equal(with.begin(), with.end(), text.begin());
}

}  // namespace

std::string_view how_name(SessionTurn::How how) {
  constexpr std::string_view kNames[] = {"created", "continued", "replaced"};
  return kNames[static_cast<std::size_t>(how)];
}

bool same_state(const KvPolicy& a, const KvPolicy& b) {
  const bool stored =
      a.storage == b.storage || (a.storage && b.storage && a.storage->name() == b.storage->name());
  return stored && same_text(a.retain, b.retain) && same_text(a.select, b.select) &&
         a.blend == b.blend && a.convert == b.convert && a.salt == b.salt &&
         a.root_adapter() == b.root_adapter();
}

Status check_session_name(std::string_view name) {
  const bool printable = std::ranges::none_of(
      name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (name.empty() || name.size() > kSessionNameMax || !printable || !utf8_valid(name))
    return Error{Code::invalid,
                 fmt::format("a session's name has 1 to {} bytes of UTF-8 and no control "
                             "characters",
                             kSessionNameMax)};
  return {};
}

SessionTurn::~SessionTurn() {
  if (!open_) return;
  const std::lock_guard lock(sessions_->mutex_);
  Session* const s = sessions_->get(tenant_, id_);
  if (s == nullptr) return;
  s->busy = false;
  if (made_) sessions_->erase({tenant_, id_});
}

std::optional<LeaseId> SessionTurn::ended(std::vector<TokenId> tokens, std::uint32_t read,
                                          std::optional<LeaseId> lease) {
  std::vector<TokenId> before;  // freed outside the lock
  const std::lock_guard lock(sessions_->mutex_);
  Session* const s = sessions_->get(tenant_, id_);
  open_ = false;
  if (s == nullptr) return lease;
  sessions_->resize(*s, tokens.size());
  if (how_ != How::continued) s->turns.clear();
  s->turns.push_back(static_cast<std::uint32_t>(tokens.size()));
  before = std::exchange(s->tokens, std::move(tokens));
  s->read = read;
  s->first_prompt = first_prompt_;
  s->kv = std::move(kv_);
  s->policy = std::move(policy_);
  s->last_used = wall_clock_ns();
  s->busy = false;
  return std::exchange(s->lease, lease);
}

Session* Sessions::get(const std::string& tenant, const std::string& id) {
  const auto it = all_.find({tenant, id});
  return it == all_.end() ? nullptr : &it->second;
}

Status Sessions::room_for(const std::string& tenant, std::uint64_t tokens) const {
  const auto it = totals_.find(tenant);
  const Total own = it == totals_.end() ? Total{} : it->second;
  if (own.sessions >= limits_.sessions_max_per_tenant || total_.sessions >= limits_.sessions_max)
    return Error{Code::exhausted,
                 fmt::format("there are {} sessions of {}; delete some", own.sessions,
                             std::min(limits_.sessions_max_per_tenant, limits_.sessions_max))};
  if (own.tokens + tokens > limits_.tokens_max_per_tenant ||
      total_.tokens + tokens > limits_.tokens_max)
    return Error{
        Code::exhausted,
        fmt::format("all sessions together have {} tokens, and may have {}; delete some",
                    own.tokens, std::min(limits_.tokens_max_per_tenant, limits_.tokens_max))};
  return {};
}

void Sessions::add(Session session) {
  ++total_.sessions;
  ++totals_[session.tenant].sessions;
  total_.tokens += session.tokens.size();
  totals_[session.tenant].tokens += session.tokens.size();
  session.created = session.last_used = wall_clock_ns();
  Name name(session.tenant, session.id);
  all_.emplace(std::move(name), std::move(session));
}

void Sessions::erase(const Name& name) {
  const auto it = all_.find(name);
  resize(it->second, 0);
  --total_.sessions;
  if (--totals_[name.first].sessions == 0) totals_.erase(name.first);
  all_.erase(it);
}

// Counts; the tokens themselves are the caller's to change.
void Sessions::resize(Session& session, std::size_t tokens) {
  total_.tokens += tokens - session.tokens.size();
  totals_[session.tenant].tokens += tokens - session.tokens.size();
}

Result<std::shared_ptr<SessionTurn>> Sessions::begin(const std::string& tenant,
                                                     const std::string& id, const SessionAsk& ask) {
  TRY_STATUS(check_session_name(id));
  std::shared_ptr<SessionTurn> turn;  // its end takes the lock
  const std::lock_guard lock(mutex_);
  std::string name = id;
  Session* s = get(tenant, id);
  const bool forks = s != nullptr && s->busy, made = forks || s == nullptr;
  if (forks) {
    if (!ask.fork) return session_busy(id);
    TRY_STATUS(room_for(tenant, s->tokens.size()));
    Session copy = *s;
    copy.parent = id;
    copy.busy = false;
    copy.lease.reset();
    name = copy.id = free_name(tenant, id);
    add(std::move(copy));
    s = get(tenant, name);
  }
  if (s == nullptr) {
    TRY_STATUS(room_for(tenant, ask.prompt.size()));
    add({.tenant = tenant, .id = id, .kv = ask.kv});
    s = get(tenant, id);
  } else if (ask.prompt.size() > s->tokens.size() &&
             totals_[tenant].tokens + ask.prompt.size() - s->tokens.size() >
                 limits_.tokens_max_per_tenant) {
    return Error{Code::exhausted, "all sessions together have too many tokens; delete some"};
  }
  turn = std::make_shared<SessionTurn>(shared_from_this(), tenant, name);
  turn->open_ = true;
  turn->made_ = made;
  turn->kv_ = ask.kv;
  turn->policy_ = ask.policy;
  const auto read = std::span(s->tokens).first(s->read);
  if (s->first_prompt == 0)
    turn->how_ = SessionTurn::How::created;
  else if (begins_with(ask.prompt, read) && same_state(s->kv, ask.kv))
    turn->how_ = SessionTurn::How::continued;
  else
    turn->how_ = SessionTurn::How::replaced;
  turn->first_prompt_ = turn->how_ == SessionTurn::How::continued
                            ? s->first_prompt
                            : static_cast<std::uint32_t>(ask.prompt.size());
  turn->kv_.leases.clear();
  if (turn->kv_.adapters)  // their matrices may leave memory while the session waits
    turn->kv_.adapters = AdapterSet::named(std::string(ask.kv.root_adapter()));
  turn->kv_.producer = s->kv.producer;
  s->busy = true;
  turn->state_name_ = state_name(turn->first_prompt_, ask.kv);
  return turn;
}

std::string Sessions::free_name(const std::string& tenant, const std::string& id) const {
  for (std::uint32_t n = 2;; ++n) {
    const std::string end = fmt::format("~{}", n);
    std::string name = id.substr(0, std::min(id.size(), kSessionNameMax - end.size()));
    while (!utf8_valid(name)) name.pop_back();
    name += end;
    if (get(tenant, name) == nullptr) return name;
  }
}

Result<bool> Sessions::create(Session session) {
  TRY_STATUS(check_session_name(session.id));
  const std::lock_guard lock(mutex_);
  if (get(session.tenant, session.id)) return false;
  TRY_STATUS(room_for(session.tenant, session.tokens.size()));
  add(std::move(session));
  return true;
}

// What is left after so many tokens. Behind the first prompt a session goes on as before; within it,
// the next request brings a first prompt of its own.
void Sessions::cut(Session& s, std::uint32_t at_token) {
  s.tokens.resize(at_token);
  s.read = std::min(s.read, at_token);
  if (at_token < s.first_prompt || at_token == 0) s.first_prompt = 0;
  std::erase_if(s.turns, [&](std::uint32_t end) { return end > at_token; });
  if (at_token > 0 && (s.turns.empty() || s.turns.back() < at_token)) s.turns.push_back(at_token);
}

Result<bool> Sessions::fork(const std::string& tenant, const std::string& id, const std::string& to,
                            std::optional<std::uint32_t> at_token) {
  TRY_STATUS(check_session_name(to));
  const std::lock_guard lock(mutex_);
  const Session* const s = get(tenant, id);
  if (s == nullptr) return no_session(id);
  if (s->busy) return session_busy(id);
  if (get(tenant, to)) return false;
  if (at_token && *at_token > s->tokens.size())
    return Error{Code::invalid, fmt::format("session '{}' has {} tokens, not {}", id,
                                            s->tokens.size(), *at_token)};
  TRY_STATUS(room_for(tenant, at_token.value_or(static_cast<std::uint32_t>(s->tokens.size()))));
  Session copy = *s;
  copy.id = to;
  copy.parent = id;
  copy.lease.reset();
  if (at_token) cut(copy, *at_token);
  add(std::move(copy));
  return true;
}

Result<std::uint32_t> Sessions::truncate(const std::string& tenant, const std::string& id,
                                         const Rewind& to, bool dry_run) {
  const std::lock_guard lock(mutex_);
  Session* const s = get(tenant, id);
  if (s == nullptr) return no_session(id);
  if (s->busy) return session_busy(id);
  auto at = static_cast<std::uint32_t>(s->tokens.size());
  if (to.at_token) {
    if (*to.at_token > at)
      return Error{Code::invalid,
                   fmt::format("session '{}' has {} tokens, not {}", id, at, *to.at_token)};
    at = *to.at_token;
  } else {
    if (to.last_turns > s->turns.size())
      return Error{Code::invalid, fmt::format("session '{}' has {} turns, not {}", id,
                                              s->turns.size(), to.last_turns)};
    const std::size_t left = s->turns.size() - to.last_turns;
    if (to.last_turns > 0) at = left == 0 ? 0 : s->turns[left - 1];
  }
  if (dry_run) return at;
  resize(*s, at);
  cut(*s, at);
  s->last_used = wall_clock_ns();
  return at;
}

Result<Session> Sessions::remove(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  Session* const s = get(tenant, id);
  if (s == nullptr) return no_session(id);
  if (s->busy) return session_busy(id);
  Session gone = *s;
  erase({tenant, id});
  return gone;
}

std::optional<LeaseId> Sessions::set_lease(const std::string& tenant, const std::string& id,
                                           LeaseId lease) {
  const std::lock_guard lock(mutex_);
  Session* const s = get(tenant, id);
  return s == nullptr ? lease : std::exchange(s->lease, lease);
}

Result<Session> Sessions::find(const std::string& tenant, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const Session* const s = get(tenant, id);
  if (s == nullptr) return no_session(id);
  return *s;
}

std::optional<std::string> Sessions::policy(const std::string& tenant,
                                            const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const Session* const s = get(tenant, id);
  return s == nullptr ? std::nullopt : std::optional(s->policy);
}

Sessions::Page Sessions::list(const std::string& tenant, std::string_view after,
                              std::size_t limit) const {
  Page page;
  const std::lock_guard lock(mutex_);
  auto it = after.empty() ? all_.lower_bound({tenant, ""})
                          : all_.upper_bound({tenant, std::string(after)});
  for (; it != all_.end() && it->first.first == tenant; ++it) {
    if (page.sessions.size() == limit) {
      page.more = true;
      break;
    }
    const Session& s = it->second;
    page.tokens.push_back(static_cast<std::uint32_t>(s.tokens.size()));
    page.sessions.push_back({.tenant = s.tenant,
                             .id = s.id,
                             .parent = s.parent,
                             .read = s.read,
                             .first_prompt = s.first_prompt,
                             .turns = s.turns,
                             .kv = s.kv,
                             .policy = s.policy,
                             .created = s.created,
                             .last_used = s.last_used,
                             .busy = s.busy,
                             .lease = s.lease});
  }
  return page;
}

std::vector<std::string> Sessions::children(const std::string& tenant,
                                            const std::string& id) const {
  constexpr std::size_t kChildrenShown = 100;
  std::vector<std::string> names;
  const std::lock_guard lock(mutex_);
  for (auto it = all_.lower_bound({tenant, ""});
       it != all_.end() && it->first.first == tenant && names.size() < kChildrenShown; ++it)
    if (it->second.parent == id) names.push_back(it->first.second);
  return names;
}

std::size_t Sessions::count() const {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

}  // namespace quire
