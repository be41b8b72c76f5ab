// server/kv_events.h - what the cache does, as server-sent events that can be resumed.
//
// Every fifth of a second each open stream copies the new records of the cache's journal. A stream
// whose client is slow falls behind, but loses nothing until the journal has overwritten the
// records that it needs. Then it gets an event that tells how many are missing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kv/journal.h"
#include "server/server.h"

namespace quire {

struct EventStream {
  std::shared_ptr<Call> call;
  std::set<std::string, std::less<>> types;  // empty: all
  std::uint64_t next = 0;                    // record it wants next
  bool from_now = true;
  bool fetching = false, paused = false;
};

class EventPump {
 public:
  explicit EventPump(Server& server);
  ~EventPump();

  void add(std::shared_ptr<EventStream> stream);      // connection's thread
  void end_all();                                     // any thread: the server shuts down
  std::uint64_t dropped() const { return dropped_; }  // events lost in gaps

 private:
  void loop();
  void fetch(const std::shared_ptr<EventStream>& stream);

  Server& server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<EventStream>> streams_;
  bool stopping_ = false;
  std::atomic<std::uint64_t> dropped_{0};
  std::thread thread_;
};

// The type of a record as subscribers name it: stored, removed, hit, miss, pinned, moved,
// request...
std::string_view event_type(Reason reason);

}  // namespace quire
