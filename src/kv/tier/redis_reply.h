// kv/tier/redis_reply.h - a reply of Redis (RESP 2), read as its bytes arrive.
//
// https://redis.io/docs/latest/develop/reference/protocol-spec/ defines the bytes. Lengths are
// bounded before memory is taken for them. How the bytes are cut into reads makes no difference.
//
//   RedisReader reader;
//   reader.feed(bytes);
//   while (auto reply = reader.next()) ...      // none: more bytes are needed, or broken()
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quire {

struct RedisReply {
  enum class Kind : std::uint8_t { text, error, integer, bytes, nothing, list };
  Kind kind = Kind::nothing;
  std::int64_t integer = 0;
  std::string text = {};  // text, error and bytes
  std::vector<RedisReply> list = {};

  bool operator==(const RedisReply&) const = default;
};

class RedisReader {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{256} << 20;  // of one string
  static constexpr std::size_t kListMax = 1 << 16, kLineMax = 4096;
  static constexpr int kDepthMax = 8;

  void feed(std::span<const std::byte> bytes);
  std::optional<RedisReply> next();
  bool broken() const { return broken_; }  // these are no replies; nothing more will come

 private:
  // False: more bytes are needed, or it is broken.
  bool read(std::size_t& at, int depth, RedisReply& reply);
  bool line(std::size_t& at, std::string_view& text);
  bool number(std::string_view text, std::int64_t least, std::int64_t most, std::int64_t& value);

  std::string buffer_;
  std::size_t used_ = 0;    // of the buffer, by replies that were given out
  std::size_t needed_ = 0;  // of the buffer, before trying again makes sense
  bool broken_ = false;
};

}  // namespace quire
