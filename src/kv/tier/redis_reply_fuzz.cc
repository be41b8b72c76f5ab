// Replies from the input, fed in parts of any length: the parts make no difference.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kv/tier/redis_reply.h"

using namespace quire;

namespace {

std::vector<RedisReply> replies(std::span<const std::byte> bytes, std::size_t part, bool& broken) {
  RedisReader reader;
  std::vector<RedisReply> all;
  while (true) {
    while (auto reply = reader.next()) all.push_back(std::move(*reply));
    if (bytes.empty()) break;
    const std::size_t some = std::min(part, bytes.size());
    reader.feed(bytes.first(some));
    bytes = bytes.subspan(some);
  }
  broken = reader.broken();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > (1 << 16)) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  bool one = false, two = false;
  const auto whole = replies(bytes, bytes.size() + 1, one);
  const auto parts = replies(bytes, data[0] % 7 + 1u, two);
  CHECK(one == two && whole == parts);
  return 0;
}
