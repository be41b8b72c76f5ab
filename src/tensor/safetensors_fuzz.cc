// Any bytes are a safetensors file or an error, and any text an index or an error; what opens can
// be read to the last byte.
#include "tensor/safetensors.h"

#include <cstdint>

namespace {
volatile std::uint64_t g_sink;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  if (size > 0 && data[0] == '{') {
    const auto shards = shards_of_index({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!shards.ok()) return 0;
    CHECK(!shards.value().empty());
    for (const std::string& shard : shards.value())
      CHECK(shard.find('/') == shard.npos && shard.front() != '.');
    return 0;
  }
  const auto parsed = SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!parsed.ok()) {
    CHECK(parsed.error().message.starts_with("fuzz: "));
    return 0;
  }
  std::uint64_t sum = 0;
  for (const TensorView& tensor : parsed.value().tensors()) {
    CHECK(parsed.value().tensor(tensor.name).value() == &tensor);
    CHECK(tensor.data.size() == tensor.rows() * row_bytes(tensor.type, tensor.columns()));
    CHECK(parsed.value().raw(tensor.name)->data.data() == tensor.data.data());
    for (const std::byte b : tensor.data) sum += std::to_integer<std::uint64_t>(b);
  }
  for (const RawTensor& other : parsed.value().others()) {
    CHECK(parsed.value().has(other.name) && !parsed.value().tensor(other.name).ok());
    std::uint64_t bytes = raw_type_bytes(other.type);
    for (const std::uint64_t extent : other.shape) bytes *= extent;
    CHECK(raw_type_bytes(other.type) == 0 || other.data.size() == bytes);
    for (const std::byte b : other.data) sum += std::to_integer<std::uint64_t>(b);
  }
  g_sink = sum;
  return 0;
}
