// server/auth.h - who is calling: API keys from a file, their tenants, and who may do what.
//
// One line per key: `KEY`, `KEY tenant=acme`, `KEY admin`. Lines that begin with # are comments. A
// key without a tenant is one of its own: nobody shares its cache or sees its prompts. What its
// tenant may keep can follow: `quota_bytes=1073741824 pin_bytes=268435456 leases=100`.
// The file must be readable by its owner alone. Keys are kept as digests and compared in constant
// time.
//
//   TRY(ApiKeys keys, ApiKeys::load("keys.txt"));
//   std::optional<Caller> caller = keys.find(presented_key(request));   // none: 401
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/key.h"
#include "kv/tenants.h"
#include "net/http.h"

namespace quire {

struct Caller {
  std::string tenant = {};
  bool admin = false;
  std::string key_id = {};  // eight digits of the key's digest, for logs; empty without keys
};

class ApiKeys {
 public:
  static Result<ApiKeys> load(const std::string& path);
  static Result<ApiKeys> parse(std::string_view text);

  bool empty() const { return keys_.empty(); }
  // Without keys everybody is an administrator.
  std::optional<Caller> find(std::string_view key) const;
  // Of tenants that have some of their own.
  const std::map<std::string, TenantLimits>& limits() const { return limits_; }

 private:
  struct Key {
    Digest digest;
    Caller caller;
  };
  std::vector<Key> keys_;
  std::map<std::string, TenantLimits> limits_;
};

// x-api-key, then Authorization: Bearer, then x-goog-api-key, then ?key=.
std::string presented_key(const HttpRequest& request);

}  // namespace quire
