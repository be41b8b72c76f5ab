// server/kv_parse.h - the `kv` object of a request, which all dialects take.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/fields.h"
#include "server/generation_request.h"

namespace quire {

// What the server can do, and what the caller may do.
struct KvRules {
  std::string kv_format = "f16";                    // of the server, for requests that name none
  const StoragePolicy* plan = nullptr;              // "planned"
  const StoragePolicy* storage = nullptr;           // behind kv_format
  std::shared_ptr<const RetainPolicy> retain = {};  // for requests that say nothing about it
  std::function<Status(const RetainPolicy&, const StoragePolicy*)> check_retain = {};
  std::shared_ptr<const SelectPolicy> select = {};  // of answers, for requests that say nothing
  std::function<Status(const SelectPolicy&, const StoragePolicy*, const RetainPolicy*)>
      check_select = {};
  // Whether the model can be stored under a policy; none: whatever the formats allow.
  std::function<Status(const StoragePolicy&)> check_storage = {};
  // The policy of a session, a JSON object; none: there is no such session.
  std::function<std::optional<std::string>(const std::string& tenant, const std::string& id)>
      session_policy = {};
  std::string tenant;  // of the caller's key
  bool admin = true;   // may name another tenant
};

// Reads "kv" of the body; what it does not say is as its session has it.
// `header` is x-kv-policy, whose fields count where the body has none.
void parse_kv(Fields& body, std::string_view header, const KvRules& rules, KvRequest& kv);

void check_salt(Fields& fields, std::string_view name, const std::string& salt);

}  // namespace quire
