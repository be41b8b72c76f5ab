#pragma once

namespace quire {

// Sanitizers make arithmetic five to twenty times slower: tests do less of it under them.
#ifdef QUIRE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace quire
