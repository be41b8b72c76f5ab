#include "model/encode_weights.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/half.h"

namespace quire {
namespace {

constexpr std::uint32_t kBlock = 32;

void put_u16(std::vector<std::byte>& out, std::uint16_t value) {
  out.push_back(static_cast<std::byte>(value & 0xff));
  out.push_back(static_cast<std::byte>(value >> 8));
}

void encode_q8_0(std::span<const float> block, std::vector<std::byte>& out) {
  float largest = 0;
  for (const float x : block) largest = std::max(largest, std::fabs(x));
  const std::uint16_t scale = f32_to_f16(largest / 127);
  const float step = f16_to_f32(scale);
  put_u16(out, scale);
  for (const float x : block)
    out.push_back(static_cast<std::byte>(static_cast<std::int8_t>(
        step > 0 ? std::clamp(std::nearbyint(x / step), -127.f, 127.f) : 0)));
}

void encode_q4_1(std::span<const float> block, std::vector<std::byte>& out) {
  const auto [low, high] = std::minmax_element(block.begin(), block.end());
  const std::uint16_t scale = f32_to_f16((*high - *low) / 15), minimum = f32_to_f16(*low);
  const float step = f16_to_f32(scale), base = f16_to_f32(minimum);
  put_u16(out, scale);
  put_u16(out, minimum);
  const auto code = [&](float x) {
    return static_cast<std::uint8_t>(
        step > 0 ? std::clamp(std::nearbyint((x - base) / step), 0.f, 15.f) : 0);
  };
  for (std::size_t i = 0; i < kBlock / 2; ++i)
    out.push_back(static_cast<std::byte>(code(block[i]) | code(block[i + kBlock / 2]) << 4));
}

}  // namespace

std::vector<std::byte> encode_weights(DType type, std::span<const float> values) {
  std::vector<std::byte> out;
  out.reserve(row_bytes(type, values.size()));
  const std::size_t unit = dtype_info(type).block_elements;
  for (std::size_t i = 0; i < values.size(); i += unit) {
    const float x = values[i];
    switch (type) {
      case DType::f32: {
        const auto raw = std::as_bytes(std::span(&x, 1));
        out.insert(out.end(), raw.begin(), raw.end());
        break;
      }
      case DType::f16:
        put_u16(out, f32_to_f16(x));
        break;
      case DType::bf16:
        put_u16(out, f32_to_bf16(x));
        break;
      case DType::q8_0:
        encode_q8_0(values.subspan(i, kBlock), out);
        break;
      case DType::q4_1:
        encode_q4_1(values.subspan(i, kBlock), out);
        break;
      default:
        CHECK(false && "a type that is not encoded here");
    }
  }
  return out;
}

}  // namespace quire
