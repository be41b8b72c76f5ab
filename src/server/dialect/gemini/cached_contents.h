// server/dialect/gemini/cached_contents.h - the contents that clients had cached, by name.
//
// Each is the JSON that a request with its name begins with, and a pin on the blocks of that prefix.
// A content lives until its expiry; the pin expires at the same time. One tenant never sees
// another's. How many there are, and how many bytes they have, is bounded for each tenant and for
// all.
//
//   TRY(const CachedContent made, all.add({.tenant = "acme", .model = "m", .body = json, ...}, now));
//   if (auto found = all.find("acme", made.name, now)) use(*found->body);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kv/cache.h"
#include "server/dialect/dialect.h"
#include "server/fields.h"

namespace quire::gemini {

struct CachedContent {
  std::string name = {};  // "cachedContents/k3f9x2abcdef"
  std::string tenant, model, display_name;
  std::shared_ptr<const std::string>
      body;  // {"contents", "systemInstruction", "tools", "toolConfig"}
  std::uint32_t tokens = 0;
  std::optional<LeaseId> lease = {};                   // none: it is shorter than a block
  std::int64_t created = 0, updated = 0, expires = 0;  // nanoseconds since 1970
};

struct CachedContentsLimits {
  std::size_t tenant_count = 1024, tenant_bytes = std::size_t{64} << 20;
  std::size_t bytes = std::size_t{256} << 20;  // of all tenants
};

// All functions may be called from any thread. `now` is in nanoseconds since 1970.
class CachedContents final : public DialectState {
 public:
  explicit CachedContents(CachedContentsLimits limits = {}) : limits_(limits) {}

  // Code::exhausted: the tenant, or the server, has too many.
  Status room_for(const std::string& tenant, std::size_t bytes, std::int64_t now);
  // Gives it a name that nobody can guess.
  Result<CachedContent> add(CachedContent content, std::int64_t now);

  // None where it never was, was removed, has expired or is another tenant's.
  std::optional<CachedContent> find(const std::string& tenant, std::string_view name,
                                    std::int64_t now);
  std::optional<CachedContent> set_expiry(const std::string& tenant, std::string_view name,
                                          std::int64_t expires, std::int64_t now);
  std::optional<CachedContent> remove(const std::string& tenant, std::string_view name,
                                      std::int64_t now);
  // In the order of names, after this one.
  std::vector<CachedContent> list(const std::string& tenant, const std::string& after,
                                  std::size_t limit, std::int64_t now);

 private:
  using Key = std::pair<std::string, std::string>;  // tenant, name

  void drop_expired(std::int64_t now);
  Status room(const std::string& tenant, std::size_t bytes, std::int64_t now);
  CachedContent* live(const std::string& tenant, std::string_view name, std::int64_t now);

  const CachedContentsLimits limits_;
  std::mutex mutex_;
  std::map<Key, CachedContent> contents_;
};

// `ttl` ("300s") or `expireTime`, as nanoseconds since 1970; refuses both, and what is not in the
// future.
std::optional<std::int64_t> parse_expiry(Fields& f, std::int64_t now);

}  // namespace quire::gemini
