// kv/tier/mailbox.h - functions that any thread posts and one thread runs.
//
// Posting is one compare-and-swap; draining takes the whole list with one exchange. There is no
// lock, so no poster waits for the reader or for another poster. What is posted by one thread runs
// in its order.
//
//   Mailbox mailbox([&] { engine.wake(); });        // called after a post; may be empty
//   mailbox.post([done, result] { done(result); }); // any thread
//   mailbox.drain();                                // the engine thread, at the start of a step
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <utility>

namespace quire {

class Mailbox {
 public:
  using Letter = std::function<void()>;

  explicit Mailbox(std::function<void()> posted = {}) : posted_(std::move(posted)) {}
  Mailbox(const Mailbox&) = delete;
  ~Mailbox() {  // what was not read is not run
    for (Node* n = newest_.exchange(nullptr); n != nullptr;) delete std::exchange(n, n->older);
  }

  void post(Letter letter) {
    Node* const node = new Node{std::move(letter), newest_.load(std::memory_order_relaxed)};
    while (!newest_.compare_exchange_weak(node->older, node, std::memory_order_release,
                                          std::memory_order_relaxed)) {
    }
    if (posted_) posted_();
  }

  // Runs what was posted before this call, oldest first; how many there were.
  std::size_t drain() {
    Node* oldest = nullptr;
    for (Node* n = newest_.exchange(nullptr, std::memory_order_acquire); n != nullptr;) {
      Node* const older = std::exchange(n->older, oldest);
      oldest = std::exchange(n, older);
    }
    std::size_t count = 0;
    for (; oldest != nullptr; ++count) {
      oldest->letter();
      delete std::exchange(oldest, oldest->older);
    }
    return count;
  }

  bool empty() const { return newest_.load(std::memory_order_acquire) == nullptr; }

 private:
  struct Node {
    Letter letter;
    Node* older;  // while being drained: the next newer one
  };
  std::atomic<Node*> newest_{nullptr};
  std::function<void()> posted_;
};

}  // namespace quire
