// kv/tier/value_store.h - named values in a place that several machines share: a folder, Redis, S3.
//
// Calls take batches and wait for the answer; those over a network have a deadline for making no
// progress. An error means that the place does not work now. A value that is not there is no error.
// A StoreTier (kv/tier/store_tier.h) gives each of its threads a ValueStore of its own, seals what it stores and
// verifies what it gets, so a ValueStore may lose, damage or mix up values without harm. A place that
// is full says `exhausted`: it works, and can be read.
//
//   TRY(auto store, open_folder_store("/mnt/kv", {}));
//   TRY_STATUS(store->put({{{"a1b2", bytes}}}));
//   TRY_STATUS(store->get(names, [&](std::size_t which, std::span<const std::byte> value) { ... }));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace quire {

struct NamedValue {
  std::string name;  // hexadecimal digits
  std::span<const std::byte> value;
};

class ValueStore {
 public:
  using Got = std::function<void(std::size_t which, std::span<const std::byte> value)>;

  virtual ~ValueStore() = default;
  // Called whenever something of a call has been done. For kinds whose calls have no deadline of
  // their own: the system's calls on a mounted folder, for one, may never come back.
  void when_it_moves(std::function<void()> moved) { moved_ = std::move(moved); }

  virtual Status contains(std::span<const std::string> names, std::span<std::uint8_t> there) = 0;
  // Calls `got` for each value that is there, in any order; the bytes are valid during the call.
  virtual Status get(std::span<const std::string> names, const Got& got) = 0;
  virtual Status put(std::span<const NamedValue> values) = 0;
  virtual Status erase(std::span<const std::string> names) = 0;

 protected:
  void moved() const {
    if (moved_) moved_();
  }

 private:
  std::function<void()> moved_;
};

inline constexpr std::uint64_t kStoredValueMax = std::uint64_t{256}
                                                 << 20;  // a longer one is no record

using OpenValueStore = std::function<Result<std::unique_ptr<ValueStore>>()>;

}  // namespace quire
