// kv/tier/tier_link.h - between the cache and its tiers: blocks go down, and come back.
//
// The engine thread owns it. It takes blocks that the cache offers (kv/below.h), copies them, and has
// them named and written by others. What is under way is bounded; beyond that it takes no more. For
// blocks that come back it asks the tiers, and tells what a load would cost. Nothing here waits, but
// for flush().
//
// Tiers are listed with the fastest first, and known by their place in the list. A block is written
// to all of them. The first one sets the pace: others get what their queues have room for. Each says
// for itself what it has, so that one which does not answer hides nothing that another one has.
//
//   TRY(auto link, TierLink::open({.write = TierWrite::automatic}, [&](Mailbox& m) { ... }));
//   TRY_STATUS(link->add([&](Mailbox& m) { ... }));                 // a second one
//   cache_options.below = link.get();
//   link->drain([&](const BlockKey& key, std::uint32_t group) { cache.not_below(key, group); });
//   link->find(0, names, [](std::span<const std::uint8_t> there) { ... });
//
// It ends before its cache, and after whoever asked it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "kernels/geometry.h"
#include "kv/below.h"
#include "kv/tier/courier.h"
#include "kv/tier/mailbox.h"
#include "kv/tier/tier.h"

namespace quire {

// When a block is written.
enum class TierWrite : std::uint8_t {
  automatic,  // when it is sealed, while there is room; then if it is used again, or was when it leaves
  always,   // when it is sealed
  reused,   // when it is hit first
  evicted,  // when it leaves memory
  never,
};
Result<TierWrite> find_tier_write(std::string_view name);  // "auto", "always", ...

struct TierLinkOptions {
  TierWrite write = TierWrite::automatic;
  std::uint64_t queue_bytes = std::uint64_t{64} << 20;  // copied, and not written yet
  Courier::Way way = Courier::Way::thread;
  const Clock* clock = nullptr;  // none: the machine's
};

// One direction of what moved.
struct TierTraffic {
  std::uint64_t blocks = 0, bytes = 0;
  Histogram seconds;  // of a batch
  TierTraffic();
};

struct TierLinkStats {
  std::string_view name;
  std::uint64_t capacity_bytes = 0;
  TierStats tier;
  TierCost cost;
  TierTraffic down, up;
  std::uint64_t write_queue_bytes = 0, refused_blocks = 0;  // no room in the queue
  std::uint64_t failed_loads = 0;                           // blocks
};

class TierLink final : public Below {
 public:
  using Opener = std::function<Result<std::unique_ptr<Tier>>(Mailbox& mailbox)>;
  static Result<std::unique_ptr<TierLink>> open(const TierLinkOptions& options,
                                                const Opener& opener);
  Status add(const Opener& opener);  // a slower one; before the first block
  ~TierLink() override;

  TierPlace tiers() const { return static_cast<TierPlace>(places_.size()); }
  Tier& tier(TierPlace place = 0) { return *places_[place].tier; }
  const TierTraits& traits(TierPlace place = 0) const { return places_[place].tier->traits(); }

  // The name is made with the secret that keys are made with.
  void set_secret(const KeySecret& secret) { secret_ = secret; }
  static RecordIdentity identity(const KeySecret& secret, const BlockKey& key, const Digest& layout,
                                 std::span<const TokenId> tokens, std::uint32_t group);
  // How a block of this group is cut; the same for writing and reading.
  static std::vector<RecordSegment> segments(const Geometry& geometry, std::uint32_t group);

  bool offer(Offer why, const OfferedBlock& block) override;
  // Takes a block whatever the options say, and tells the fastest tier that has it then (kNowhere:
  // none). False: the queue has no room now.
  using Kept = std::function<void(TierPlace)>;
  bool keep(const OfferedBlock& block, Kept kept);
  void send();  // what was taken since; after every step

  // What has ended since: runs the functions below. `lost` hears of blocks that were taken and could
  // not be written. True: there was something.
  bool drain(const std::function<void(const BlockKey&, std::uint32_t)>& lost);
  void find(TierPlace place, std::span<const RecordName> names, FindDone done) {
    tier(place).find(names, std::move(done));
  }
  void read(std::span<const SegmentRead> reads, const ReadDone& done);  // each from its place
  void load_failed(TierPlace place) { ++places_[place].failed_loads; }  // a block of it
  TierCost cost(TierPlace place = 0) const { return places_[place].tier->cost(); }
  std::uint64_t reads_in_flight() const { return reads_in_flight_; }
  void clear();                            // forgets all that is stored in places of our own
  void erase(std::vector<BlockKey> keys);  // and these, in all their groups

  // Waits until what was taken is written and durable, at most this long. False: it is not.
  bool flush(Nanoseconds limit);
  std::uint64_t write_queue_bytes() const { return places_[0].queued_bytes + batch_bytes_; }
  bool writes() const;  // something of what was taken is not written yet, somewhere
  std::uint64_t queue_max() const { return options_.queue_bytes; }
  void need_queue(std::uint64_t bytes) {  // at least
    if (bytes > options_.queue_bytes) options_.queue_bytes = bytes;
  }

  TierLinkStats stats(TierPlace place = 0) const;

 private:
  struct Place {
    std::unique_ptr<Tier> tier;
    bool open = true;                // when drain() last looked
    std::uint64_t queued_bytes = 0;  // sent, and not written yet
    std::uint64_t refused = 0, failed_loads = 0;
    TierTraffic down = {}, up = {};
  };
  struct Parcel {  // a block on its way down
    BlockKey key;
    Digest layout;
    std::uint32_t group;
    std::vector<TokenId> tokens;
    std::shared_ptr<const std::vector<RecordSegment>> segments;
    std::unique_ptr<std::byte[]> bytes;
    std::uint64_t size;
    std::uint32_t recompute_us;
    std::string tenant;
    Kept kept = {};
  };
  struct Batch {
    std::vector<Parcel> parcels = {};
    std::uint64_t bytes = 0;
    Nanoseconds since = 0;
    std::vector<TierPlace> to = {};
    // The engine thread's, as answers come.
    std::size_t answers = 0;
    std::vector<std::uint8_t> kept = {};  // by parcel: somebody has it
    std::vector<TierPlace> at = {};       // by parcel: the fastest that has it
  };

  explicit TierLink(const TierLinkOptions& options);
  bool wanted(Offer why, const OfferedBlock& block) const;
  bool take(const OfferedBlock& block, Kept kept);
  std::shared_ptr<const std::vector<RecordSegment>> segments_of(const CacheLayout& layout,
                                                                std::uint32_t group);
  void written(Batch& batch, TierPlace place, std::span<const TierOutcome> ends);
  void read_at(TierPlace place, std::span<const SegmentRead> reads, ReadDone done);

  TierLinkOptions options_;
  SteadyClock steady_;
  const Clock& clock_;
  Mailbox mailbox_;
  std::vector<Place> places_;
  bool shared_ = false;  // one of them is: tenants are told
  KeySecret secret_ = KeySecret::random();
  std::vector<Parcel> batch_;
  std::uint64_t batch_bytes_ = 0, reads_in_flight_ = 0;
  std::map<std::pair<std::uint64_t, std::uint32_t>,
           std::shared_ptr<const std::vector<RecordSegment>>>
      segments_;  // by geometry's serial and group
  std::vector<std::pair<BlockKey, std::uint32_t>> lost_;
  std::unique_ptr<Courier> courier_;  // uses the others: ends first
};

}  // namespace quire
