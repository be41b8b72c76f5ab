#include "model/huge_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace quire {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

Error no_memory(std::size_t bytes, std::string_view purpose, int why) {
  return {Code::exhausted,
          fmt::format("cannot get {:.1f} MB of memory for {}: {}; end other programs, lower "
                      "--batch-rows, or take a smaller or more strongly quantized model",
                      static_cast<double>(bytes) / 1e6, purpose, std::strerror(why))};
}

}  // namespace

Result<HugeBuffer> HugeBuffer::allocate(std::size_t bytes, std::string_view purpose) {
  if (bytes == 0) return HugeBuffer();
  if (bytes > SIZE_MAX / 2) return no_memory(bytes, purpose, ENOMEM);
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  // One huge page more than asked, so that the start can be aligned.
  void* at = ::mmap(nullptr, rounded + kHugePage, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return no_memory(bytes, purpose, errno);
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > address) ::munmap(at, aligned - address);
  const std::uintptr_t end = address + rounded + kHugePage;
  if (aligned + rounded < end)
    ::munmap(reinterpret_cast<void*>(aligned + rounded), end - aligned - rounded);
  const auto data = reinterpret_cast<std::byte*>(aligned);
  (void)::madvise(data, rounded, MADV_HUGEPAGE);  // a wish
  return HugeBuffer(data, rounded);
}

HugeBuffer::~HugeBuffer() {
  if (data_) ::munmap(data_, bytes_);
}

}  // namespace quire
