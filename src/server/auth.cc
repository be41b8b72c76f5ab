#include "server/auth.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <fmt/core.h>

#include <sstream>

#include "base/file.h"
#include "base/number.h"

namespace quire {

namespace {
std::string digits(const Digest& digest, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i)
    out += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
  return out;
}

// `word` as a limit of what a tenant may keep.
bool read_limit(std::string_view word, TenantLimits& to) {
  const std::size_t at = word.find('=');
  if (at == std::string_view::npos) return false;
  const std::string_view name = word.substr(0, at), value = word.substr(at + 1);
  std::uint64_t* const bytes = name == "quota_bytes" ? &to.bytes
                               : name == "pin_bytes" ? &to.pin_bytes
                                                     : nullptr;
  if (bytes != nullptr) return parse_number(value, *bytes) && *bytes > 0 && *bytes < 1ull << 60;
  return name == "leases" && parse_number(value, to.leases) && to.leases > 0 && to.leases <= 65536;
}
}  // namespace

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return Error{Code::not_found,
                 path + ": cannot be read; --api-key-file names the file with keys"};
  if ((info.st_mode & 077) != 0)
    return Error{Code::invalid, path + ": others may read these keys; chmod 600 it"};
  TRY(const std::string text, read_file(path));
  auto keys = parse(text);
  if (!keys.ok()) return Error{Code::invalid, path + ": " + keys.error().message};
  return keys;
}

Result<ApiKeys> ApiKeys::parse(std::string_view text) {
  ApiKeys out;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string key, word;
    if (!(words >> key) || key.starts_with('#')) continue;
    if (key.size() < 8)
      return Error{Code::invalid, fmt::format("line {}: a key has at least 8 characters", number)};
    Key k{.digest = sha256(key), .caller = {}};
    TenantLimits limits;
    while (words >> word) {
      if (word == "admin")
        k.caller.admin = true;
      else if (word.starts_with("tenant=") && word.size() > 7)
        k.caller.tenant = word.substr(7);
      else if (!read_limit(word, limits))
        return Error{Code::invalid,
                     fmt::format("line {}: '{}' is neither admin nor tenant=NAME nor a number of "
                                 "quota_bytes=, pin_bytes= or leases=",
                                 number, word)};
    }
    k.caller.key_id = digits(k.digest, 4);
    if (k.caller.tenant.empty()) k.caller.tenant = "key-" + digits(k.digest, 8);
    if (!(limits == TenantLimits{})) {
      const auto [known, added] = out.limits_.emplace(k.caller.tenant, limits);
      if (!added && !(known->second == limits))
        return Error{Code::invalid,
                     fmt::format("line {}: an earlier key gives tenant {} other limits", number,
                                 k.caller.tenant)};
    }
    out.keys_.push_back(std::move(k));
  }
  if (out.keys_.empty()) return Error{Code::invalid, "holds no key"};
  return out;
}

std::optional<Caller> ApiKeys::find(std::string_view key) const {
  if (keys_.empty()) return Caller{.admin = true};
  const Digest digest = sha256(key);
  const Key* found = nullptr;
  for (const Key& k : keys_)  // all of them, whichever it is
    if (CRYPTO_memcmp(k.digest.data(), digest.data(), digest.size()) == 0) found = &k;
  if (found == nullptr || key.empty()) return std::nullopt;
  return found->caller;
}

std::string presented_key(const HttpRequest& request) {
  if (const auto key = request.header("x-api-key"); !key.empty()) return std::string(key);
  const std::string_view authorization = request.header("authorization");
  if (authorization.size() > 7 &&
      (authorization.starts_with("Bearer ") || authorization.starts_with("bearer ")))
    return std::string(authorization.substr(7));
  if (const auto key = request.header("x-goog-api-key"); !key.empty()) return std::string(key);
  return request.parameter("key").value_or("");
}

}  // namespace quire
