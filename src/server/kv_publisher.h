// server/kv_publisher.h - KV events over ZeroMQ, as vLLM, SGLang, Dynamo and llm-d have them.
//
// A thread of its own looks at the cache's journal twenty times a second, on the engine thread and only
// as long as copying takes, and publishes what changed as numbered batches. If the journal has gone
// over itself meanwhile, it looks at the whole cache instead: subscribers never miss a block for long.
// A replay is answered with a snapshot under the number that was asked for and empty batches after it,
// at the pace of the one who asked.
//
//   TRY(auto publisher, KvPublisher::start(service, {.endpoint = "tcp://*:5557"}));
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/json.h"
#include "engine/service.h"
#include "server/block_mirror.h"

namespace quire {

struct KvEventsOptions {
  std::string endpoint;         // --kv-events; empty: off
  std::string replay = {};      // --kv-events-replay; empty: none
  std::string topic = {};       // --kv-events-topic; by default kv@HOST:PORT@MODEL
  std::string state = {};       // --kv-events-state: where numbers are kept; empty: nowhere
  std::string curve_file = {};  // --kv-events-curve: holds the secret key; empty: no encryption
  EventForm form = EventForm::map;
  bool open = false;           // --kv-events-public: other machines may listen
  int messages_max = 100'000;  // that wait for a subscriber

  // What vLLM calls --kv-events-config; only fields that are there change.
  Status take_config(const std::string& json);
};

class KvPublisher {
 public:
  static Result<std::unique_ptr<KvPublisher>> start(Service& service,
                                                    const KvEventsOptions& options);
  ~KvPublisher();  // before the service ends

  Json sources() const;                               // /kv_event_sources
  std::uint64_t dropped() const { return dropped_; }  // journal records that it could not read

 private:
  struct Inside;
  explicit KvPublisher(std::unique_ptr<Inside> inside);
  void loop();

  std::unique_ptr<Inside> inside_;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace quire
