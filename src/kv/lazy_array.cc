#include "kv/lazy_array.h"

#include <sys/mman.h>

namespace quire::lazy {

void* map_zeroed(std::size_t bytes, LazyPages pages) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(at != MAP_FAILED);
  if (pages == LazyPages::huge) (void)madvise(at, bytes, MADV_HUGEPAGE);  // a wish
  return at;
}

void unmap(void* at, std::size_t bytes) { munmap(at, bytes); }

}  // namespace quire::lazy
