#include "text/special.h"

#include "base/check.h"

namespace quire {

void SpecialMatcher::add(std::string_view spelling, TokenId id) {
  CHECK(!spelling.empty());
  first_.set(static_cast<unsigned char>(spelling[0]));
  std::uint32_t node = 0;
  for (const char byte : spelling) {
    std::uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({.next_sibling = nodes_[node].first_child, .byte = byte});
      nodes_[node].first_child = next;
    }
    node = next;
  }
  nodes_[node].id = id;
}

}  // namespace quire
