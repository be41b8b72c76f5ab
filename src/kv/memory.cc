#include "kv/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace quire {
namespace {

constexpr std::size_t kSystemPage = 4096;  // or more: the first write to any of them counts

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

class HostMemory final : public Memory {
 public:
  HostMemory(void* mapped, std::size_t mapped_bytes, std::byte* base,
             const HostMemoryOptions& options)
      : mapped_(mapped), mapped_bytes_(mapped_bytes), base_(base), options_(options) {}
  ~HostMemory() override { munmap(mapped_, mapped_bytes_); }

  std::byte* base() const override { return base_; }
  std::size_t reserved_bytes() const override { return options_.bytes; }
  std::size_t page_bytes() const override { return options_.page_bytes; }

  Status commit(std::size_t offset, std::size_t bytes) override {
    check_range(offset, bytes);
    if (mprotect(base_ + offset, bytes, PROT_READ | PROT_WRITE) != 0)
      return Error{Code::exhausted, fmt::format("cannot commit {} bytes of KV memory: {}; lower "
                                                "--kv-cache-memory or free memory",
                                                bytes, std::strerror(errno))};
    return {};
  }

  void decommit(std::size_t offset, std::size_t bytes) override {
    check_range(offset, bytes);
    CHECK(madvise(base_ + offset, bytes, MADV_DONTNEED) == 0);
    CHECK(mprotect(base_ + offset, bytes, PROT_NONE) == 0);
  }

  bool prepare(std::size_t offset, std::size_t bytes) override {
    if (!commit(offset, bytes).ok()) return false;
    for (std::size_t i = 0; i < bytes; i += kSystemPage)
      static_cast<volatile std::byte*>(base_ + offset)[i] = std::byte{0};
    return true;
  }
  void forget(std::size_t offset, std::size_t bytes) override { decommit(offset, bytes); }

  void copy(std::size_t to, std::size_t from, std::size_t bytes) override {
    std::memcpy(base_ + to, base_ + from, bytes);
  }
  void fill(std::size_t offset, std::size_t bytes, std::byte with) override {
    std::memset(base_ + offset, static_cast<int>(with), bytes);
  }
  bool filled(std::size_t offset, std::size_t bytes, std::byte with) const override {
    const std::byte* at = base_ + offset;  // equal to itself shifted by one, and the first is right
    return bytes == 0 || (at[0] == with && std::memcmp(at, at + 1, bytes - 1) == 0);
  }
  bool on_host() const override { return true; }

 private:
  void check_range(std::size_t offset, std::size_t bytes) const {
    CHECK(offset % options_.page_bytes == 0 && bytes % options_.page_bytes == 0);
    CHECK(offset <= options_.bytes && bytes <= options_.bytes - offset);
  }
  void* mapped_;
  std::size_t mapped_bytes_;
  std::byte* base_;
  HostMemoryOptions options_;
};

}  // namespace

Result<std::unique_ptr<Memory>> reserve_host_memory(const HostMemoryOptions& wanted) {
  HostMemoryOptions options = wanted;
  if (!std::has_single_bit(options.page_bytes) || options.page_bytes < 4096)
    return Error{Code::invalid, fmt::format("a memory page of {} bytes: must be a power of two of "
                                            "at least 4096",
                                            options.page_bytes)};
  if (options.bytes == 0 || options.bytes > SIZE_MAX / 2)
    return Error{Code::invalid,
                 fmt::format("cannot reserve {} bytes of KV addresses", options.bytes)};
  options.bytes = round_up(options.bytes, options.page_bytes);
  const std::size_t mapped_bytes = options.bytes + options.page_bytes;  // room to align
  void* mapped =
      mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return Error{Code::exhausted,
                 fmt::format("cannot reserve {} bytes of KV addresses: {}; is the virtual memory "
                             "limited (ulimit -v)?",
                             mapped_bytes, std::strerror(errno))};
  const auto base = reinterpret_cast<std::byte*>(
      round_up(reinterpret_cast<std::uintptr_t>(mapped), options.page_bytes));
  if (options.huge_pages) (void)madvise(base, options.bytes, MADV_HUGEPAGE);  // a wish
  return std::unique_ptr<Memory>(std::make_unique<HostMemory>(mapped, mapped_bytes, base, options));
}

Status FailingMemory::commit(std::size_t offset, std::size_t bytes) {
  const std::uint64_t pages = bytes / page_bytes();
  if (pages > pages_left_) {
    ++failures_;
    return Error{Code::exhausted, "commit made to fail by a test"};
  }
  TRY_STATUS(real_->commit(offset, bytes));
  if (pages_left_ != UINT64_MAX) pages_left_ -= pages;
  committed_bytes_ += bytes;
  return {};
}

void FailingMemory::decommit(std::size_t offset, std::size_t bytes) {
  CHECK(committed_bytes_ >= bytes);
  committed_bytes_ -= bytes;
  real_->decommit(offset, bytes);
}

}  // namespace quire
