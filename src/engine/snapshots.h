// engine/snapshots.h - states of programs that other requests may start from. Such a state depends
// only on the tokens before it and on the policy, so every request with these tokens and this
// policy would reach it.
//
// The state in which a request leaves its session (engine/sessions.h) is one of them.
//
// A program names the state it is in (Program::snapshot_name) and the state that it could start
// from (Program::wanted_snapshot). The engine keeps a few, and drops them first when memory is
// short.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/job.h"

namespace quire {

class Snapshots {
 public:
  explicit Snapshots(Runtime& runtime) : runtime_(runtime) {}

  // Keeps the state of the job's first answer, if its programs name it and it is not kept already.
  void keep(Job& job);
  // Keeps the state in which a request leaves its session.
  void keep_session(const Job& job);
  // Lets an answer begin with the snapshot that its job asks for, as if it had been parked there.
  // False: there is no such snapshot.
  bool place(const Job& job, const ProgramList& programs, std::uint32_t token_capacity, Answer& to);

  bool drop_last();                       // the least recently used; false: there is none
  void drop(std::optional<RootId> root);  // of one root, or all

 private:
  struct Snapshot {
    RootId root;
    std::string name, salt, producer;
    std::vector<TokenId> tokens;
    Sequence sequence;
    ProgramList programs;
    std::uint64_t bytes;
  };
  Snapshot* find(const Job& job, const std::string& name);
  void add(const Job& job, const std::string& name);
  bool place(const Job& job, const std::string& name, std::uint32_t token_capacity, Answer& to);

  Runtime& runtime_;
  std::deque<Snapshot> all_;  // last used first
};

}  // namespace quire
