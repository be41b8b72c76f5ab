// Bytes in random parts against decoding them at once with a plain decoder; what is out is always
// valid UTF-8.
#include <cstdint>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

using namespace quire;

namespace {

// Table 3-7 of the Unicode standard, spelled out: one row for each kind of well-formed sequence.
struct Row {
  unsigned char low, high;
  int more;
  unsigned char second_low, second_high;
};
constexpr Row kRows[] = {
    {0x00, 0x7F, 0, 0, 0},       {0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
    {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F}, {0xEE, 0xEF, 2, 0x80, 0xBF},
    {0xF0, 0xF0, 3, 0x90, 0xBF}, {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F}};

std::string decode(const std::uint8_t* data, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size;) {
    std::size_t length = 1;
    bool whole = false;
    for (const Row& row : kRows) {
      if (data[i] < row.low || data[i] > row.high) continue;
      for (int k = 1; k <= row.more && i + length < size; ++k, ++length) {
        const std::uint8_t c = data[i + length];
        if (c < (k == 1 ? row.second_low : 0x80) || c > (k == 1 ? row.second_high : 0xBF)) break;
      }
      whole = length == static_cast<std::size_t>(row.more) + 1;
    }
    if (whole)
      out.append(reinterpret_cast<const char*>(data) + i, length);
    else
      out += "\uFFFD";
    i += length;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t seed = data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Utf8Stream stream;
  std::string out;
  for (std::size_t at = 0, n = 1; at < bytes.size(); at += n) {
    n = 1 + (seed * (at + 1) >> 3) % 5;
    stream.add(bytes.substr(at, n), out);
    CHECK(stream.held() <= 3);
  }
  CHECK(utf8_valid(out));
  stream.finish(out);
  CHECK(out == decode(data + 1, size - 1));
  return 0;
}
