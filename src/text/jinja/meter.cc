#include "text/jinja/meter.h"

#include <utility>

#include "base/stop.h"

namespace quire::jinja {
namespace {
thread_local Meter* current_meter = nullptr;

[[noreturn]] void fail_memory() {
  throw Failure{Code::exhausted, "the chat template takes more memory than allowed"};
}
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
  const std::size_t left = current_meter->bytes_left;
  if (more > left || bytes > left - more) fail_memory();
  charge_copy(more);
}

void charge_bytes(std::size_t bytes) { charge_growth(0, bytes); }

void take_memory(std::size_t bytes) {
  if (!current_meter) return;
  if (bytes > current_meter->bytes_left) fail_memory();
  current_meter->bytes_left -= bytes;
}

void give_memory(std::size_t bytes) noexcept {
  if (current_meter) current_meter->bytes_left += bytes;
}

}  // namespace quire::jinja
