// server/auth.h - who is calling: API keys from a file, their tenants, and who may do what.
//
// One line per key: `KEY`, `KEY tenant=acme`, `KEY admin`. Lines that begin with # are comments. A
// key without a tenant is one of its own: nobody shares its cache or sees its prompts.
// The file must be readable by its owner alone. Keys are kept as digests and compared in constant
// time.
//
//   TRY(ApiKeys keys, ApiKeys::load("keys.txt"));
//   std::optional<Caller> caller = keys.find(presented_key(request));   // none: 401
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/key.h"
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

 private:
  struct Key {
    Digest digest;
    Caller caller;
  };
  std::vector<Key> keys_;
};

// x-api-key, then Authorization: Bearer, then x-goog-api-key, then ?key=.
std::string presented_key(const HttpRequest& request);

}  // namespace quire
