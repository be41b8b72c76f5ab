#include "server/embedding.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace quire {

std::optional<std::string> too_many_numbers(const GenerationRequest& asked, std::uint32_t hidden,
                                            bool base64) {
  const std::size_t most = base64 ? 4 << 20 : 1 << 20;
  const std::size_t numbers =
      asked.prompts.size() * (asked.embedding.dimensions > 0 ? asked.embedding.dimensions : hidden);
  if (numbers <= most) return std::nullopt;
  return fmt::format(
      "asks for {} numbers, and an answer holds at most {} as {}; send fewer texts at "
      "once",
      numbers, most, base64 ? "base64" : "float");
}

std::vector<float> shape_embedding(std::span<const float> pooled, const EmbeddingRequest& asked) {
  const std::size_t kept = asked.dimensions == 0
                               ? pooled.size()
                               : std::min<std::size_t>(asked.dimensions, pooled.size());
  std::vector<float> out(pooled.begin(), pooled.begin() + static_cast<std::ptrdiff_t>(kept));
  if (!asked.normalize) return out;
  double squares = 0;
  for (const float x : out) squares += double{x} * x;
  const double length = std::sqrt(squares);
  if (length > 0)
    for (float& x : out) x = static_cast<float>(x / length);
  return out;
}

std::string base64_floats(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* const bytes = reinterpret_cast<const unsigned char*>(values.data());
  const std::size_t size = values.size_bytes();
  std::string out;
  out.reserve((size + 2) / 3 * 4);
  for (std::size_t i = 0; i < size; i += 3) {
    const std::size_t count = std::min<std::size_t>(3, size - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? bytes[i + k] : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      out += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace quire
