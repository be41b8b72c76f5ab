#include "server/dialect/responses/response_file.h"

#include <fmt/core.h>

#include <bit>
#include <cstring>

#include "base/hash.h"
#include "base/token.h"
#include "kv/key.h"

namespace quire::responses {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kResponseMagic = 0x0131707365727171;  // "qqresp1" and the version

struct ResponseHead {
  std::uint64_t magic = kResponseMagic;
  std::uint64_t check = 0;  // of everything behind it
  std::uint64_t tenant_bytes = 0, id_bytes = 0, json_bytes = 0;
  std::uint64_t tokens = 0;  // behind the JSON; nobody reads them, and none are written
  std::int64_t expires_s = 0;
};
static_assert(sizeof(ResponseHead) == 56);
constexpr std::size_t kChecked = offsetof(ResponseHead, tenant_bytes);

std::uint64_t check_of(std::string_view file) {
  return hash64(file.data() + kChecked, file.size() - kChecked);
}

}  // namespace

std::string encode_response(const ResponseFile& file) {
  const StoredResponse& r = file.response;
  ResponseHead head{.tenant_bytes = file.tenant.size(),
                    .id_bytes = file.id.size(),
                    .json_bytes = r.json.size(),
                    .expires_s = r.expires_s};
  std::string out(reinterpret_cast<const char*>(&head), sizeof head);
  out += file.tenant;
  out += file.id;
  out += r.json;
  head.check = check_of(out);
  std::memcpy(out.data(), &head, sizeof head);
  return out;
}

Result<ResponseFile> decode_response(std::string_view bytes) {
  const Error damaged{Code::corrupt, "is damaged, or no stored response"};
  ResponseHead head;
  if (bytes.size() < sizeof head) return damaged;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.magic != kResponseMagic || head.check != check_of(bytes)) return damaged;
  std::string_view rest = bytes.substr(sizeof head);
  const auto take = [&](std::uint64_t size, std::string_view& out) {
    if (size > rest.size()) return false;
    out = rest.substr(0, size);
    rest.remove_prefix(size);
    return true;
  };
  std::string_view tenant, id, json;
  if (!take(head.tenant_bytes, tenant) || !take(head.id_bytes, id) || !take(head.json_bytes, json))
    return damaged;
  if (rest.size() % sizeof(TokenId) != 0 || rest.size() / sizeof(TokenId) != head.tokens)
    return damaged;
  ResponseFile file{.tenant = std::string(tenant), .id = std::string(id)};
  file.response.json = json;
  file.response.expires_s = head.expires_s;
  return file;
}

std::string response_file_name(std::string_view tenant, std::string_view id) {
  const Digest digest = sha256(std::string(tenant) + '\0' + std::string(id));
  std::string name;
  for (std::size_t i = 0; i < 16; ++i)
    name += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
  return name + ".response";
}

}  // namespace quire::responses
