#include "kv/device_memory.h"

#include <algorithm>
#include <vector>

namespace quire {
namespace {

// A mapping takes the driver a millisecond, whatever its size. So memory is mapped in large
// granules, and a few unused ones stay mapped for the next request.
constexpr std::size_t kGranule = std::size_t{256} << 20, kIdleMax = 16;

class DeviceMemory final : public Memory {
 public:
  DeviceMemory(const CudaDevice& device, CudaStream stream, void* base, std::size_t bytes,
               std::size_t page_bytes)
      : device_(device),
        stream_(stream),
        base_(base),
        bytes_(bytes),
        page_bytes_(page_bytes),
        granules_(bytes / kGranule) {}
  ~DeviceMemory() override { api().release(base_, bytes_); }

  std::byte* base() const override { return static_cast<std::byte*>(base_); }
  std::size_t reserved_bytes() const override { return bytes_; }
  std::size_t page_bytes() const override { return page_bytes_; }

  Status commit(std::size_t offset, std::size_t bytes) override {
    check_range(offset, bytes);
    for (std::size_t g = offset / kGranule; g * kGranule < offset + bytes; ++g) {
      if (granules_[g].mapped) continue;
      TRY_STATUS(
          cuda_status(device_, api().commit(base_, g * kGranule, kGranule), "more KV memory"));
      granules_[g].mapped = true;
      ++idle_;
    }
    each_part(offset, bytes, [&](Granule& g, std::size_t part) {
      if (g.committed == 0) --idle_;
      g.committed += part;
    });
    return {};
  }
  void decommit(std::size_t offset, std::size_t bytes) override {
    check_range(offset, bytes);
    each_part(offset, bytes, [&](Granule& g, std::size_t part) {
      CHECK(g.committed >= part);
      g.committed -= part;
      if (g.committed > 0 || ++idle_ <= kIdleMax) return;
      const auto index = static_cast<std::size_t>(&g - granules_.data());
      CHECK(api().decommit(base_, index * kGranule, kGranule) == 0);
      g.mapped = false;
      --idle_;
    });
  }
  void copy(std::size_t to, std::size_t from, std::size_t bytes) override {
    CHECK(api().copy_on_device(base() + to, base() + from, bytes, stream_) == 0);
  }
  void fill(std::size_t offset, std::size_t bytes, std::byte with) override {
    CHECK(api().fill(base() + offset, static_cast<int>(with), bytes, stream_) == 0);
  }
  bool filled(std::size_t offset, std::size_t bytes, std::byte with) const override {
    std::vector<std::byte> host(bytes);
    CHECK(api().copy_to_host(host.data(), base() + offset, bytes, stream_) == 0);
    CHECK(api().wait(stream_) == 0);
    return std::ranges::all_of(host, [&](std::byte b) { return b == with; });
  }
  bool on_host() const override { return false; }

 private:
  const CudaApi& api() const { return *device_.api; }
  void check_range(std::size_t offset, std::size_t bytes) const {
    CHECK(offset % page_bytes_ == 0 && bytes % page_bytes_ == 0);
    CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  }
  struct Granule {
    bool mapped = false;
    std::size_t committed = 0;  // bytes
  };
  template <class F>
  void each_part(std::size_t offset, std::size_t bytes, F f) {
    for (const std::size_t end = offset + bytes; offset < end;) {
      const std::size_t part = std::min(end, (offset / kGranule + 1) * kGranule) - offset;
      f(granules_[offset / kGranule], part);
      offset += part;
    }
  }

  const CudaDevice& device_;
  CudaStream stream_;
  void* base_;
  std::size_t bytes_, page_bytes_;
  std::vector<Granule> granules_;
  std::size_t idle_ = 0;  // mapped granules without a committed byte
};

}  // namespace

Result<std::unique_ptr<Memory>> reserve_device_memory(const CudaDevice& device, CudaStream stream,
                                                      std::size_t bytes) {
  void* base = nullptr;
  std::uint64_t page = kMemoryPage;
  bytes = (bytes + kGranule - 1) / kGranule * kGranule;
  TRY_STATUS(
      cuda_status(device, device.api->reserve(bytes, &base, &page), "reserving KV addresses"));
  CHECK(kGranule % page == 0);
  return std::unique_ptr<Memory>(
      std::make_unique<DeviceMemory>(device, stream, base, bytes, kMemoryPage));
}

}  // namespace quire
