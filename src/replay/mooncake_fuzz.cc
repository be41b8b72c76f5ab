// Any line gives a request within bounds or an error.
#include "base/check.h"
#include "replay/mooncake.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  const auto request = parse_mooncake(line);
  if (!request.ok()) {
    CHECK(!request.error().message.empty());
    return 0;
  }
  CHECK(request.value().arrival >= 0 && request.value().chain.ids.size() <= size);
  const BlockChain chains[] = {request.value().chain, request.value().chain};
  const BlockReplay again = replay_blocks(chains, *replay_evict_policies()[0], 0);
  CHECK(again.hit_blocks >= request.value().chain.ids.size());
  return 0;
}
