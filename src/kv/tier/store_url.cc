#include "kv/tier/store_url.h"

#include "kv/tier/folder_store.h"
#include "kv/tier/redis_store.h"
#include "kv/tier/s3_store.h"

namespace quire {

namespace {

Status check_redis(const std::string& url) {
  TRY([[maybe_unused]] const RedisPlace place, parse_redis_url(url));
  return {};
}

Status check_folder(const std::string& url) {
  TRY(const FolderPlace place, parse_folder_url(url));
  TRY([[maybe_unused]] const auto store, open_folder_store(place.path, {}));
  return {};
}

Status check_s3(const std::string& url) {
  TRY(const S3Place place, parse_s3_url(url));
  TRY([[maybe_unused]] const auto store, open_s3_store(place, system_environment));
  return {};
}

struct StoreKind {
  std::string_view begins;
  Status (*check)(const std::string& url);
};
constexpr StoreKind kStoreKinds[] = {{"redis://", check_redis},
                                     {"rediss://", check_redis},
                                     {"file://", check_folder},
                                     {"s3://", check_s3}};

}  // namespace

Status check_store_url(const std::string& url) {
  for (const StoreKind& kind : kStoreKinds) {
    if (!url.starts_with(kind.begins)) continue;
    const Status fine = kind.check(url);
    return fine.ok() ? fine : Error{fine.error().code, "--kv-store: " + fine.error().message};
  }
  const std::size_t colon = url.find("://");
  return Error{
      Code::invalid,
      "--kv-store: " +
          (colon == url.npos ? std::string("this is no address of a store")
                             : "there are no stores of kind '" + url.substr(0, colon) + "'") +
          "; write redis://HOST:PORT,HOST:PORT, rediss://HOST:PORT (over TLS), "
          "s3://BUCKET/PREFIX or file:///FOLDER"};
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
