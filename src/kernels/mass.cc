#include "kernels/mass.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/ref/math.h"

namespace quire {
namespace {

constexpr std::uint32_t kUnit = kEncodedUnit;
constexpr std::uint32_t kQueriesAtOnce = 36;  // their scores of 8,000 slots just fit L2
constexpr std::size_t kPartsMax = 4;

std::byte* aligned(std::vector<std::byte>& bytes, std::size_t size) {
  if (bytes.size() < size + 63) bytes.resize(size + 63);
  const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
  return bytes.data() + (64 - at % 64) % 64;
}

void encoded_scores(const EncodedKernels& kernels, const MassInput& in, const KeyPart& part,
                    const float* queries, std::uint32_t n, MassScratch& scratch, float* scores,
                    std::size_t stride) {
  const EncodedPart& keys = *part.encoded;
  std::byte* const prepared =
      aligned(scratch.prepared, n * keys.prepared_bytes + std::size_t{n} * kUnit * sizeof(float));
  float* const dots = reinterpret_cast<float*>(prepared + n * keys.prepared_bytes);
  kernels.prepare(keys, queries, in.head_dim, n, prepared);
  const auto pages = [&](std::uint32_t first, const std::byte** to) {
    std::uint32_t count = 0;
    for (std::uint32_t s = first; s < std::min(part.end, first + kUnit); s += in.tokens_per_block)
      to[count++] = arena_at(in.arena, part.pages[s / in.tokens_per_block]) + part.offset;
    return count;
  };
  for (std::uint32_t first = part.begin; first < part.end; first += kUnit) {
    EncodedUnit unit{};
    unit.page_count = pages(first, unit.pages);
    unit.next_count = pages(first + kUnit, unit.next);
    unit.next_bytes = keys.page_bytes;
    kernels.scores(keys, unit, prepared, n, dots);
    const std::uint32_t count = std::min(part.end - first, kUnit);
    for (std::uint32_t i = 0; i < n; ++i)
      std::memcpy(scores + i * stride + (first - part.begin), dots + std::size_t{i} * kUnit,
                  count * sizeof(float));
  }
}

}  // namespace

void add_mass(const MassKernels& kernels, const EncodedKernels& encoded, const MassInput& in,
              MassRule rule, float weight, MassScratch& scratch, float* out) {
  CHECK(in.parts.size() <= kPartsMax);
  MassRow rows[kPartsMax];
  std::uint32_t slots = 0, padded = 0;
  for (std::size_t p = 0; p < in.parts.size(); ++p) {
    const std::uint32_t count = in.parts[p].end - in.parts[p].begin;
    DCHECK(count == 0 || in.parts[p].begin % 16 == 0);
    rows[p] = {padded, count, slots};
    slots += count;
    padded += (count + kUnit - 1) / kUnit * kUnit;
  }
  const std::span<const MassRow> row_span(rows, in.parts.size());
  const auto sizes = [](std::vector<float>& v, std::size_t n) {
    if (v.size() < n) v.resize(n);
  };
  sizes(scratch.queries, std::size_t{kQueriesAtOnce} * in.head_dim);
  sizes(scratch.scores, std::size_t{kQueriesAtOnce} * padded);
  sizes(scratch.weights, padded);
  for (std::uint32_t first = 0; first < in.count; first += kQueriesAtOnce) {
    const std::uint32_t n = std::min(kQueriesAtOnce, in.count - first);
    for (std::uint32_t i = 0; i < n; ++i)
      for (std::uint32_t d = 0; d < in.head_dim; ++d)
        scratch.queries[std::size_t{i} * in.head_dim + d] =
            in.scale * in.queries[(first + i) * in.stride + d];
    float* const scores = scratch.scores.data();
    for (std::size_t p = 0; p < in.parts.size(); ++p) {
      const KeyPart& part = in.parts[p];
      if (part.encoded != nullptr)
        encoded_scores(encoded, in, part, scratch.queries.data(), n, scratch, scores + rows[p].at,
                       padded);
      else
        kernels.scores(in, part, scratch.queries.data(), n, scores + rows[p].at, padded);
    }
    if (in.softcap != 0)
      for (std::size_t i = 0; i < std::size_t{n} * padded; ++i)
        scores[i] = in.softcap * ref::tanh(scores[i] * (1.0f / in.softcap));
    for (std::uint32_t i = 0; i < n; ++i) {
      float* const row = scores + std::size_t{i} * padded;
      const auto hide = [&](std::uint32_t from, std::uint32_t to) {
        for (const MassRow& r : row_span) {
          const std::uint32_t a = std::max(from, r.to), b = std::min(to, r.to + r.count);
          if (a < b)
            std::fill_n(row + r.at + a - r.to, b - a, -std::numeric_limits<float>::infinity());
        }
      };
      const MassReach& reach = in.reach;
      const std::uint32_t end = std::min(slots, reach.own_end + first + i);
      hide(reach.sinks, reach.begin);
      hide(std::max(reach.sinks, reach.end), reach.own);
      hide(end, slots);
      for (const MassRow& r : row_span)
        std::fill(row + r.at + r.count, row + r.at + (r.count + kUnit - 1) / kUnit * kUnit,
                  -std::numeric_limits<float>::infinity());
      const std::uint32_t seen = reach.sinks + (reach.end - reach.begin) + (end - reach.own);
      kernels.fold(rows, static_cast<std::uint32_t>(in.parts.size()), row, scratch.weights.data(),
                   rule, weight, seen, out);
    }
  }
}

const MassKernels& mass_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return kMassScalar;
    case Isa::avx2:
      return kMassAvx2;
    default:
      return kMassAvx512;
  }
}

}  // namespace quire
