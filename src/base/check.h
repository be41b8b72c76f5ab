// base/check.h - CHECK is always on; DCHECK is for hot loops.
#pragma once

namespace quire {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}

#define CHECK(c) (static_cast<bool>(c) ? void(0) : ::quire::check_failed(#c, __FILE__, __LINE__))
#ifdef NDEBUG
#define DCHECK(c) void(sizeof(static_cast<bool>(c)))
#else
#define DCHECK(c) CHECK(c)
#endif
