// engine/sessions.h - named places in conversations: who has which, and who goes on with one now.
//
// A session is a name of a tenant for a text, a policy, and the length of the text's first prompt.
// Programs (engine/program.h) treat what comes after the first prompt as they treat an answer, so
// these three alone decide what the session generates next. Whatever else a session has in memory
// (blocks under a lease, the lanes and sums of a compacted sequence: engine/snapshots.h) only saves
// time. If it is dropped, it is computed again to the same bits.
//
//   Sessions sessions({});
//   TRY(std::shared_ptr<SessionTurn> turn, sessions.begin("acme", "chat-42", {prompt, kv}));
//   request.session = turn;                  // the engine calls turn->ended(); or it goes unchanged
//   TRY(Session s, sessions.find("acme", "chat-42"));
//
// Any thread may call it. The engine thread takes its lock when a request of a session ends, for the
// time of a map's lookup and a swap.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace quire {

inline constexpr std::size_t kSessionNameMax = 128;   // bytes
inline const std::string kSessionLabel = "session ";  // of leases; the name follows

struct SessionLimits {
  std::uint32_t sessions_max = 4096, sessions_max_per_tenant = 1024;
  std::uint64_t tokens_max = std::uint64_t{64} << 20,
                tokens_max_per_tenant = std::uint64_t{16} << 20;
};

struct Session {
  std::string tenant, id;
  std::string parent = {};                // the session it was forked from, or none
  std::vector<TokenId> tokens = {};       // all that was read or told
  std::uint32_t read = 0;                 // of these, how many were read: the last one told is not
  std::uint32_t first_prompt = 0;         // 0: nothing was read yet
  std::vector<std::uint32_t> turns = {};  // how many tokens it had after each request
  KvPolicy kv = {};                       // as of its last request
  std::string policy = "{}";              // the same in the words of the client: a JSON object
  std::int64_t created = 0, last_used = 0;  // nanoseconds since 1970
  bool busy = false;                        // a request goes on with it now
  std::optional<LeaseId> lease = {};        // on the blocks of its text
};

// Whether a session under one policy can go on under another: both read and keep the same.
bool same_state(const KvPolicy& a, const KvPolicy& b);
// An error that says what is wrong with it as a name.
Status check_session_name(std::string_view name);

class Sessions;

// A request that goes on with a session. The session is busy as long as this lives, or until
// ended().
class SessionTurn {
 public:
  enum class How : std::uint8_t {
    created,    // there was no such session, or nothing in it
    continued,  // the prompt goes on where the session was
    replaced,  // the prompt does not go on with it, or under another policy: it is read as any other
  };

  SessionTurn(std::shared_ptr<Sessions> sessions, std::string tenant, std::string id)
      : sessions_(std::move(sessions)), tenant_(std::move(tenant)), id_(std::move(id)) {}
  ~SessionTurn();
  SessionTurn(const SessionTurn&) = delete;

  const std::string& id() const { return id_; }
  How how() const { return how_; }
  // What programs take for the prompt: tokens of the session's first one.
  std::uint32_t first_prompt() const { return first_prompt_; }
  // Of a session whose blocks came from elsewhere: part of their keys (KvPolicy::producer).
  const std::string& producer() const { return kv_.producer; }
  // Names the state that the session is in after its last request, for Snapshots.
  const std::string& state_name() const { return state_name_; }

  // Engine thread: the request has ended well with these tokens, of which so many were read. The
  // session is free again. Returns the lease that it had before, to be released.
  std::optional<LeaseId> ended(std::vector<TokenId> tokens, std::uint32_t read,
                               std::optional<LeaseId> lease);

 private:
  friend class Sessions;
  std::shared_ptr<Sessions> sessions_;
  std::string tenant_, id_;
  How how_ = How::created;
  std::uint32_t first_prompt_ = 0;
  std::string state_name_;
  KvPolicy kv_;
  std::string policy_;
  bool open_ = false;
  bool made_ = false;  // for this request: goes with it if it comes to nothing
};

std::string_view how_name(SessionTurn::How how);  // "created", "continued", "replaced"

struct SessionAsk {
  std::span<const TokenId> prompt;
  const KvPolicy& kv;
  std::string policy = "{}";
  bool fork = false;  // of a session that is busy; the fork gets a name of its own
};

class Sessions : public std::enable_shared_from_this<Sessions> {
 public:
  explicit Sessions(const SessionLimits& limits = {}) : limits_(limits) {}

  // Code::unavailable: it is busy. Code::exhausted: there are too many, or they are too long.
  // Code::not_found: there is none. Code::invalid: the name or the place makes no sense.

  // The request that asks goes on with the session, which is made if there is none.
  Result<std::shared_ptr<SessionTurn>> begin(const std::string& tenant, const std::string& id,
                                             const SessionAsk& ask);
  // False: there is one of this name.
  Result<bool> create(Session session);
  Result<bool> fork(const std::string& tenant, const std::string& id, const std::string& to,
                    std::optional<std::uint32_t> at_token);
  // Forgets what comes after so many tokens, or the last turns. Returns how many tokens are left.
  struct Rewind {
    std::optional<std::uint32_t> at_token = {};
    std::uint32_t last_turns = 0;
  };
  Result<std::uint32_t> truncate(const std::string& tenant, const std::string& id, const Rewind& to,
                                 bool dry_run = false);
  // Returns what it was, so that its lease can be released.
  Result<Session> remove(const std::string& tenant, const std::string& id);
  // Sets the lease of a session; returns the one to be released, which is this one if the session
  // is gone.
  std::optional<LeaseId> set_lease(const std::string& tenant, const std::string& id, LeaseId lease);

  Result<Session> find(const std::string& tenant, const std::string& id) const;
  // The policy of a session in the client's words; none: there is no such session.
  std::optional<std::string> policy(const std::string& tenant, const std::string& id) const;
  // In the order of names, those after `after`; their tokens are left out.
  struct Page {
    std::vector<Session> sessions;
    std::vector<std::uint32_t> tokens;  // how many each has
    bool more = false;
  };
  Page list(const std::string& tenant, std::string_view after, std::size_t limit) const;
  std::vector<std::string> children(const std::string& tenant, const std::string& id) const;
  std::size_t count() const;

 private:
  friend class SessionTurn;
  using Name = std::pair<std::string, std::string>;  // tenant, id
  struct Total {
    std::uint32_t sessions = 0;
    std::uint64_t tokens = 0;
  };

  Status room_for(const std::string& tenant, std::uint64_t tokens) const;
  void add(Session session);
  void erase(const Name& name);
  void resize(Session& session, std::size_t tokens);
  Session* get(const std::string& tenant, const std::string& id);
  const Session* get(const std::string& tenant, const std::string& id) const {
    return const_cast<Sessions*>(this)->get(tenant, id);
  }
  static void cut(Session& session, std::uint32_t at_token);
  std::string free_name(const std::string& tenant, const std::string& id) const;

  SessionLimits limits_;
  mutable std::mutex mutex_;
  std::map<Name, Session> all_;
  std::map<std::string, Total> totals_;  // by tenant
  Total total_;
};

}  // namespace quire
