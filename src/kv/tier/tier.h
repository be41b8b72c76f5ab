// kv/tier/tier.h - a place for sealed blocks outside the arena: host memory, disk, store, peer.
//
// Every call returns at once and is made by the engine thread; nothing in it waits, locks or
// touches a file. The work happens elsewhere; its end arrives in a Mailbox (kv/tier/mailbox.h), and
// the engine thread runs the Done functions when it drains that. A tier answers every call, also
// when it is closed, failing or being destroyed. What it cannot give is a miss with a reason, never
// an error of a request.
//
//   tier.find(names, [&](std::span<const std::uint8_t> there) { ... });
//   tier.read(reads, [&](std::span<const ReadEnd> ends, bool last) { ... });   // layer by layer
//   mailbox.drain();                                                          // at a step's start
//
// A kind of tier is one file and one line in tier_kinds() (kv/tier/tiers.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/tier/record.h"

namespace quire {

enum class TierOutcome : std::uint8_t {
  ok,
  absent,     // not there, or not any more
  corrupt,    // there, but not what was written, or another block; it has been erased
  failed,     // the tier is closed, or its disk or network said no
  full,       // write: no room for it
  already,    // write: it is there
  cancelled,  // the tier is being destroyed
};
std::string_view tier_outcome_name(TierOutcome outcome);

// Position in a list of tiers, the fastest first.
using TierPlace = std::uint8_t;
inline constexpr TierPlace kNowhere = 0xff;

struct TierTraits {
  std::string_view name;             // on the wire and in metrics: "cpu", "disk", "remote", "peer"
  bool shared = false;               // others can read or write: records are sealed
  bool durable = false;              // survives a restart
  std::uint64_t capacity_bytes = 0;  // 0: not ours to bound
};

// One segment of a record, straight into reserved memory. The memory belongs to the tier until the
// ReadDone that names this read.
struct SegmentRead {
  std::shared_ptr<const RecordIdentity> of;  // compared with the record's head
  std::uint32_t segment = 0;                 // number in the record
  std::span<std::byte> to = {};
  std::string tenant = {};  // for tiers that seal; as it was written
  TierPlace place = 0;      // which of a link's tiers it is read from (kv/tier/tier_link.h)
};

// A whole block. The memory is only read; it may not change until WriteDone.
struct RecordWrite {
  std::shared_ptr<const RecordIdentity> of;
  std::vector<RecordSegment> segments = {};
  std::vector<std::span<const std::byte>> bytes = {};  // of each segment
  std::uint32_t recompute_us = 0;                      // what the block cost to compute
  std::string tenant = {};                             // for tiers that seal
};

struct ReadEnd {
  std::uint32_t read;  // position in the batch
  TierOutcome outcome;
};

// One byte per name, 1 if a record of this name is there now. It may be gone when it is read.
using FindDone = std::function<void(std::span<const std::uint8_t> there)>;
// Called once or more. Every read ends once; `last` says that all have ended.
using ReadDone = std::function<void(std::span<const ReadEnd> ends, bool last)>;
using WriteDone = std::function<void(std::span<const TierOutcome> ends)>;

// Measured; moving averages, kept over restarts by durable tiers.
struct TierCost {
  double first_byte_s = 0, bytes_per_s = 0;  // 0: not known yet
  std::uint64_t queued_bytes = 0;            // of reads that have not ended
};

struct TierStats {
  std::uint64_t open = 1;                           // 0: it closed itself
  std::uint64_t records = 0, stored_bytes = 0;      // now
  std::uint64_t read_segments = 0, read_bytes = 0;  // since the start, as all below
  std::uint64_t written_records = 0, written_bytes = 0;
  std::uint64_t absent = 0, corrupt = 0, failed = 0, refused = 0;
  std::uint64_t reclaimed_records = 0, closings = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;
  virtual const TierTraits& traits() const = 0;
  virtual void find(std::span<const RecordName> names, FindDone done) = 0;
  virtual void read(std::span<const SegmentRead> reads, ReadDone done) = 0;
  virtual void write(std::span<const RecordWrite> writes, WriteDone done) = 0;
  virtual void erase(std::span<const RecordName> names) = 0;
  virtual void clear() = 0;  // all records
  // Everything written before this is durable when `done` runs.
  virtual void flush(std::function<void()> done) = 0;
  virtual TierCost cost() const = 0;
  virtual TierStats stats() const = 0;
};

}  // namespace quire
