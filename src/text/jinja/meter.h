// text/jinja/meter.h - what a render may still use. Everything whose cost grows with a string or a
// list charges it, so that no operation is free.
//
//   Meter meter{.steps_left = 5'000'000, .bytes_left = 16 << 20};
//   MeterScope scope(meter);          // of this thread, until the end of the scope
//   charge(1);                        // throws Failure when nothing is left
//
// A step is about 100 ns: a node of the template, 64 bytes that are copied or compared, 16 that are
// looked at one by one. A render is also given up where base/stop.h says so.
//
// Memory is counted where it is allocated: strings and lists of values use the allocator `Counted`,
// so what a template holds at any time is bounded, not what it ever made.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire::jinja {

// What ends a render early. Thrown and caught inside this module only.
struct Failure {
  Code code;
  std::string message;
  bool own_words = false;  // raise_exception's: the message is handed on as it is
};

struct Meter {
  std::size_t steps_left;
  std::size_t bytes_left;  // of memory that values may take besides what they take now
};
class MeterScope {
 public:
  explicit MeterScope(Meter& meter);
  ~MeterScope();
  MeterScope(const MeterScope&) = delete;

 private:
  Meter* outer_;
};
void charge(std::size_t steps);
void charge_copy(std::size_t bytes);                      // copied, compared or searched
void charge_scan(std::size_t bytes);                      // looked at one by one
void charge_bytes(std::size_t bytes);                     // call before making a string this long
void charge_growth(std::size_t bytes, std::size_t more);  // before making one longer

void take_memory(std::size_t bytes);  // throws Failure when too much is held
void give_memory(std::size_t bytes) noexcept;

// Counts what it allocates. What was allocated outside a MeterScope, such as the constants of a
// template, is not counted.
template <class T>
struct Counted {
  using value_type = T;
  Counted() = default;
  template <class U>
  Counted(const Counted<U>&) {}  // NOLINT: allocators convert
  T* allocate(std::size_t n) {
    take_memory(n * sizeof(T));
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, std::size_t n) {
    give_memory(n * sizeof(T));
    std::allocator<T>().deallocate(p, n);
  }
  template <class U>
  bool operator==(const Counted<U>&) const {
    return true;
  }
};
template <class T>
using Vector = std::vector<T, Counted<T>>;
template <class T, class... Args>
std::shared_ptr<T> make_counted(Args&&... args) {
  return std::allocate_shared<T>(Counted<std::remove_const_t<T>>(), std::forward<Args>(args)...);
}

}  // namespace quire::jinja
