#include "kv/journal.h"

#include <bit>

namespace quire {

Journal::Journal(std::uint32_t records_max)
    : ring_(std::bit_ceil(records_max ? records_max : 1u)), mask_(ring_.size() - 1) {}

}  // namespace quire
