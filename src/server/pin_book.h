// server/pin_book.h - which pins were made over HTTP, by whom, under which label. The cache holds
// the pins themselves.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/auth.h"

namespace quire {

class PinBook {
 public:
  struct Pin {
    std::string label, tenant;
  };

  void add(std::uint64_t number, Pin pin) {
    std::lock_guard lock(mutex_);
    pins_[number] = std::move(pin);
  }
  void remove(std::uint64_t number) {
    std::lock_guard lock(mutex_);
    pins_.erase(number);
  }
  // Administrators see all of them, others those of their tenant.
  std::optional<Pin> find(std::uint64_t number, const Caller& caller) const {
    std::lock_guard lock(mutex_);
    const auto at = pins_.find(number);
    if (at == pins_.end() || !may_see(caller, at->second)) return std::nullopt;
    return at->second;
  }
  std::vector<std::pair<std::uint64_t, Pin>> all(const Caller& caller) const {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<std::uint64_t, Pin>> out;
    for (const auto& [number, pin] : pins_)
      if (may_see(caller, pin)) out.emplace_back(number, pin);
    return out;
  }

 private:
  static bool may_see(const Caller& caller, const Pin& pin) {
    return caller.admin || caller.tenant == pin.tenant;
  }
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Pin> pins_;
};

}  // namespace quire
