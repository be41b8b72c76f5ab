// model/huge_buffer.h - zeroed anonymous memory on huge pages, where the system allows: packed
// weights and the scratch of a forward pass.
//
//   TRY(HugeBuffer memory, HugeBuffer::allocate(bytes, "the weights"));
//   pack(memory.data());
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace quire {

class HugeBuffer {
 public:
  // Code::exhausted when the system has no more; `purpose` goes into the message.
  static Result<HugeBuffer> allocate(std::size_t bytes, std::string_view purpose);

  HugeBuffer() = default;
  HugeBuffer(HugeBuffer&& o) noexcept { swap(o); }
  HugeBuffer& operator=(HugeBuffer&& o) noexcept {
    HugeBuffer(std::move(o)).swap(*this);
    return *this;
  }
  ~HugeBuffer();
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  HugeBuffer(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  void swap(HugeBuffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;  // whole huge pages
};

}  // namespace quire
