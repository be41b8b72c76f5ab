// Walks the layers' specs and queues their kernels. Activations never leave the device.
#include "kernels/cuda/packed.h"
#include "model/device_model.h"
#include "model/device_upload.h"

namespace quire {

DeviceModel::Layer DeviceModel::layer(const Geometry& geometry, std::uint32_t index) const {
  const LayerPlace place = geometry.places[index], row_place = geometry.row_place(index);
  const LayerGroup &shape = geometry.groups[place.group],
                   &row_shape = geometry.groups[row_place.group];
  const std::uint64_t page_bytes = geometry.page_bytes(shape),
                      row_page_bytes = geometry.page_bytes(row_shape);
  return {.index = index,
          .spec = config_.per_layer[index],
          .w = weights_.layers[index],
          .group = groups_[place.group],
          .shape = shape,
          .row_shape = row_shape,
          .group_index = place.group,
          .row_group_index = row_place.group,
          .page_bytes = page_bytes,
          .offset = place.index * shape.kv_heads * page_bytes,
          .row_page_bytes = row_page_bytes,
          .row_offset = row_place.index * row_shape.kv_heads * row_page_bytes};
}

LinearArgs DeviceModel::product(const DeviceMatrix& w, const void* in, void* out,
                                std::uint32_t rows, LinearOutput kind) const {
  return {.weights = rows_of(w),
          .activations = in,
          .output = out,
          .rows = rows,
          .outputs = w.outputs,
          .inputs = w.inputs,
          .kind = kind,
          .fast = options_.fast,
          .codes = w.codes()};
}

Status DeviceModel::linear(const DeviceMatrix& w, const void* in, void* out, std::uint32_t rows,
                           LinearOutput kind) {
  return check(device_.api->linear(product(w, in, out, rows, kind), stream_));
}

Status DeviceModel::add_norm(float* x, const void* y, const DeviceBuffer* post, const Norm& pre,
                             const DeviceBuffer& weight, void* to, std::uint32_t rows) {
  return check(device_.api->add_norm({.x = x,
                                      .y = y,
                                      .post_norm = post ? post->as<float>() : nullptr,
                                      .weight = weight.as<float>(),
                                      .output = to,
                                      .rows = rows,
                                      .width = config_.hidden,
                                      .epsilon = pre.epsilon},
                                     stream_));
}

Status DeviceModel::run(const Geometry& geometry, const Step& step) {
  const CudaApi& cuda = *device_.api;
  const ModelConfig& c = config_;
  const UploadLayout layout(step.rows, groups_.size());
  TRY_STATUS(check(cuda.embed({.table = rows_of(weights_.embedding),
                               .tokens = uploaded(layout.tokens),
                               .best = best_.as<CudaBest>(),
                               .x = x_.as<float>(),
                               .rows = step.rows,
                               .width = c.hidden,
                               .scale = c.embedding_scale,
                               .codes = weights_.embedding.codes()},
                              stream_)));
  TRY_STATUS(add_norm(x_.as<float>(), nullptr, nullptr, c.per_layer[0].pre_a,
                      weights_.layers[0].pre_a, hidden_.data(), step.rows));
  for (std::uint32_t l = 0; l < c.layers; ++l) TRY_STATUS(run_layer(layer(geometry, l), step));
  if (step.logit_rows == 0) return {};
  TRY_STATUS(
      linear(head(), head_in_.data(), logits_.data(), step.logit_rows, LinearOutput::rows_f32));
  if (!step.greedy) return {};
  return check(cuda.argmax({.logits = logits_.as<float>(),
                            .best = best_.as<CudaBest>(),
                            .rows = step.logit_rows,
                            .vocabulary = c.vocabulary,
                            .sums = step.logprobs},
                           stream_));
}

Status DeviceModel::run_layer(const Layer& l, const Step& step) {
  const bool last = l.index + 1 == config_.layers, tail = last && step.logit_rows != step.rows;
  TRY_STATUS(keys_and_values(l, step));
  if (last && step.logit_rows == 0) return {};  // all is stored
  TRY_STATUS(attend(l, step));

  // After the last layer's attention only rows with logits count.
  const std::uint32_t rows = tail ? step.logit_rows : step.rows, width = l.spec.attn.attended();
  float* const x = (tail ? tail_x_ : x_).as<float>();
  void* const attended = (tail ? queries_ : attended_).data();
  if (tail)
    TRY_STATUS(check(
        device_.api->gather({.select = uploaded(UploadLayout(step.rows, groups_.size()).select),
                             .x = x_.as<float>(),
                             .x_out = x,
                             .attended = attended_.data(),
                             .attended_out = attended,
                             .from_rows = step.rows,
                             .rows = rows,
                             .hidden = config_.hidden,
                             .width = width},
                            stream_)));
  TRY_STATUS(linear(l.w.out, attended, y_.data(), rows, LinearOutput::rows_bf16));
  TRY_STATUS(add_norm(x, y_.data(), &l.w.post_a, l.spec.pre_f, l.w.pre_f, hidden_.data(), rows));
  TRY_STATUS(feed_forward(l, rows));
  if (last)
    return add_norm(x, y_.data(), &l.w.post_f, config_.output_norm, weights_.output_norm,
                    head_in_.data(), rows);
  return add_norm(x, y_.data(), &l.w.post_f, config_.per_layer[l.index + 1].pre_a,
                  weights_.layers[l.index + 1].pre_a, hidden_.data(), rows);
}

Status DeviceModel::keys_and_values(const Layer& l, const Step& step) {
  const CudaApi& cuda = *device_.api;
  const Attention& a = l.spec.attn;
  const UploadLayout layout(step.rows, groups_.size());
  TRY_STATUS(linear(l.w.qkv, hidden_.data(), qkv_.data(), step.rows, LinearOutput::rows_bf16));
  TRY_STATUS(check(cuda.rope_store({.qkv = qkv_.data(),
                                    .bias = l.w.qkv_bias.as<float>(),
                                    .q_norm = l.w.q_norm.as<float>(),
                                    .k_norm = l.w.k_norm.as<float>(),
                                    .angles = angles_[a.rope].as<float>(),
                                    .positions = uploaded(layout.positions),
                                    .places = uploaded(layout.places(l.row_group_index)),
                                    .queries = queries_.data(),
                                    .arena = const_cast<std::byte*>(arena_),
                                    .rows = step.rows,
                                    .query_heads = a.query_heads,
                                    .kv_heads = a.kv_heads,
                                    .head_dim = a.key_dim,
                                    .norm_dim = model_.per_layer[l.index].attn.key_dim,
                                    .query_scale = a.scale * 1.4426950408889634f,
                                    .epsilon = a.head_norm.epsilon,
                                    .layer_offset = l.row_offset,
                                    .page_bytes = l.row_page_bytes,
                                    .rotate = cuda_rotates(l.group.format),
                                    .broken = step.broken},
                                   stream_)));
  const bool seals = l.group.format != CudaKvFormat::bf16;
  if (!seals || (!step.decode_only && l.group.plan.seals.empty())) return {};
  return check(cuda.seal({.arena = const_cast<std::byte*>(arena_),
                          .pairs = l.group.seals,
                          .count = uploaded(layout.counts + l.group_index * sizeof(ItemCounts)) + 2,
                          .pairs_max = step.decode_only  // a row fills a block at most
                                           ? step.rows
                                           : static_cast<std::uint32_t>(l.group.plan.seals.size()),
                          .kv_heads = a.kv_heads,
                          .head_dim = a.key_dim,
                          .row_layer_offset = l.row_offset,
                          .row_page_bytes = l.row_page_bytes,
                          .layer_offset = l.offset,
                          .page_bytes = l.page_bytes,
                          .format = l.group.format},
                         stream_));
}

Status DeviceModel::attend(const Layer& l, const Step& step) {
  const CudaApi& cuda = *device_.api;
  const UploadLayout layout(step.rows, groups_.size());
  AttendArgs a{.arena = arena_,
               .tables = l.group.tables,
               .items = l.group.items,
               .item_count = uploaded(layout.counts + l.group_index * sizeof(ItemCounts)),
               .merges = reinterpret_cast<const AttendMerge*>(
                   uploaded(layout.merges(l.group_index, step.rows))),
               .queries = queries_.data(),
               .output = attended_.data(),
               .partials = partials_.as<float>(),
               .rows = step.rows,
               .query_heads = l.spec.attn.query_heads,
               .kv_heads = l.spec.attn.kv_heads,
               .head_dim = l.spec.attn.key_dim,
               .window = l.shape.window,
               .items_max = step.tiles,
               .layer_offset = l.offset,
               .page_bytes = l.page_bytes,
               .format = l.group.format,
               .row_tables = l.group.row_tables,
               .row_layer_offset = l.row_offset,
               .row_page_bytes = l.row_page_bytes,
               .recent_blocks = l.row_shape.recent_blocks,
               .sink_blocks = l.row_shape.sink_blocks,
               .rotated = cuda_rotates(l.group.format)};
  if (step.decode_only || l.group.plan.decode_count > 0)
    TRY_STATUS(check(cuda.attend_decode(a, stream_)));
  if (step.tiles > 0) {
    a.items = l.group.tiles;
    a.item_count += 1;
    TRY_STATUS(check(cuda.attend_prefill(a, stream_)));
  }
  return step.merge ? check(cuda.attend_merge(a, stream_)) : Status();
}

Status DeviceModel::feed_forward(const Layer& l, std::uint32_t rows) {
  const bool gelu = l.spec.ffn.activation == Activation::gelu;
  if (rows <= kPackedRowsMax) {
    TRY_STATUS(linear(l.w.gate_up, hidden_.data(), inner_.data(), rows,
                      gelu ? LinearOutput::gated_gelu : LinearOutput::gated));
  } else {
    TRY_STATUS(linear(l.w.gate_up, hidden_.data(), gate_up_.data(), rows, LinearOutput::rows_bf16));
    TRY_STATUS(check(device_.api->gate({.gate_up = gate_up_.data(),
                                        .output = inner_.data(),
                                        .rows = rows,
                                        .width = l.spec.ffn.width,
                                        .gelu = gelu},
                                       stream_)));
  }
  return linear(l.w.down, inner_.data(), y_.data(), rows, LinearOutput::rows_bf16);
}

}  // namespace quire
