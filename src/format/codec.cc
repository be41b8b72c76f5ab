#include "format/codec.h"

#include <fmt/format.h>

#include <bit>

#include "format/codes.h"
#include "format/families.h"

namespace quire {
namespace {

constexpr const Codec* kCodecs[] = {&kF32,
                                    &kF16,
                                    &kBf16,
                                    &kFp8E4m3,
                                    &kFp8E5m2,
                                    &kInt8,
                                    &kQ8_0,
                                    &kQ5_1,
                                    &kQ4_1,
                                    &kQ4_0,
                                    &kNvfp4,
                                    &kHadamardInt4,
                                    &kHadamardInt3,
                                    &kHadamardInt2,
                                    &kHadamardInt4Head,
                                    &kHadamardInt2Head,
                                    &kInt3,
                                    &kKivi4,
                                    &kKivi2,
                                    &kTurbo4,
                                    &kTurbo3,
                                    &kPolarRec,
                                    &kQjl,
                                    &kKvquant3,
                                    &kCq4,
                                    &kCq3,
                                    &kCq2,
                                    &kCq1,
                                    &kMinicache};

constexpr CodecAlias kAliases[] = {
    {"float32", "f32"},  {"fp32", "f32"},           {"float16", "f16"},
    {"fp16", "f16"},     {"half", "f16"},           {"bfloat16", "bf16"},
    {"fp8", "fp8-e4m3"}, {"fp8_e4m3", "fp8-e4m3"},  {"fp8_e5m2", "fp8-e5m2"},
    {"u8", "int8"},      {"int4", "hadamard-int4"}, {"q4", "hadamard-int4"},
    {"q8", "q8_0"}};

// Exact pages have no padding: they are what the open tail is.
std::size_t column_bytes(const Codec& c, const Column& column, Rows rows) {
  const std::size_t bytes =
      std::size_t{column.count} * column.bytes * (column.per_slot ? rows.tokens : 1);
  return c.exact ? bytes : round_up_64(bytes);
}

}  // namespace

std::span<const Codec* const> codecs() { return kCodecs; }
std::span<const CodecAlias> codec_aliases() { return kAliases; }

Result<const Codec*> find_codec(std::string_view name) {
  std::string_view wanted = name;
  for (const CodecAlias& a : kAliases)
    if (a.theirs == name) wanted = a.ours;
  std::string known;
  for (const Codec* c : kCodecs) {
    if (c->name == wanted) return c;
    known += ' ' + std::string(c->name);
  }
  return Error{Code::not_found, fmt::format("no KV format '{}'; there are:{}", name, known)};
}

Status check_rows(const Codec& c, Rows rows) {
  if (rows.dim == 0 || rows.dim > kCodecDimMax)
    return Error{Code::unsupported, fmt::format("heads of {} dimensions: KV formats hold 1 to {}",
                                                rows.dim, kCodecDimMax)};
  if (rows.dim % c.dim_multiple != 0 || (c.dim_power_of_two && !std::has_single_bit(rows.dim)))
    return Error{Code::unsupported,
                 fmt::format("KV format {} holds heads whose dimension is {} {}, not {}; f16, bf16 "
                             "and fp8 hold any",
                             c.name, c.dim_power_of_two ? "a power of two from" : "a multiple of",
                             c.dim_multiple, rows.dim)};
  if (!c.exact && (rows.tokens == 0 || rows.tokens % 4 != 0))
    return Error{Code::unsupported, fmt::format("KV format {} needs blocks of a multiple of 4 "
                                                "tokens, not {}",
                                                c.name, rows.tokens)};
  return {};
}

std::size_t column_offset(const Codec& c, Side side, Rows rows, std::size_t column) {
  const CodecLayout layout = c.layout(c, side, rows);
  std::size_t offset = Codes(nullptr, side, rows, layout.code_bits).bytes();
  for (std::size_t i = 0; i < column; ++i) offset += column_bytes(c, layout.columns[i], rows);
  return offset;
}

std::size_t codec_bytes(const Codec& c, Side side, Rows rows) {
  return rows.dim == 0 ? 0 : column_offset(c, side, rows, CodecLayout{}.columns.size());
}

double effective_bits(const Codec& c, Side side, Rows rows) {
  return 8.0 * static_cast<double>(codec_bytes(c, side, rows)) /
         (std::size_t{rows.tokens} * rows.dim);
}

bool slots_stand_alone(const Codec& c, Side side, Rows rows) {
  if (rows.dim == 0) return true;
  for (const Column& column : c.layout(c, side, rows).columns)
    if (!column.per_slot) return false;
  return true;
}

void copy_slot(const Codec& c, Side side, Rows rows, const std::byte* from, std::uint32_t from_slot,
               std::byte* to, std::uint32_t to_slot) {
  DCHECK(slots_stand_alone(c, side, rows) && from_slot < rows.tokens && to_slot < rows.tokens);
  const CodecLayout layout = c.layout(c, side, rows);
  const Codes source(from, side, rows, layout.code_bits);
  Codes target(to, side, rows, layout.code_bits);
  if (layout.code_bits != 0) target.copy_slot(to_slot, source, from_slot);
  std::size_t offset = source.bytes();
  for (const Column& column : layout.columns) {
    const auto copy = [&](std::size_t bytes) {
      for (std::uint32_t i = 0; i < column.count; ++i) {
        const std::size_t row = offset + std::size_t{i} * rows.tokens * bytes;
        std::memcpy(to + row + to_slot * bytes, from + row + from_slot * bytes, bytes);
      }
    };
    if (column.bytes == 2)
      copy(2);  // the compiler makes it a move
    else
      copy(column.bytes);
    offset += column_bytes(c, column, rows);
  }
}

}  // namespace quire
