// What attention over encoded blocks is, row by row.
#include "kernels/sealed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/attend_scratch.h"
#include "kernels/kv_run.h"
#include "kernels/ref/partial.h"

namespace quire::ref {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

}  // namespace

void attend_sealed(const SealedStep& step, const AttendTask& task, std::byte* scratch) {
  const AttendShape& s = step.shape;
  const KvSequenceView& sequence = step.kv.sequences[task.sequence];
  const std::uint32_t heads = s.query_heads / s.kv_heads, dim = s.head_dim;
  const std::uint32_t tokens = step.kv.tokens_per_block;
  const AttendScratch a =
      attend_scratch(reinterpret_cast<float*>(scratch), task.row_count * heads, dim, s.rotated);
  const SealedScratch own = sealed_scratch(step, scratch);
  for (std::uint32_t kv_head = task.kv_head; kv_head < task.kv_head + task.kv_head_count; ++kv_head)
    for (std::uint32_t i = 0; i < task.row_count; ++i) {
      const std::uint32_t position = sequence.past + task.first_row + i;
      const SealedReach seen =
          sealed_reach(position, tokens, step.kv.window, step.recent_blocks, step.sink_blocks);
      const std::uint32_t lane = lane_of(s, kv_head);
      const bool whole = task.split == kAllSplits;
      EncodedPart key_part = step.keys, value_part = step.values;
      key_part.lane += 2 * kv_head;
      value_part.lane += 2 * kv_head;
      for (std::uint32_t h = 0; h < heads; ++h) {
        const float* query = step.queries +
                             (sequence.first_row + task.first_row + i) * step.row_stride +
                             std::size_t{kv_head * heads + h} * query_dim(s);
        for (std::uint32_t d = 0; d < query_dim(s); ++d) a.queries[d] = s.scale * query[d];
        if (s.rotated != 0)
          step.kernels->prepare(step.latent, a.queries, dim, 1, own.prepared_latent);
        const float* const for_keys = s.rotated != 0 ? a.queries + dim : a.queries;
        step.kernels->prepare(key_part, for_keys, key_dim(s), 1, own.prepared);
        Partial row{.out = a.row_out}, split{.out = a.split_out};
        row.clear(dim);
        const auto partial_of = [&](std::uint32_t index) {
          return step.partials +
                 (task.partial + i * task.partial_stride + index - task.split) * partial_floats(s);
        };
        for (std::uint32_t index = task.split; !whole && index < task.split + task.split_count;
             ++index)
          partial_of(index)[heads + h] = 0;
        for (const KvRun& run : {lane_run(sequence, lane),
                                 table_run(sequence, lane, s.page_bytes, seen.begin, seen.end)})
          for (std::uint32_t from = run.begin; from < run.end;) {
            const std::uint32_t index = from / kAttendSplit + run.split_shift;
            const std::uint32_t to =
                std::min(run.end, from / kAttendSplit * kAttendSplit + kAttendSplit);
            const bool mine = whole || index - task.split < task.split_count;
            split.clear(dim);
            for (std::uint32_t at = from; mine && at < to;) {
              const std::uint32_t first = at / kEncodedUnit * kEncodedUnit;
              const std::uint32_t stop = std::min(to, first + kEncodedUnit);
              EncodedUnit keys{}, values{};
              for (std::uint32_t slot = first; slot < stop; slot += tokens) {
                // A block nobody sees may be gone; another stands in for it.
                const std::uint32_t block = std::max(slot, at / tokens * tokens) / tokens;
                const std::byte* page = arena_at(step.kv.arena, run.pages[block]) + run.offset;
                keys.pages[keys.page_count++] = page;
                values.pages[values.page_count++] = page + s.key_bytes;
              }
              keys.position = first;
              step.kernels->scores(key_part, keys, own.prepared, 1, a.weights);
              if (s.rotated != 0) {
                EncodedUnit latent{};
                for (const std::byte* page : std::span(values.pages, values.page_count)) {
                  std::byte* const keys_at =
                      own.turned + latent.page_count * step.latent.page_bytes;
                  step.kernels->turn(value_part, page, keys_at);
                  latent.pages[latent.page_count++] = keys_at;
                }
                step.kernels->scores(step.latent, latent, own.prepared_latent, 1, own.dots);
                for (std::uint32_t j = 0; j < kEncodedUnit; ++j)
                  a.weights[j] = own.dots[j] + a.weights[j];
              }
              if (s.softcap != 0)
                for (std::uint32_t j = 0; j < kEncodedUnit; ++j)
                  a.weights[j] = s.softcap * ref::tanh(a.weights[j] * (1.0f / s.softcap));
              float top = kLowest, sums[16] = {};
              for (std::uint32_t j = at - first; j < stop - first; ++j)
                top = std::max(top, a.weights[j]);
              for (std::uint32_t j = 0; j < kEncodedUnit; ++j) {
                const bool sees = j >= at - first && j < stop - first;
                a.weights[j] = sees ? ref::exp_coarse(a.weights[j] - top) : 0;
                sums[j % 16] += a.weights[j];
              }
              float keep, take;
              split.merge_sum(top, ref::add_tree(sums), keep, take);
              step.kernels->add_values(value_part, values, a.weights, 1, &keep, &take, split.out);
              at = stop;
            }
            if (mine && whole) row.merge(split, dim);
            if (mine && !whole) split.leave(partial_of(index), h, heads, dim);
            from = to;
          }
        if (whole)
          row.leave(
              step.partials +
                  (task.partial + (kv_head - task.kv_head) * task.row_count * task.partial_stride +
                   i * task.partial_stride) *
                      partial_floats(s),
              h, heads, dim);
      }
    }
}

void merge_sealed(const SealedStep& step, const SealedMerge& m) {
  const AttendShape& s = step.shape;
  const std::uint32_t heads = s.query_heads / s.kv_heads, dim = s.head_dim;
  for (std::uint32_t h = 0; h < heads; ++h) {
    float* out =
        step.out + m.row * step.row_stride + std::size_t{m.kv_head * heads + h} * query_dim(s);
    Partial row{.out = out};
    row.clear(dim);
    const auto fold = [&](std::uint32_t first, std::uint32_t count) {
      for (std::uint32_t i = first; i < first + count; ++i) {
        float* partial = step.partials + i * partial_floats(s);
        if (partial[heads + h] == 0) continue;
        row.merge({partial[h], partial[heads + h], partial + 2 * heads + h * dim}, dim);
      }
    };
    fold(m.encoded_first, m.encoded_count);
    if (m.encoded_count > 0) step.kernels->finish(step.values, 1, out);
    fold(m.rows_first, m.rows_count);
    if (step.sinks != nullptr) row.add_sink(step.sinks[m.kv_head * heads + h], dim);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] = out[d] / row.sum;
  }
}

}  // namespace quire::ref
