// Any two lines give a cache and an event within bounds, or an error that says why.
#include "base/check.h"
#include "replay/cache_events.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (const auto cache = parse_traced_cache(line); cache.ok())
    CHECK(cache.value().block_size > 0);
  else
    CHECK(!cache.error().message.empty());
  if (const auto event = parse_cache_event(line); event.ok())
    CHECK(event.value().time >= 0 && event.value().keys.size() <= size);
  else
    CHECK(!event.error().message.empty());
  return 0;
}
