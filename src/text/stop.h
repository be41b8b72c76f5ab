// text/stop.h - finds stop strings in a stream of text, across the edges of tokens.
//
// Text goes in as it is made and comes out as soon as it cannot be part of a stop string; the rest
// is held back. The stop string that ends first wins (of those that end together, the longest), and
// nothing of it or after it is emitted. One pass over the text, whatever the strings (Aho and
// Corasick's automaton).
//
//   TRY(StopStrings stops, StopStrings::create({"\nUser:", "###"}));  // once per request
//   StopMatcher matcher(stops);                                      // once per sequence
//   std::string out;
//   if (auto hit = matcher.add(text, out)) return finish_at(*hit);   // which string matched
//   matcher.finish(out);                                             // the end: emit what was held
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

class StopStrings {
 public:
  static constexpr std::size_t kCountMax = 16, kBytesMax = 256;

  StopStrings() : StopStrings(std::span<const std::string>{}) {}  // none: everything passes
  static Result<StopStrings> create(std::span<const std::string> strings);

 private:
  friend class StopMatcher;
  struct State {
    std::array<std::uint16_t, 256> next{};
    std::uint16_t depth = 0;  // bytes of a stop string's beginning that the text ends with
    std::int16_t match = -1;  // the longest stop string that the text ends with
    std::uint16_t match_bytes = 0;
  };
  explicit StopStrings(std::span<const std::string> strings);
  std::vector<State> states_;
};

class StopMatcher {
 public:
  explicit StopMatcher(const StopStrings& stops) : stops_(&stops) {}  // stops outlives this

  // Appends what may be emitted now. Returns the index of a stop string if the text has reached
  // one; the stream is then over.
  std::optional<std::size_t> add(std::string_view text, std::string& out);
  void finish(std::string& out);
  std::size_t held() const { return held_.size(); }

 private:
  const StopStrings* stops_;
  std::string held_;  // a beginning of some stop string
  std::uint16_t state_ = 0;
};

}  // namespace quire
