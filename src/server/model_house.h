// server/model_house.h - several models behind one port: each is loaded when it is first asked for, and
// its weights leave memory, least recently used first, when others need the room.
//
// Every model that was opened has a Server with a Service of its own; all of them share one cache
// (engine/shared_cache.h), so what was cached for a model is still there when its weights come back. The
// house finds the model that a request names and hands the request to its server. Requests for a model
// that is on its way wait: for one that was never opened here, for one whose weights left in its engine's
// queue.
//
// What a client can make it do is bounded. One thread loads, one model at a time; models that are in
// memory answer meanwhile. A model that was loaded stays for `stay_min`, and four times as long as loading
// it took, so at most a fifth of the time goes to loading. A model that has to leave finishes what it
// answers; its waiting requests wait on. Who waits longest is loaded next.
//
//   TRY(auto house, ModelHouse::start({.models = ..., .open = open_it}, door));
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"

namespace quire {

struct HousedModel {
  std::string name;
  std::string path;
  std::uint64_t bytes = 0;  // of its weights, as its files say
  std::uint32_t context = 0;
  std::int64_t created = 0;  // seconds since 1970
};

struct HouseOptions {
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

  std::vector<HousedModel> models;  // the first one is loaded at once, and answers who names none
  std::uint64_t weights_bytes_max = 0;
  Nanoseconds stay_min = 10'000'000'000;
  std::uint32_t waiting_max = 512;  // requests for a model that was never opened
  std::uint32_t threads = 1;        // that pack weights
  // Loads a model and starts its server behind this door. On the thread that loads.
  std::function<Result<std::unique_ptr<Server>>(std::size_t model, std::shared_ptr<Door> door,
                                                const ServedModels& catalog, const Server* first,
                                                const Progress& progress)>
      open;
  std::function<void(const std::string&)> log = {};  // a line when a model comes or goes
};

class ModelHouse {
 public:
  static Result<std::unique_ptr<ModelHouse>> start(HouseOptions options,
                                                   std::shared_ptr<Door> door);
  ~ModelHouse();

  Server& first() { return *entries_.front().server; }
  std::uint16_t port() const { return door_->http().port(); }
  std::vector<ServedModel> catalog() const;

  // As a Server's, of all of them.
  void drain();
  bool idle() const;
  std::uint64_t requests_seen() const { return door_->http().counters().requests_total; }
  void stop();
  bool quiet_within(std::chrono::milliseconds limit);
  Status reload();
  std::optional<std::string> look_at_model_files();
  Json statistics() const;

 private:
  struct Entry {
    HousedModel model;
    std::unique_ptr<Server> server;        // none: never opened. Set by the loader, never replaced
    std::atomic<Server*> opened{nullptr};  // the same, for all threads
    // The connections' thread's: requests for a model that was never opened.
    std::deque<std::shared_ptr<Exchange>> waiting;

    // Under the mutex.
    ModelState state = ModelState::unloaded;
    std::uint64_t bytes = 0, done_bytes = 0;  // of weights; that are loaded so far
    Nanoseconds used = 0, loaded = 0, load_took = 0, wanted_since = 0, failed = 0;
    bool leaving = false;
    std::string problem;  // why it could not be loaded
  };

  ModelHouse(HouseOptions options, std::shared_ptr<Door> door);
  void handle(std::shared_ptr<Exchange> exchange);
  void route(std::shared_ptr<Exchange> exchange, const std::string& model);
  void wait_for(Entry& entry, std::shared_ptr<Exchange> exchange);
  void release(Entry& entry);  // what waited for it; connections' thread
  Entry* find(std::string_view name);

  void run();
  void look_who_is_wanted(Nanoseconds now);
  bool make_place(Entry& wanted, Nanoseconds now);
  void let_go(Entry& entry);
  void load(Entry& entry);
  Status open(Entry& entry, std::size_t index);
  bool may_leave(const Entry& entry, Nanoseconds now) const;

  HouseOptions options_;
  std::shared_ptr<Door> door_;
  std::deque<Entry> entries_;  // never grows after the start
  SteadyClock clock_;
  WorkPool pool_;  // reads large bodies

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread loader_;
};

}  // namespace quire
