// Any safetensors file, read with any quantization, gives coded tensors or errors; what is found can be
// encoded to the last row.
#include "model/coded_tensor.h"

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace quire;

// What a reader of the file might ask for, given a tensor's name.
std::vector<std::string> asked_for(const std::string& name) {
  std::vector<std::string> names{name};
  for (const std::string_view end : {".qweight", ".weight_packed", ".weight", "_blocks"})
    if (name.ends_with(end)) names.push_back(name.substr(0, name.size() - end.size()) + ".weight");
  return names;
}

volatile std::uint64_t g_sum;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  Quantization how;
  how.method = static_cast<Quantization::Method>(data[0] % 8);
  how.zeros_less_one = data[0] & 0x80;
  how.block_rows = data[1] & 15;
  how.block_columns = (data[1] >> 4) * 32u;
  if (how.block_rows == 0 || how.block_columns == 0) how.block_rows = how.block_columns = 0;
  const auto parsed = SafetensorsFile::parse(std::as_bytes(std::span(data + 2, size - 2)), "fuzz");
  if (!parsed.ok()) return 0;
  const TensorLookup look = [&](const std::string& name) -> Result<std::optional<FoundTensor>> {
    std::optional<RawTensor> raw = parsed.value().raw(name);
    if (!raw) return std::optional<FoundTensor>();
    return std::optional(FoundTensor{std::move(*raw)});
  };
  const auto read = [&](const std::string& given) {
    for (const std::string& name : asked_for(given)) {
      const auto found = find_coded(look, how, name);
      if (!found.ok() || !found.value()) continue;
      const CodedTensor& coded = *found.value();
      CHECK(coded.rows > 0 && coded.columns > 0);
      CHECK(coded.columns % dtype_info(coded.type).block_elements == 0);
      CHECK(coded.rows * (coded.columns / 2) <= size);  // nothing is made out of nothing
      std::vector<std::byte> bytes(coded.rows * row_bytes(coded.type, coded.columns));
      coded.encode(0, coded.rows, bytes.data());
      const std::size_t row = bytes.size() / coded.rows;
      std::vector<std::byte> last(row);
      coded.encode(coded.rows - 1, 1, last.data());
      CHECK(std::equal(last.begin(), last.end(), bytes.end() - static_cast<std::ptrdiff_t>(row)));
      for (const std::byte b : bytes) g_sum = g_sum + std::to_integer<std::uint64_t>(b);
    }
  };
  for (const TensorView& tensor : parsed.value().tensors()) read(tensor.name);
  for (const RawTensor& tensor : parsed.value().others()) read(tensor.name);
  return 0;
}
