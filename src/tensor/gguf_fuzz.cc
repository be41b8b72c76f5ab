// Any bytes are a GGUF file or an error, and so are any two parts of one; what opens can be read to
// the last byte.
#include "tensor/gguf.h"

#include <cstdint>
#include <vector>

namespace {

// Reads every byte of a span, so that a sanitizer sees one that leaves the file.
std::uint64_t touch(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  for (const std::byte b : bytes) sum += std::to_integer<std::uint64_t>(b);
  return sum;
}

volatile std::uint64_t g_sink;

// Two parts of one model: 'S', the length of the first, both.
bool read_parts(std::span<const std::byte> data) {
  using namespace quire;
  if (data.size() < 3 || data[0] != std::byte{'S'}) return false;
  const std::size_t cut =
      std::to_integer<std::size_t>(data[1]) | std::to_integer<std::size_t>(data[2]) << 8;
  data = data.subspan(3);
  std::vector<GgufFile> parts;
  for (const auto part :
       {data.first(std::min(cut, data.size())), data.subspan(std::min(cut, data.size()))}) {
    auto parsed = GgufFile::parse(part, "fuzz");
    if (!parsed.ok()) return true;
    parts.push_back(std::move(parsed.value()));
  }
  const std::size_t count = parts[0].tensors().size() + parts[1].tensors().size();
  const auto joined = GgufFile::join(std::move(parts));
  if (!joined.ok()) {
    CHECK(joined.error().message.starts_with("fuzz: "));
    return true;
  }
  const GgufFile& file = joined.value();
  CHECK(file.parts() == 2 && file.tensors().size() == count);
  for (const TensorView& tensor : file.tensors()) {
    CHECK(file.find(tensor.name) == &tensor);
    g_sink = touch(tensor.data);
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  if (read_parts(std::as_bytes(std::span(data, size)))) return 0;
  const auto parsed = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!parsed.ok()) {
    CHECK(parsed.error().message.starts_with("fuzz: "));
    return 0;
  }
  const GgufFile& file = parsed.value();
  std::uint64_t sum = 0;
  const TensorView* before = nullptr;
  for (const TensorView& tensor : file.tensors()) {
    CHECK(!before || before->name < tensor.name);
    CHECK(file.find(tensor.name) == &tensor);
    CHECK(tensor.data.size() == tensor.rows() * row_bytes(tensor.type, tensor.columns()));
    sum += touch(tensor.data);
    if (tensor.data.size() < 4096) {
      std::vector<float> row(tensor.columns());
      dequantize_row(tensor.type, tensor.row(tensor.rows() - 1), row.size(), row.data());
    }
    before = &tensor;
  }
  for (const char* key : {"general.architecture", "llama.block_count", "llama.rope.freq_base",
                          "tokenizer.ggml.tokens", "tokenizer.ggml.scores",
                          "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "k"}) {
    CHECK(file.has(key) || !file.unsigned_of(key).ok());
    if (const auto text = file.string_of(key); text.ok())
      sum += touch(std::as_bytes(std::span(text.value())));
    if (const auto value = file.unsigned_of(key); value.ok()) sum += value.value();
    if (const auto value = file.bool_of(key); value.ok()) sum += value.value();
    if (const auto value = file.f32_of(key); value.ok()) sum += value.value() > 0;
    if (const auto all = file.strings_of(key); all.ok()) {
      std::uint64_t count = 0;
      for (const std::string_view text : all.value()) {
        sum += touch(std::as_bytes(std::span(text)));
        ++count;
      }
      CHECK(count == all.value().size());
    }
    if (const auto all = file.integers_of(key); all.ok())
      for (std::uint64_t i = 0; i < all.value().size(); ++i)
        sum += static_cast<std::uint64_t>(all.value()[i]);
    if (const auto all = file.floats_of(key); all.ok())
      for (std::uint64_t i = 0; i < all.value().size(); ++i) sum += all.value()[i] > 0;
  }
  g_sink = sum;
  return 0;
}
