#include "base/cpu.h"

#include <cstdlib>
#include <string>

namespace quire {

std::string_view isa_name(Isa isa) {
  constexpr std::string_view names[] = {"scalar", "avx2", "avx512", "vnni", "bf16"};
  return names[static_cast<int>(isa)];
}

Result<Isa> find_isa(std::string_view name) {
  for (const Isa isa : kIsas)
    if (isa_name(isa) == name) return isa;
  return Error{Code::not_found, "no instruction set '" + std::string(name) +
                                    "'; there are: scalar avx2 avx512 vnni bf16"};
}

bool cpu_has(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    case Isa::avx512:
      return cpu_has(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::vnni:
      return cpu_has(Isa::avx512) && __builtin_cpu_supports("avx512vnni");
    case Isa::bf16:
      return cpu_has(Isa::vnni) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

Isa best_isa() {
  Isa best = Isa::scalar;
  for (const Isa isa : kIsas)
    if (cpu_has(isa)) best = isa;
  if (const char* wanted = std::getenv("QUIRE_ISA")) {
    const Result<Isa> isa = find_isa(wanted);
    if (isa.ok() && isa.value() < best) best = isa.value();
  }
  return best;
}

}  // namespace quire
