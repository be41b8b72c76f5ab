// Latent attention (MLA) around attention itself: rows become queries and what is cached, and results
// become what the output matrix multiplies. model/layer_spec.h has the formulas.
//
// Per head there is a small product with k_b before attention, and one with v_b after it. A thread
// takes whole heads, or its rows through all heads, so both sides of such a product stay in its cache.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "model/broken_rows.h"
#include "model/pass.h"

namespace quire {

void Pass::project_latent(const Layer& l, const ActivationRows& in) {
  const Attention& a = l.attn;
  const std::uint32_t width = a.projected(), rank = a.latent.query_rank;
  float* const projected = floats(scratch_.qkv);
  const Range mine = unit_share(width, kPanelOutputs);
  for (const ProjectionPart& part : l.w.qkv) {
    const std::uint32_t begin = std::max(mine.begin, part.first),
                        end = std::min(mine.end, part.first + part.matrix.outputs);
    if (begin < end)
      s_.linear.multiply(part.matrix, in, matrix_rows_.begin, matrix_rows_.end, begin - part.first,
                         end - part.first, projected + part.first, width, &fetch_);
  }
  meet_after_columns();
  const Range rows = sharing_ == Sharing::rows ? matrix_rows_ : share(row_count_, 1);
  for (std::uint32_t r = rows.begin; r < rows.end; ++r) store_latent(l, r);
  const bool few = sharing_ == Sharing::few;
  const ActivationRows ranks = (few ? own_.ranks : scratch_.ranks).of(rank);
  if (rank != 0) {
    const Range normed_rows = few ? Range{0, row_count_} : rows;
    for (std::uint32_t r = normed_rows.begin; r < normed_rows.end; ++r)
      encode(normed(a.latent.norm, l.w.q_norm, projected + std::size_t{r} * width, rank,
                    own_.row.data()),
             r, 0, rank, ranks);
    meet_after_rows();
  }
  const Range heads = unit_share(a.query_heads, 1);
  for (std::uint32_t head = heads.begin; head < heads.end; ++head) absorb_head(l, head, ranks);
}

// The latent part is normed, the rotated part rotated; both are what the cache keeps of the row.
void Pass::store_latent(const Layer& l, std::uint32_t r) {
  const Attention& a = l.attn;
  const LayerPlace place = geometry_.row_place(l.index);
  const GroupStep& group = s_.groups[place.group];
  const AttendShape& shape = group.shape;
  const float* const made =
      floats(scratch_.qkv) + std::size_t{r} * a.projected() + a.first_queries();
  float *const latent = own_.row.data(), *const key = latent + a.value_dim;
  normed(a.latent.norm, l.w.k_norm, made, a.value_dim, latent);
  std::memcpy(key, made + a.value_dim, a.key_dim * sizeof(float));
  if (!step_.broken.empty() &&
      !(all_within(latent, a.value_dim, shape.rows) && all_within(key, a.key_dim, shape.rows)))
    std::atomic_ref(step_.broken[r]).store(1, std::memory_order_relaxed);
  const RopeTable& rope = s_.ropes[a.rope];
  const std::uint32_t position = step_.positions[r];
  s_.vector.rope(key, 2 * rope.half(), rope.cosines(position), rope.sines(position));
  const RowPlace& row = group.places[r];
  const std::uint32_t index =
      row.passing ? place.index % geometry_.groups[place.group].together : place.index;
  std::byte* const page = row.block + std::size_t{index} * shape.page_bytes;
  s_.attend.store_value(shape, geometry_.tokens_per_block, latent, row.slot, page);
  s_.attend.store_key(shape, geometry_.tokens_per_block, key, row.slot, page);
}

// One head of all queries, as it meets what is cached: k_b times its plain part, and its rotated part.
void Pass::absorb_head(const Layer& l, std::uint32_t head, const ActivationRows& ranks) {
  const Attention& a = l.attn;
  const std::uint32_t dim = a.projected_dim(), plain_dim = a.latent.plain_dim, width = a.queries();
  const auto [begin, end] = matrix_rows_;
  const float* from = floats(scratch_.qkv) + std::size_t{begin} * a.projected() + head * dim;
  std::size_t stride = a.projected();
  if (a.latent.query_rank != 0) {
    stride = dim;
    from = floats(own_.unit);
    s_.linear.multiply(l.w.q_b, ranks, begin, end, head * dim, (head + 1) * dim,
                       floats(own_.unit) - std::size_t{begin} * dim - head * dim, dim, &fetch_);
  }
  const RopeTable& rope = s_.ropes[a.rope];
  const ActivationRows plain = own_.head.of(plain_dim);
  float* const queries = floats(scratch_.queries) + std::size_t{head} * a.query_dim();
  for (std::uint32_t r = begin; r < end; ++r, from += stride) {
    float* const rotated = queries + std::size_t{r} * width + a.value_dim;
    std::memcpy(rotated, from + plain_dim, a.key_dim * sizeof(float));
    const std::uint32_t position = step_.positions[r];
    s_.vector.rope(rotated, 2 * rope.half(), rope.cosines(position), rope.sines(position));
    if (a.rotated_scale != 1) s_.vector.scale(rotated, a.rotated_scale, a.key_dim);
    encode(from, r, 0, plain_dim, plain);
  }
  s_.linear.multiply(l.w.k_b, plain, begin, end, head * a.value_dim, (head + 1) * a.value_dim,
                     queries - std::size_t{head} * a.value_dim, width, &fetch_);
}

// v_b times each head's sum of latent rows, into what the output matrix multiplies.
void Pass::expand_latent(const Layer& l, const ActivationRows& out) {
  const Attention& a = l.attn;
  const std::uint32_t dim = a.latent.out_dim;
  const auto [begin, end] = matrix_rows_;
  const ActivationRows latent = own_.head.of(a.value_dim);
  const Range heads = unit_share(a.query_heads, 1);
  for (std::uint32_t head = heads.begin; head < heads.end; ++head) {
    for (std::uint32_t r = begin; r < end; ++r)
      encode(floats(scratch_.attended_rows) + std::size_t{step_row(r)} * a.queries() +
                 std::size_t{head} * a.query_dim(),
             r, 0, a.value_dim, latent);
    float* const made = floats(own_.unit);
    s_.linear.multiply(l.w.v_b, latent, begin, end, head * dim, (head + 1) * dim,
                       made - std::size_t{begin} * dim - head * dim, dim, &fetch_);
    for (std::uint32_t r = begin; r < end; ++r)
      encode(made + std::size_t{r - begin} * dim, r, head * dim, dim, out);
  }
  meet_after_columns();
}

}  // namespace quire
