#include "kv/tier/store_url.h"

#include "kv/tier/folder_store.h"
#include "kv/tier/redis_store.h"

namespace quire {

Status check_store_url(const std::string& url) {
  if (url.starts_with("redis://") || url.starts_with("rediss://")) {
    if (const auto place = parse_redis_url(url); !place.ok())
      return Error{Code::invalid, "--kv-store: " + place.error().message};
    return {};
  }
  if (url.starts_with("file://")) {
    if (!url.starts_with("file:///") || url.size() == 8)
      return Error{Code::invalid,
                   "--kv-store: a folder is written file:///FOLDER, from the root, with three "
                   "slashes"};
    if (const auto folder = open_folder_store(url.substr(7), {}); !folder.ok())
      return Error{Code::not_found, "--kv-store: " + folder.error().message};
    return {};
  }
  const std::size_t colon = url.find("://");
  return Error{
      Code::invalid,
      "--kv-store: " +
          (colon == url.npos ? std::string("this is no address of a store")
                             : "there are no stores of kind '" + url.substr(0, colon) + "'") +
          "; write redis://HOST:PORT,HOST:PORT, rediss://HOST:PORT (over TLS) or "
          "file:///FOLDER"};
}

Result<std::unique_ptr<Tier>> open_store_url(const std::string& url, TierSettings with) {
  TRY_STATUS(check_store_url(url));
  if (!with.secret)
    return Error{Code::invalid,
                 "--kv-store: what others could read is encrypted, and needs a secret that all "
                 "machines of the store have: `openssl rand -hex 64 > FILE`, chmod 600, and "
                 "--kv-secret-file FILE (or --kv-dir FOLDER, which has one)"};
  with.place = url;
  return open_tier(with);
}

}  // namespace quire
