#include "server/ids.h"

#include <sys/random.h>

#include "base/check.h"

namespace quire {

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  CHECK(::getrandom(&value, sizeof value, 0) == sizeof value);
  return value;
}

std::string random_hex(std::size_t digits) {
  std::string out;
  while (out.size() < digits) {
    std::uint64_t bits = random_u64();
    for (int i = 0; i < 16 && out.size() < digits; ++i, bits >>= 4)
      out.push_back("0123456789abcdef"[bits & 15]);
  }
  return out;
}

}  // namespace quire
