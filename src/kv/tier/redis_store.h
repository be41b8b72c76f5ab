// kv/tier/redis_store.h - Redis or Valkey, alone or as a cluster, as a ValueStore.
//
// The keys of a cluster are spread over 16,384 slots. The store asks a node which node has which
// slot, sends the commands of a batch to all nodes at once, and reads the answers. A slot that has
// moved (MOVED), is moving (ASK) or whose node is gone is asked for again elsewhere. A node that does not
// answer is left alone for a second, then twice as long each time; meanwhile what belongs to it is
// not there, and not stored. A call waits for `patience` in all without progress. Values expire
// after `ttl`; the server's own `maxmemory-policy` evicts before that.
//
//   TRY(const RedisPlace place, parse_redis_url("redis://10.0.0.1:7000,10.0.0.2:7000"));
//   TRY(auto store, open_redis_store(place));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/tier/value_store.h"

namespace quire {

struct RedisAddress {
  std::string host;
  std::uint16_t port = 6379;
  auto operator<=>(const RedisAddress&) const = default;
};

struct RedisPlace {
  std::vector<RedisAddress> nodes;  // at least one that works is enough
  std::string user, password, ca_file;
  bool tls = false;
  std::uint32_t ttl_s = 7 * 86400;
  Nanoseconds patience = 50'000'000;  // without progress
};

// redis[s]://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][?ttl=SECONDS&ca=FILE&patience=MILLISECONDS]
Result<RedisPlace> parse_redis_url(std::string_view url);

std::uint32_t redis_slot(std::string_view key);

// The first call connects; a place that cannot be reached is an error of that call.
std::unique_ptr<ValueStore> open_redis_store(RedisPlace place);

}  // namespace quire
