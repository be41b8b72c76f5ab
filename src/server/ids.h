// server/ids.h - random identifiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace quire {

std::string random_hex(std::size_t digits);
std::uint64_t random_u64();

}  // namespace quire
