// kv/memory.h - the memory behind an arena: addresses reserved once, filled and emptied page by
// page.
//
// An Arena uses it. Host memory is implemented here, device memory (CUDA VMM) in
// kv/device_memory.h. Offsets and sizes are multiples of page_bytes(). Memory keeps its bytes from
// commit to decommit.
//
//   TRY(std::unique_ptr<Memory> memory, reserve_host_memory({.bytes = 64ull << 30}));
//   TRY_STATUS(memory->commit(0, memory->page_bytes()));
//   std::memset(memory->base(), 0, memory->page_bytes());
//   memory->decommit(0, memory->page_bytes());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace quire {

inline constexpr std::size_t kMemoryPage = std::size_t{2} << 20;

class Memory {
 public:
  virtual ~Memory() = default;

  virtual std::byte* base() const = 0;  // where kernels read; on a device, a device address
  virtual std::size_t reserved_bytes() const = 0;
  virtual std::size_t page_bytes() const = 0;

  // Works or changes nothing; Code::exhausted when the machine has no more.
  virtual Status commit(std::size_t offset, std::size_t bytes) = 0;
  virtual void decommit(std::size_t offset, std::size_t bytes) = 0;
  // A hint: this uncommitted range will be committed soon. Gets its pages from the system now, so
  // that commit need not wait. False if nothing was done; otherwise call commit or forget.
  virtual bool prepare(std::size_t /*offset*/, std::size_t /*bytes*/) { return false; }
  virtual void forget(std::size_t /*offset*/, std::size_t /*bytes*/) {}

  // On committed ranges only. A device queues both behind the work already submitted.
  virtual void copy(std::size_t to, std::size_t from,
                    std::size_t bytes) = 0;  // ranges do not overlap
  virtual void fill(std::size_t offset, std::size_t bytes, std::byte with) = 0;
  virtual bool filled(std::size_t offset, std::size_t bytes, std::byte with) const = 0;
  virtual bool on_host() const = 0;  // the CPU may read and write through base()
};

struct HostMemoryOptions {
  std::size_t bytes = 0;                 // of address space; rounded up to pages
  std::size_t page_bytes = kMemoryPage;  // a power of two of at least 4096; tests use small ones
  bool huge_pages = true;                // ask for them; the system may say no
};
Result<std::unique_ptr<Memory>> reserve_host_memory(const HostMemoryOptions& options);

// Host memory whose commits can be made to fail, for tests and simulations.
class FailingMemory final : public Memory {
 public:
  explicit FailingMemory(std::unique_ptr<Memory> real) : real_(std::move(real)) {}

  // Once `pages` more pages have been committed, commits fail until the next call.
  void fail_after(std::uint64_t pages) { pages_left_ = pages; }
  void never_fail() { pages_left_ = UINT64_MAX; }
  std::uint64_t failures() const { return failures_; }
  std::uint64_t committed_bytes() const { return committed_bytes_; }

  std::byte* base() const override { return real_->base(); }
  std::size_t reserved_bytes() const override { return real_->reserved_bytes(); }
  std::size_t page_bytes() const override { return real_->page_bytes(); }
  Status commit(std::size_t offset, std::size_t bytes) override;
  void decommit(std::size_t offset, std::size_t bytes) override;
  bool prepare(std::size_t offset, std::size_t bytes) override {
    return real_->prepare(offset, bytes);
  }
  void forget(std::size_t offset, std::size_t bytes) override { real_->forget(offset, bytes); }
  void copy(std::size_t to, std::size_t from, std::size_t bytes) override {
    real_->copy(to, from, bytes);
  }
  void fill(std::size_t offset, std::size_t bytes, std::byte with) override {
    real_->fill(offset, bytes, with);
  }
  bool filled(std::size_t offset, std::size_t bytes, std::byte with) const override {
    return real_->filled(offset, bytes, with);
  }
  bool on_host() const override { return real_->on_host(); }

 private:
  std::unique_ptr<Memory> real_;
  std::uint64_t pages_left_ = UINT64_MAX, failures_ = 0, committed_bytes_ = 0;
};

}  // namespace quire
