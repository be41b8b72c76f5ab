// kv/tier/store_url.h - a shared store by its URL, as --kv-store names it.
//
//   redis://HOST:PORT[,HOST:PORT...]    Redis or Valkey, alone or as a cluster (kv/tier/redis_store.h)
//   rediss://HOST:PORT                  the same over TLS
//   s3://BUCKET/PREFIX                  S3, or what speaks like it (kv/tier/s3_store.h)
//   file:///FOLDER[?max=100GiB]         a folder that all machines mount (kv/tier/folder_store.h)
//
//   TRY_STATUS(check_store_url("redis://10.0.0.1:7000"));
//   TRY(auto tier, open_store_url("file:///mnt/kv", {.mailbox = &mailbox, .secret = secret}));
//
// Messages do not repeat the URL: it may have a password in it.
#pragma once

#include <memory>
#include <string>

#include "kv/tier/tiers.h"

namespace quire {

// Whether it can be opened: how it is written, that a folder is there, that there are credentials. Nothing
// is connected.
Status check_store_url(const std::string& url);

// `with` needs no place. Without a secret it is an error.
Result<std::unique_ptr<Tier>> open_store_url(const std::string& url, TierSettings with);

}  // namespace quire
