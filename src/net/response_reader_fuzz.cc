// Any bytes, cut in any way: the same events, body and state as when they arrive at once.
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "net/response_reader.h"

namespace {

struct Read {
  quire::ResponseReader reader;
  std::vector<std::string> events;

  Read(std::string_view bytes, std::size_t at_once) {
    const auto keep = [&](std::string_view data) { events.emplace_back(data); };
    for (std::size_t i = 0; i < bytes.size(); i += at_once)
      reader.feed(bytes.substr(i, at_once), keep);
    reader.end_of_input(keep);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 4096) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const Read whole(bytes, bytes.size() + 1), parts(bytes, data[0] % 16 + 1u);
  CHECK(whole.reader.state() == parts.reader.state());
  CHECK(whole.reader.status() == parts.reader.status());
  CHECK(whole.events == parts.events);
  CHECK(whole.reader.body() == parts.reader.body());
  return 0;
}
