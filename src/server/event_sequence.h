// server/event_sequence.h - numbers of KV events, which go on after a restart.
//
// A subscriber that sees numbers start again keeps blocks that are gone and drops new events. So a file
// holds a number that was not used yet. Numbers are reserved 1,024 at a time: after a crash some are
// left out, and none is used twice.
//
//   TRY(EventSequence numbers, EventSequence::open("kv-events.state"));
//   const std::uint64_t n = numbers.take();
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace quire {

class EventSequence {
 public:
  static constexpr std::uint64_t kReserved = 1024;

  static Result<EventSequence> open(
      std::string path);  // empty: numbers start at 0 and are not kept

  std::uint64_t next() const { return next_; }
  std::uint64_t take();                               // uses next()
  const Status& written() const { return written_; }  // whether the last reservation was

 private:
  Status reserve();

  std::string path_;
  std::uint64_t next_ = 0, reserved_ = 0;
  Status written_ = {};
};

}  // namespace quire
