// bitsandbytes' NF4: a flattened matrix in blocks, whose scales may be quantized once more.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "model/coded_parts.h"
#include "tensor/code_levels.h"

namespace quire {
namespace {

constexpr std::uint64_t kRunNf4 = 64;  // inputs of a block of DType::nf4
constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 31;

// What the JSON beside a matrix says.
struct Nf4State {
  std::uint64_t rows = 0, columns = 0, block = 0, nested_block = 0;
  float nested_offset = 0;
};

Result<std::uint64_t> size_in(const Json& json, const char* key, const std::string& name) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned() || found->get<std::uint64_t>() == 0 ||
      found->get<std::uint64_t>() > kSizeMax)
    return Error{Code::corrupt, fmt::format("tensor '{}': '{}' is no size", name, key)};
  return found->get<std::uint64_t>();
}

Result<Nf4State> read_state(const TensorLookup& look, const std::string& name, bool nested) {
  TRY(const Part text, need(look, name, {"U8"}));
  const auto json = parse_json({reinterpret_cast<const char*>(text.data.data()), text.data.size()});
  if (!json.ok() || !json.value().is_object()) return bad_part(text, "is no JSON object");
  const Json& j = json.value();
  Nf4State s;
  const auto shape = j.find("shape");
  if (shape == j.end() || !shape->is_array() || shape->size() != 2 ||
      !std::ranges::all_of(*shape, [](const Json& n) {
        return n.is_number_unsigned() && n.get<std::uint64_t>() <= kSizeMax;
      }))
    return bad_part(text, "has no 'shape' of two sizes");
  s.rows = (*shape)[0].get<std::uint64_t>();
  s.columns = (*shape)[1].get<std::uint64_t>();
  TRY(s.block, size_in(j, "blocksize", name));
  if (!nested) return s;
  TRY(s.nested_block, size_in(j, "nested_blocksize", name));
  const auto offset = j.find("nested_offset");
  if (offset == j.end() || !offset->is_number()) return bad_part(text, "has no 'nested_offset'");
  s.nested_offset = offset->get<float>();
  return s;
}

// The scale of a block: as it is, or out of a table, by a scale and an offset.
struct BlockScales {
  Part scales, table, nested;
  Nf4State state;

  float at(std::uint64_t block) const {
    if (state.nested_block == 0) return scales.number(block);
    const float product =
        table.number(scales.byte(block)) * nested.number(block / state.nested_block);
    return product + state.nested_offset;
  }
};

}  // namespace

FoundCoded find_nf4(const TensorLookup& look, const std::string& name) {
  constexpr const char* kState = ".quant_state.bitsandbytes__";
  TRY(const std::optional<FoundTensor> stranger, look(name + kState + "fp4"));
  if (stranger)
    return Error{Code::unsupported,
                 fmt::format("tensor '{}' is of type FP4 of bitsandbytes; NF4 is supported", name)};
  TRY(const std::optional<FoundTensor> is_coded, look(name + kState + "nf4"));
  if (!is_coded) return std::optional<CodedTensor>();
  TRY(const Part codes, need(look, name, {"U8"}));
  BlockScales scales;
  TRY(scales.scales, need(look, name + ".absmax", {"F32", "U8"}));
  const bool nested = scales.scales.type == NumberType::other;
  TRY(scales.state, read_state(look, name + kState + "nf4", nested));
  const auto [rows, columns, block, nested_block, offset] = scales.state;
  if (columns % kRunNf4 != 0 || block % kRunNf4 != 0 || rows == 0 || columns == 0)
    return Error{
        Code::unsupported,
        fmt::format(
            "tensor '{}' has shape [{}, {}] and blocks of {}; multiples of {} are supported", name,
            rows, columns, block, kRunNf4)};
  const std::uint64_t count = rows * columns, blocks = (count + block - 1) / block;
  if (codes.data.size() != count / 2 || scales.scales.count() != blocks)
    return bad_part(
        codes, fmt::format("has {} bytes and {} scales; [{}, {}] in blocks of {} needs {} and {}",
                           codes.data.size(), scales.scales.count(), rows, columns, block,
                           count / 2, blocks));
  TRY(const Part levels, need(look, name + ".quant_map", {"F32"}, {16}));
  for (std::uint64_t i = 0; i < 16; ++i)
    if (levels.number(i) != kLevelsNf4[i]) return bad_part(levels, "is another one than NF4's");
  if (nested) {
    TRY(scales.table, need(look, name + ".nested_quant_map", {"F32"}, {256}));
    TRY(scales.nested,
        need(look, name + ".nested_absmax", {"F32"}, {(blocks + nested_block - 1) / nested_block}));
  }
  const auto encode = [codes, scales](std::uint64_t first, std::uint64_t rows_wanted,
                                      std::byte* to) {
    const std::uint64_t in_row = scales.state.columns;
    for (std::uint64_t at = first * in_row; at < (first + rows_wanted) * in_row; at += kRunNf4) {
      const float scale = scales.at(at / scales.state.block);
      std::memcpy(to, &scale, sizeof scale);
      to += sizeof scale;
      for (std::uint64_t i = 0; i < kRunNf4 / 2; ++i) {  // the file has the first one high
        const std::uint8_t both = codes.byte(at / 2 + i);
        *to++ = static_cast<std::byte>(both >> 4 | both << 4);
      }
    }
  };
  return std::optional(CodedTensor{.type = DType::nf4,
                                   .rows = rows,
                                   .columns = columns,
                                   .encode = encode,
                                   .parts = {codes.data, scales.scales.data}});
}

}  // namespace quire
