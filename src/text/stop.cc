#include "text/stop.h"

#include <fmt/format.h>

#include <deque>

#include "text/utf8.h"

namespace quire {

Result<StopStrings> StopStrings::create(std::span<const std::string> strings) {
  if (strings.size() > kCountMax)
    return Error{Code::invalid,
                 fmt::format("{} stop strings; at most {} are allowed", strings.size(), kCountMax)};
  for (std::size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) return Error{Code::invalid, fmt::format("stop string {} is empty", i)};
    if (strings[i].size() > kBytesMax)
      return Error{Code::invalid, fmt::format("stop string {} has {} bytes; at most {} are allowed",
                                              i, strings[i].size(), kBytesMax)};
    if (!utf8_valid(strings[i]))
      return Error{Code::invalid, fmt::format("stop string {} is not UTF-8", i)};
  }
  return StopStrings(strings);
}

StopStrings::StopStrings(std::span<const std::string> strings) : states_(1) {
  for (std::size_t i = 0; i < strings.size(); ++i) {
    std::uint16_t state = 0;
    for (const char c : strings[i]) {
      const auto byte = static_cast<unsigned char>(c);
      if (states_[state].next[byte] == 0) {
        states_[state].next[byte] = static_cast<std::uint16_t>(states_.size());
        states_.push_back({.depth = static_cast<std::uint16_t>(states_[state].depth + 1)});
      }
      state = states_[state].next[byte];
    }
    if (states_[state].match >= 0) continue;  // given twice: the first index is reported
    states_[state].match = static_cast<std::int16_t>(i);
    states_[state].match_bytes = states_[state].depth;
  }
  // Breadth first: a state without an edge takes the one of the longest shorter ending that is also
  // a beginning.
  std::vector<std::uint16_t> shorter(states_.size(), 0);
  std::deque<std::uint16_t> queue;
  for (const std::uint16_t child : states_[0].next)
    if (child != 0) queue.push_back(child);
  while (!queue.empty()) {
    const std::uint16_t state = queue.front();
    queue.pop_front();
    const State& fallback = states_[shorter[state]];
    if (states_[state].match < 0) {
      states_[state].match = fallback.match;
      states_[state].match_bytes = fallback.match_bytes;
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::uint16_t& next = states_[state].next[byte];
      if (next == 0) {
        next = fallback.next[byte];
      } else {
        shorter[next] = fallback.next[byte];
        queue.push_back(next);
      }
    }
  }
}

std::optional<std::size_t> StopMatcher::add(std::string_view text, std::string& out) {
  const auto& states = stops_->states_;
  if (states.size() == 1) {
    out += text;
    return std::nullopt;
  }
  held_ += text;
  for (std::size_t i = held_.size() - text.size(); i < held_.size(); ++i) {
    state_ = states[state_].next[static_cast<unsigned char>(held_[i])];
    const StopStrings::State& state = states[state_];
    if (state.match < 0) continue;
    out += std::string_view(held_).substr(0, i + 1 - state.match_bytes);
    held_.clear();
    state_ = 0;
    return static_cast<std::size_t>(state.match);
  }
  const std::size_t free = held_.size() - states[state_].depth;
  out += std::string_view(held_).substr(0, free);
  held_.erase(0, free);
  return std::nullopt;
}

void StopMatcher::finish(std::string& out) {
  out += held_;
  held_.clear();
  state_ = 0;
}

}  // namespace quire
