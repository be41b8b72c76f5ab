#include "kv/tier/redis_reply.h"

#include <algorithm>
#include <charconv>

namespace quire {

void RedisReader::feed(std::span<const std::byte> bytes) {
  if (used_ > 0 && (used_ == buffer_.size() || used_ > (std::size_t{1} << 20))) {
    buffer_.erase(0, used_);
    needed_ -= std::min(needed_, used_);
    used_ = 0;
  }
  if (buffer_.size() - used_ + bytes.size() > kBytesMax + (std::size_t{1} << 20)) broken_ = true;
  if (!broken_) buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<RedisReply> RedisReader::next() {
  if (broken_ || used_ == buffer_.size() || buffer_.size() < needed_) return std::nullopt;
  RedisReply reply;
  std::size_t at = used_;
  needed_ = 0;
  if (!read(at, 0, reply)) return std::nullopt;
  used_ = at;
  return reply;
}

bool RedisReader::line(std::size_t& at, std::string_view& text) {
  const std::string_view all(buffer_);
  const std::size_t end = all.substr(at, kLineMax + 2).find("\r\n");
  if (end == all.npos) {
    if (all.size() - at > kLineMax) broken_ = true;
    return false;
  }
  text = all.substr(at, end);
  at += end + 2;
  return true;
}

bool RedisReader::number(std::string_view text, std::int64_t least, std::int64_t most,
                         std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most)
    return true;
  broken_ = true;
  return false;
}

bool RedisReader::read(std::size_t& at, int depth, RedisReply& reply) {
  if (at >= buffer_.size()) return false;
  const char kind = buffer_[at];
  std::size_t after = at + 1;
  std::string_view text;
  if (!line(after, text)) return false;
  std::int64_t count = 0;
  switch (kind) {
    case '+':
    case '-':
      reply = {.kind = kind == '+' ? RedisReply::Kind::text : RedisReply::Kind::error,
               .text = std::string(text)};
      break;
    case ':':
      if (!number(text, INT64_MIN, INT64_MAX, reply.integer)) return false;
      reply.kind = RedisReply::Kind::integer;
      break;
    case '$': {
      if (!number(text, -1, static_cast<std::int64_t>(kBytesMax), count)) return false;
      if (count < 0) break;  // nothing
      const auto size = static_cast<std::size_t>(count);
      if (buffer_.size() - after < size + 2) {
        needed_ = after + size + 2;
        return false;
      }
      if (buffer_.compare(after + size, 2, "\r\n") != 0) return !(broken_ = true);
      reply.kind = RedisReply::Kind::bytes;
      reply.text.assign(buffer_, after, size);
      after += size + 2;
      break;
    }
    case '*': {
      if (depth == kDepthMax) return !(broken_ = true);
      if (!number(text, -1, static_cast<std::int64_t>(kListMax), count)) return false;
      if (count < 0) break;
      reply.kind = RedisReply::Kind::list;
      for (std::int64_t i = 0; i < count; ++i)
        if (!read(after, depth + 1, reply.list.emplace_back())) return false;
      break;
    }
    default:
      return !(broken_ = true);
  }
  at = after;
  return true;
}

}  // namespace quire
