// engine/snapshots.h - what programs leave of a text at a point where that depends on nothing that
// follows: requests that begin with the same tokens and ask for the same go on from there.
//
// A program names such a state (Program::snapshot_name), and names the one that it could start from
// (Program::wanted_snapshot). The engine keeps a few, and drops them before anything else when memory
// is short.
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
  // Lets an answer begin with a snapshot of what its job asks for, as if it had been parked there.
  // False: there is none.
  bool place(const Job& job, const ProgramList& programs, std::uint32_t token_capacity, Answer& to);

  bool drop_last();                       // the least recently used; false: there is none
  void drop(std::optional<RootId> root);  // of one root, or all

 private:
  struct Snapshot {
    RootId root;
    std::string name, salt;
    std::vector<TokenId> tokens;
    Sequence sequence;
    ProgramList programs;
    std::uint64_t bytes;
  };
  Snapshot* find(const Job& job, const std::string& name);

  Runtime& runtime_;
  std::deque<Snapshot> all_;  // last used first
};

}  // namespace quire
