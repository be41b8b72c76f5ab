#include "server/dialect/gemini/cached_contents.h"

#include <fmt/core.h>

#include <charconv>

#include "server/access_log.h"
#include "server/ids.h"

namespace quire::gemini {
namespace {

constexpr std::string_view kPrefix = "cachedContents/";

// Twelve letters and digits: 62 bits that no client knows.
std::string random_name() {
  std::string name(kPrefix);
  std::uint64_t bits = random_u64();
  for (int i = 0; i < 12; ++i, bits /= 36)
    name += "0123456789abcdefghijklmnopqrstuvwxyz"[bits % 36];
  return name;
}

std::string whole_name(std::string_view name) {
  return name.starts_with(kPrefix) ? std::string(name) : std::string(kPrefix).append(name);
}

}  // namespace

void CachedContents::drop_expired(std::int64_t now) {
  std::erase_if(contents_, [now](const auto& entry) { return entry.second.expires <= now; });
}

Status CachedContents::room(const std::string& tenant, std::size_t bytes, std::int64_t now) {
  drop_expired(now);
  std::size_t count = 0, own = 0, all = 0;
  for (const auto& [key, content] : contents_) {
    all += content.body->size();
    if (key.first != tenant) continue;
    ++count;
    own += content.body->size();
  }
  if (count >= limits_.tenant_count)
    return Error{Code::exhausted,
                 fmt::format("there are {} cached contents; delete some", limits_.tenant_count)};
  if (own + bytes > limits_.tenant_bytes || all + bytes > limits_.bytes)
    return Error{Code::exhausted,
                 fmt::format("cached contents may have {} bytes of JSON together; delete some",
                             limits_.tenant_bytes)};
  return {};
}

Status CachedContents::room_for(const std::string& tenant, std::size_t bytes, std::int64_t now) {
  std::lock_guard lock(mutex_);
  return room(tenant, bytes, now);
}

Result<CachedContent> CachedContents::add(CachedContent content, std::int64_t now) {
  CHECK(content.body != nullptr);
  std::lock_guard lock(mutex_);
  TRY_STATUS(room(content.tenant, content.body->size(), now));
  content.created = content.updated = now;
  do content.name = random_name();
  while (!contents_.try_emplace({content.tenant, content.name}, content).second);
  return content;
}

CachedContent* CachedContents::live(const std::string& tenant, std::string_view name,
                                    std::int64_t now) {
  const auto at = contents_.find({tenant, whole_name(name)});
  return at == contents_.end() || at->second.expires <= now ? nullptr : &at->second;
}

std::optional<CachedContent> CachedContents::find(const std::string& tenant, std::string_view name,
                                                  std::int64_t now) {
  std::lock_guard lock(mutex_);
  const CachedContent* const content = live(tenant, name, now);
  return content ? std::optional(*content) : std::nullopt;
}

std::optional<CachedContent> CachedContents::set_expiry(const std::string& tenant,
                                                        std::string_view name, std::int64_t expires,
                                                        std::int64_t now) {
  std::lock_guard lock(mutex_);
  CachedContent* const content = live(tenant, name, now);
  if (content == nullptr) return std::nullopt;
  content->expires = expires;
  content->updated = now;
  return *content;
}

std::optional<CachedContent> CachedContents::remove(const std::string& tenant,
                                                    std::string_view name, std::int64_t now) {
  std::lock_guard lock(mutex_);
  const CachedContent* const content = live(tenant, name, now);
  if (content == nullptr) return std::nullopt;
  CachedContent removed = *content;
  contents_.erase({removed.tenant, removed.name});
  return removed;
}

std::vector<CachedContent> CachedContents::list(const std::string& tenant, const std::string& after,
                                                std::size_t limit, std::int64_t now) {
  std::lock_guard lock(mutex_);
  drop_expired(now);
  std::vector<CachedContent> out;
  for (auto at = contents_.upper_bound({tenant, after});
       at != contents_.end() && at->first.first == tenant && out.size() < limit; ++at)
    out.push_back(at->second);
  return out;
}

std::optional<std::int64_t> parse_expiry(Fields& f, std::int64_t now) {
  constexpr double kSecondsMax = 366 * 86400.0;
  const auto ttl = f.text("ttl", 64);
  const auto time = f.text("expireTime", 64);
  if (f.failed() || (!ttl && !time)) return std::nullopt;
  if (ttl && time) {
    f.refuse("ttl", "and expireTime cannot be given together");
    return std::nullopt;
  }
  std::int64_t expires = 0;
  if (ttl) {
    double seconds = 0;
    const char* const last = ttl->data() + ttl->size();
    const auto [end, error] = std::from_chars(ttl->data(), last, seconds);
    const bool whole = error == std::errc() && std::string_view(end, last) == "s";
    if (!whole || !(seconds > 0 && seconds <= kSecondsMax)) {
      f.refuse("ttl", "must be seconds like \"300s\", more than none and at most a year");
      return std::nullopt;
    }
    expires = now + static_cast<std::int64_t>(seconds * 1e9);
  } else {
    const auto parsed = parse_rfc3339(*time);
    if (!parsed || *parsed <= now || *parsed - now > static_cast<std::int64_t>(kSecondsMax * 1e9)) {
      f.refuse("expireTime", "must be a time like \"2026-11-15T03:00:00Z\" within the next year");
      return std::nullopt;
    }
    expires = *parsed;
  }
  return expires;
}

}  // namespace quire::gemini
