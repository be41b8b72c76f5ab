// server/live_fuzzing.h - a whole server on a tiny model for fuzzers, and choices out of their bytes.
//
//   LiveServer& live = LiveServer::get();      // started once, lives as long as the process
//   Chooser pick(data, size);
//   pick.of({"GET", "POST"});                  // the next byte decides; the first when none is left
//   live.check_cost(began);                    // of one input: time and memory
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/tiny.h"
#include "server/server.h"

namespace quire {

class Chooser {
 public:
  Chooser(const std::uint8_t* data, std::size_t size) : data_(data), end_(data + size) {}
  std::uint32_t below(std::uint32_t n) { return data_ == end_ || n == 0 ? 0 : *data_++ % n; }
  bool chance(std::uint32_t one_in) { return below(one_in) == one_in - 1; }
  bool empty() const { return data_ == end_; }
  template <class T>
  T of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<std::uint32_t>(list.size()))];
  }

 private:
  const std::uint8_t* data_;
  const std::uint8_t* end_;
};

class LiveServer {
 public:
  static LiveServer& get() {
    static LiveServer* const live = new LiveServer();  // never stopped: the process just ends
    return *live;
  }

  Server& server() { return *server_; }

  // One input may take neither long nor memory that stays.
  void check_cost(std::chrono::steady_clock::time_point began) {
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
    if (++inputs_ % 64 != 0) return;  // asking costs as much as some inputs
    if (inputs_ == 256) settled_ = resident();
    if (inputs_ > 256) CHECK(resident() < settled_ + (std::uint64_t{256} << 20));
  }

 private:
  LiveServer() {
    const std::string path = "/tmp/quire_fuzz_" + std::to_string(::getpid()) + ".gguf";
    CHECK(write_tiny_gguf(path, {.layers = 2, .context = 256}).ok());
    auto runtime =
        Runtime::open(path, {.threads = 1, .tokens_per_block = 16, .kv_cache_bytes = 2 << 20});
    CHECK(runtime.ok());
    auto service = Service::start(std::move(runtime.value()), {.queue_max = 64});
    CHECK(service.ok());
    ServerOptions options;
    options.models = {"m"};
    options.trust_templates = true;
    auto server = Server::start(std::move(service.value()), std::move(options));
    CHECK(server.ok());
    server_ = std::move(server.value());
    std::remove(path.c_str());
  }

  static std::uint64_t resident() {
    std::ifstream statm("/proc/self/statm");
    std::uint64_t total = 0, pages = 0;
    statm >> total >> pages;
    return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }

  std::unique_ptr<Server> server_;
  std::uint64_t inputs_ = 0, settled_ = 0;
};

}  // namespace quire
