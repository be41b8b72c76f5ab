#include "text/jinja/meter.h"

#include <utility>

#include "base/stop.h"

namespace quire::jinja {
namespace {
thread_local Meter* current_meter = nullptr;
}  // namespace

MeterScope::MeterScope(Meter& meter) : outer_(std::exchange(current_meter, &meter)) {}
MeterScope::~MeterScope() { current_meter = outer_; }

void charge(std::size_t steps) {
  if (!current_meter) return;
  if (steps > current_meter->steps_left || stop_asked())
    throw Failure{Code::exhausted, "the chat template takes more steps than allowed"};
  current_meter->steps_left -= steps;
}

void charge_copy(std::size_t bytes) { charge(bytes / 64); }
void charge_scan(std::size_t bytes) { charge(bytes / 16); }

void charge_growth(std::size_t bytes, std::size_t more) {
  if (!current_meter) return;
  if (more > current_meter->bytes_max || bytes > current_meter->bytes_max - more)
    throw Failure{Code::exhausted, "the chat template makes a string of more than " +
                                       std::to_string(current_meter->bytes_max) + " bytes"};
  charge_copy(more);
}

void charge_bytes(std::size_t bytes) { charge_growth(0, bytes); }

}  // namespace quire::jinja
