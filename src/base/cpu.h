// base/cpu.h - which instruction sets this machine has, and which one to use.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace quire {

// Each level includes those before it. All give the same bits; later ones are faster.
enum class Isa : std::uint8_t { scalar, avx2, avx512, vnni, bf16 };

inline constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::vnni, Isa::bf16};

std::string_view isa_name(Isa isa);
Result<Isa> find_isa(std::string_view name);
bool cpu_has(Isa isa);
Isa best_isa();  // the last one cpu_has; QUIRE_ISA=scalar|avx2|avx512|vnni|bf16 overrides downwards

}  // namespace quire
