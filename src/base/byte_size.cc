#include "base/byte_size.h"

#include <charconv>
#include <utility>

namespace quire {

Result<std::uint64_t> parse_size(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  constexpr std::pair<const char*, double> kUnits[] = {
      {"", 1},    {"B", 1},    {"K", 1e3},      {"KB", 1e3},     {"M", 1e6},      {"MB", 1e6},
      {"G", 1e9}, {"GB", 1e9}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  if (error == std::errc() && number >= 0)
    for (const auto& [name, factor] : kUnits)
      if (unit == name && number * factor < 0x1p60)
        return static_cast<std::uint64_t>(number * factor);
  return Error{Code::invalid, "'" + text + "' is not a size; write for example 512MiB or 8GiB"};
}

}  // namespace quire
