// text/jinja/meter.h - what a render may still use. Everything whose cost grows with a string or a
// list charges it, so that no operation is free.
//
//   Meter meter{5'000'000, 64 << 20};
//   MeterScope scope(meter);          // of this thread, until the end of the scope
//   charge(1);                        // throws Failure when nothing is left
//
// A step is about 100 ns: a node of the template, 64 bytes that are copied or compared, 16 that are
// looked at one by one. A render is also given up where base/stop.h says so.
#pragma once

#include <cstddef>
#include <string>

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
  std::size_t bytes_max;  // of any one string, the output included
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

}  // namespace quire::jinja
