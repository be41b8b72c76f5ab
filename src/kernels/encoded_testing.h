// kernels/encoded_testing.h - a unit of encoded pages and rows against it, for tests, the fuzzer
// and the benchmark.
#pragma once

#include <cstring>
#include <vector>

#include "base/half.h"
#include "format/testing.h"
#include "kernels/encoded.h"

namespace quire {

// Bytes at a multiple of 64.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t n) : bytes_(n + 64) {}
  std::byte* data() {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - at % 64) % 64;
  }

 private:
  std::vector<std::byte> bytes_;
};

// Pages of one side and where they lie.
class EncodedPages {
 public:
  EncodedPages(const Codec& codec, Side side, Rows rows, std::uint32_t count)
      : part(encoded_part(codec, side, rows)), stored_(rows), bytes_(count * part.page_bytes) {
    unit.page_count = count;
    for (std::uint32_t i = 0; i < count; ++i) unit.pages[i] = page(i);
  }

  std::byte* page(std::uint32_t i) { return bytes_.data() + i * part.page_bytes; }
  std::uint32_t slots() const { return unit.page_count * part.rows.tokens; }

  // rows: [slots][dim]
  void encode(const std::vector<float>& rows) {
    for (std::uint32_t i = 0; i < unit.page_count; ++i) {
      std::memset(page(i), 0, part.page_bytes);
      part.codec->encode(*part.codec, part.side, stored_,
                         &rows[std::size_t{i} * stored_.tokens * stored_.dim], page(i));
    }
  }
  std::vector<float> decode() {
    std::vector<float> rows(std::size_t{slots()} * stored_.dim);
    for (std::uint32_t i = 0; i < unit.page_count; ++i)
      part.codec->decode(*part.codec, part.side, stored_, page(i),
                         &rows[std::size_t{i} * stored_.tokens * stored_.dim]);
    return rows;
  }

  EncodedPart part;
  EncodedUnit unit{};

 private:
  Rows stored_;  // of a page: those of all its layers
  AlignedBytes bytes_;
};

// What one instruction set makes of n rows; slots that are not written stay 0.
inline std::vector<float> run_scores(Isa isa, const EncodedPages& keys,
                                     const std::vector<float>& queries, std::uint32_t n) {
  const EncodedKernels& e = encoded_kernels(isa);
  AlignedBytes prepared(n * keys.part.prepared_bytes);
  e.prepare(keys.part, queries.data(), keys.part.rows.dim, n, prepared.data());
  std::vector<float> dots(std::size_t{n} * kEncodedUnit);
  e.scores(keys.part, keys.unit, prepared.data(), n, dots.data());
  return dots;
}

// out starts as 1, is kept by half and takes in three times the sum.
inline std::vector<float> run_values(Isa isa, const EncodedPages& values,
                                     const std::vector<float>& weights, std::uint32_t n) {
  const EncodedKernels& e = encoded_kernels(isa);
  std::vector<float> out(std::size_t{n} * values.part.rows.dim, 1.0f), keep(n, 0.5f), take(n, 3);
  e.add_values(values.part, values.unit, weights.data(), n, keep.data(), take.data(), out.data());
  e.finish(values.part, n, out.data());
  return out;
}

// The same bits, or both NaN.
inline bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

}  // namespace quire
