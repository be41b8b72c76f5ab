// Any bytes as the file of a stored response: damaged, or exactly what is written of its content. The
// checksum is put right for one of two tries, as chance never does.
#include "server/dialect/responses/response_file.h"

#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "server/dialect/responses/turn.h"

namespace {

void check_response_file(std::string_view bytes) {
  using namespace quire::responses;
  const auto file = decode_response(bytes);
  if (!file.ok()) return;
  CHECK(decode_response(encode_response(file.value())).value().response.json ==
        file.value().response.json);
  CHECK(response_file_name(file.value().tenant, file.value().id).size() == 41);
  const quire::Json json = read_stored(file.value().response);
  CHECK(json.is_null() || (json["items"].is_array() && json["response"]["output"].is_array()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  check_response_file(bytes);
  if (bytes.size() < 16) return 0;
  const std::string real = quire::responses::encode_response({});
  std::memcpy(bytes.data(), real.data(), 8);
  const std::uint64_t check = quire::hash64(bytes.data() + 16, bytes.size() - 16);
  std::memcpy(bytes.data() + 8, &check, 8);
  check_response_file(bytes);
  return 0;
}
