#include "model/device_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "kernels/cuda/packed.h"
#include "model/device_front.h"

namespace quire {
namespace {

constexpr std::uint32_t kDeviceNumerics = 4;  // bumped when the bits of an answer may change
constexpr std::size_t kGraphsMax = 1024;      // then all are made anew as they are needed
}  // namespace

Result<std::unique_ptr<DeviceModel>> DeviceModel::load(const ModelSource& source,
                                                       ModelOptions options) {
  TRY(const CudaDevice* device, open_cuda());
  const ModelConfig& c = source.config();
  const std::uint32_t heads = c.query_heads / c.kv_heads;
  if (c.head_dim > 256 || c.head_dim % 2 != 0 || heads > 8 || c.hidden % 64 != 0 ||
      c.hidden > 8192 || c.feed_forward % 64 != 0 || c.vocabulary % 16 != 0)
    return Error{
        Code::unsupported,
        fmt::format("{}: the CUDA kernels take heads of up to 256, up to 8 query heads "
                    "per KV head, widths in multiples of 64; this model has heads of {}, {} "
                    "per KV head, widths {} and {}; use --device cpu",
                    source.path(), c.head_dim, heads, c.hidden, c.feed_forward)};
  for (const RopeConfig& rope : c.ropes)
    if (rope.dimensions != c.head_dim)
      return Error{Code::unsupported,
                   source.path() +
                       ": rotates part of a head, which the CUDA kernels do not; use "
                       "--device cpu"};
  std::unique_ptr<DeviceModel> m(new DeviceModel(*device, source, options));
  TRY_STATUS(m->check(device->api->make_stream(&m->stream_), "opening the device"));
  TRY(m->weights_, load_device_weights(source, *device, m->stream_, options.weights));
  m->made_up_codes_ = source.is_random() && m->packed();
  TRY_STATUS(m->size_buffers());
  TRY_STATUS(m->tune());
  return m;
}

DeviceModel::~DeviceModel() {
  device_.api->wait(stream_);
  forget_graphs();
  for (const Slot& slot : slots_) {
    if (slot.host) device_.api->free_host(slot.host);
    if (slot.best) device_.api->free_host(slot.best);
    if (slot.done) device_.api->free_event(slot.done);
  }
  if (draw_host_) device_.api->free_host(draw_host_);
}

std::uint64_t DeviceModel::numerics_id() const {
  return mix64(mix64(0x63756461u ^ kDeviceNumerics) ^
               (static_cast<std::uint64_t>(made_up_codes_) << 17 |
                static_cast<std::uint64_t>(options_.fast) << 16 |
                static_cast<std::uint64_t>(device_.info.major) << 8 | device_.info.minor));
}

Status DeviceModel::grow(DeviceBuffer& buffer, std::size_t bytes, std::string_view what) {
  if (buffer.size() >= bytes) return {};
  TRY_STATUS(check(device_.api->wait(stream_)));
  forget_graphs();  // they know the old one
  buffer = {};
  TRY(buffer, DeviceBuffer::allocate(device_, bytes, what));
  return {};
}

void DeviceModel::forget_graphs() {
  for (const auto& [key, graph] : graphs_) device_.api->free_graph(graph);
  graphs_.clear();
}

Status DeviceModel::size_buffers() {
  const std::uint32_t rows = std::max(row_class(options_.rows_max), kLibraryRows);
  const std::uint32_t width = config_.query_heads * config_.head_dim,
                      kv_width = config_.kv_heads * config_.head_dim;
  const auto take = [&](DeviceBuffer& b, std::size_t columns, std::size_t element) {
    return grow(b, rows * columns * element, "the scratch of a step");
  };
  TRY_STATUS(take(x_, config_.hidden, 4));
  TRY_STATUS(take(hidden_, config_.hidden, 2));
  TRY_STATUS(take(qkv_, width + 2 * kv_width, 2));
  TRY_STATUS(take(queries_, width, 2));
  TRY_STATUS(take(attended_, width, 2));
  TRY_STATUS(take(y_, config_.hidden, 2));
  TRY_STATUS(take(inner_, config_.feed_forward, 2));
  TRY_STATUS(take(gate_up_, 2 * config_.feed_forward, 2));
  TRY_STATUS(take(head_in_, config_.hidden, 2));
  TRY_STATUS(take(best_, 1, sizeof(BestToken)));
  if (options_.rows_max > kPackedRowsMax)
    TRY_STATUS(grow(unpacked_, weights_.unpacked_bytes, "the largest packed matrix as bf16"));
  for (Slot& slot : slots_) {
    void* pinned = nullptr;
    TRY_STATUS(
        check(device_.api->allocate_host(rows * sizeof(BestToken), &pinned), "pinned memory"));
    slot.best = static_cast<BestToken*>(pinned);
    TRY_STATUS(check(device_.api->make_event(&slot.done)));
  }
  TRY_STATUS(grow(logits_, std::size_t{kLibraryRows} * config_.vocabulary * 4, "logits"));
  for (const RopeConfig& rope : config_.ropes) ropes_.emplace_back(rope);
  angles_.resize(ropes_.size());
  return {};
}

Status DeviceModel::tune() {
  const std::uint32_t width = config_.query_heads * config_.head_dim,
                      qkv = width + 2 * config_.kv_heads * config_.head_dim;
  const DeviceLayer& w = weights_.layers[0];
  const DeviceMatrix& head = config_.tied_head ? weights_.embedding : weights_.head;
  struct Shape {
    const DeviceMatrix& weights;
    std::uint32_t outputs, inputs;
    LinearOutput kind;
    std::uint32_t rows_max;
  };
  for (const Shape& s :
       {Shape{w.qkv, qkv, config_.hidden, LinearOutput::rows_bf16, options_.rows_max},
        {w.out, config_.hidden, width, LinearOutput::rows_bf16, options_.rows_max},
        {w.gate_up, 2 * config_.feed_forward, config_.hidden, LinearOutput::rows_bf16,
         options_.rows_max},
        {w.down, config_.hidden, config_.feed_forward, LinearOutput::rows_bf16, options_.rows_max},
        {head, config_.vocabulary, config_.hidden, LinearOutput::rows_f32,
         std::min(options_.rows_max, 512u)}})
    for (std::uint32_t rows = kLibraryRows; rows < 2 * s.rows_max; rows *= 2) {
      if (s.rows_max <= kPackedRowsMax) break;
      TRY_STATUS(check(device_.api->tune_linear({.weights = rows_of(s.weights),
                                                 .activations = nullptr,
                                                 .output = nullptr,
                                                 .rows = rows,
                                                 .outputs = s.outputs,
                                                 .inputs = s.inputs,
                                                 .kind = s.kind,
                                                 .fast = options_.fast,
                                                 .codes = s.weights.codes()},
                                                stream_),
                       "choosing matrix kernels (is libcublasLt.so.13 there?)"));
    }
  return {};
}

Status DeviceModel::cover(std::uint32_t positions) {
  if (positions <= covered_) return {};
  const std::uint32_t dim = config_.head_dim;
  const std::uint32_t most = std::max(config_.context, positions);
  positions = std::min(most, (positions + 4095) / 4096 * 4096);
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    if (angles_[i].size() < std::size_t{positions} * dim * 4) {
      TRY_STATUS(grow(angles_[i], std::size_t{most} * dim * 4, "the angles of positions"));
      covered_ = 0;
    }
    ropes_[i].cover(positions);
  }
  std::vector<float> rows(std::size_t{positions - covered_} * dim);
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    for (std::uint32_t p = covered_; p < positions; ++p) {
      float* to = rows.data() + std::size_t{p - covered_} * dim;  // padding: any number
      std::copy_n(ropes_[i].cosines(p), head_dim_ / 2, to);
      std::copy_n(ropes_[i].sines(p), head_dim_ / 2, to + dim / 2);
    }
    TRY_STATUS(
        check(device_.api->copy_to_device(angles_[i].as<float>() + std::size_t{covered_} * dim,
                                          rows.data(), rows.size() * 4, stream_)));
    TRY_STATUS(check(device_.api->wait(stream_)));
  }
  covered_ = positions;
  return {};
}

Status DeviceModel::linear(const DeviceMatrix& w, const void* in, void* out, std::uint32_t rows,
                           std::uint32_t outputs, std::uint32_t inputs, LinearOutput kind) {
  return check(device_.api->linear({.weights = rows_of(w),
                                    .activations = in,
                                    .output = out,
                                    .rows = rows,
                                    .outputs = outputs,
                                    .inputs = inputs,
                                    .kind = kind,
                                    .fast = options_.fast,
                                    .codes = w.codes()},
                                   stream_));
}

Status DeviceModel::run_layer(const Geometry& geometry, const Step& step, std::uint32_t layer) {
  const CudaApi& cuda = *device_.api;
  const ModelConfig& c = config_;
  const DeviceLayer& w = weights_.layers[layer];
  const Front front(step.rows, groups_.size());
  const LayerPlace place = geometry.places[layer], row_place = geometry.row_place(layer);
  const Group& group = groups_[place.group];
  const LayerGroup &shape = geometry.groups[place.group],
                   &row_shape = geometry.groups[row_place.group];
  const std::uint32_t width = c.query_heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const std::uint64_t page_bytes = geometry.page_bytes(shape),
                      layer_offset = std::uint64_t{place.index} * c.kv_heads * page_bytes,
                      row_page_bytes = geometry.page_bytes(row_shape),
                      row_layer_offset =
                          std::uint64_t{row_place.index} * c.kv_heads * row_page_bytes;
  const bool sealed = group.format != CudaKvFormat::bf16, rotated = cuda_rotates(group.format);
  const auto meta = [&](std::size_t offset) {
    return reinterpret_cast<const std::uint32_t*>(meta_.data() + offset);
  };

  TRY_STATUS(linear(w.qkv, hidden_.data(), qkv_.data(), step.rows, width + 2 * kv_width, c.hidden,
                    LinearOutput::rows_bf16));
  TRY_STATUS(check(cuda.rope_store({.qkv = qkv_.data(),
                                    .bias = w.qkv_bias.as<float>(),
                                    .q_norm = w.q_norm.as<float>(),
                                    .k_norm = w.k_norm.as<float>(),
                                    .angles = angles_[c.per_layer[layer].rope].as<float>(),
                                    .positions = meta(front.positions),
                                    .places = meta(front.places(row_place.group)),
                                    .queries = queries_.data(),
                                    .arena = const_cast<std::byte*>(arena_),
                                    .rows = step.rows,
                                    .query_heads = c.query_heads,
                                    .kv_heads = c.kv_heads,
                                    .head_dim = c.head_dim,
                                    .norm_dim = head_dim_,
                                    .query_scale = c.attention_scale * 1.4426950408889634f,
                                    .epsilon = c.norm_epsilon,
                                    .layer_offset = row_layer_offset,
                                    .page_bytes = row_page_bytes,
                                    .rotate = rotated},
                                   stream_)));
  const std::uint32_t* counts = meta(front.counts + place.group * sizeof(Counts));
  if (sealed && (step.decode_only || !group.plan.seals.empty()))
    TRY_STATUS(
        check(cuda.seal({.arena = const_cast<std::byte*>(arena_),
                         .pairs = group.seals,
                         .count = counts + 2,
                         .pairs_max = step.decode_only  // a row fills a block at most
                                          ? step.rows
                                          : static_cast<std::uint32_t>(group.plan.seals.size()),
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .row_layer_offset = row_layer_offset,
                         .row_page_bytes = row_page_bytes,
                         .layer_offset = layer_offset,
                         .page_bytes = page_bytes,
                         .format = group.format},
                        stream_)));
  if (step.logit_rows == 0 && layer + 1 == c.layers) return {};  // all is stored
  AttendArgs a{
      .arena = arena_,
      .tables = group.tables,
      .items = group.items,
      .item_count = counts,
      .merges = reinterpret_cast<const AttendMerge*>(meta(front.merges(place.group, step.rows))),
      .queries = queries_.data(),
      .output = attended_.data(),
      .partials = partials_.as<float>(),
      .rows = step.rows,
      .query_heads = c.query_heads,
      .kv_heads = c.kv_heads,
      .head_dim = c.head_dim,
      .window = shape.window,
      .items_max = step.tiles,
      .layer_offset = layer_offset,
      .page_bytes = page_bytes,
      .format = group.format,
      .row_tables = group.row_tables,
      .row_layer_offset = row_layer_offset,
      .row_page_bytes = row_page_bytes,
      .recent_blocks = row_shape.recent_blocks,
      .sink_blocks = row_shape.sink_blocks,
      .rotated = rotated};
  if (step.decode_only || group.plan.decode_count > 0)
    TRY_STATUS(check(cuda.attend_decode(a, stream_)));
  if (step.tiles > 0) {
    a.items = group.tiles;
    a.item_count += 1;
    TRY_STATUS(check(cuda.attend_prefill(a, stream_)));
  }
  if (step.merge) TRY_STATUS(check(cuda.attend_merge(a, stream_)));

  // After the last layer's attention only rows with logits count.
  const bool last = layer + 1 == c.layers, tail = last && step.logit_rows != step.rows;
  const std::uint32_t rows = tail ? step.logit_rows : step.rows;
  float* x = x_.as<float>();
  void* attended = attended_.data();
  if (tail) {
    x = tail_x_.as<float>();
    attended = queries_.data();
    TRY_STATUS(check(cuda.gather({.select = meta(front.select),
                                  .x = x_.as<float>(),
                                  .x_out = x,
                                  .attended = attended_.data(),
                                  .attended_out = attended,
                                  .from_rows = step.rows,
                                  .rows = rows,
                                  .hidden = c.hidden,
                                  .width = width},
                                 stream_)));
  }
  AddNormArgs norm{.x = x,
                   .y = y_.data(),
                   .post_norm = w.post_attention_norm.as<float>(),
                   .weight = w.feed_forward_norm.as<float>(),
                   .output = hidden_.data(),
                   .rows = rows,
                   .width = c.hidden,
                   .epsilon = c.norm_epsilon};
  TRY_STATUS(linear(w.out, attended, y_.data(), rows, c.hidden, width, LinearOutput::rows_bf16));
  TRY_STATUS(check(cuda.add_norm(norm, stream_)));
  const bool gelu = c.activation == Activation::gelu;
  if (rows <= kPackedRowsMax) {
    TRY_STATUS(linear(w.gate_up, hidden_.data(), inner_.data(), rows, 2 * c.feed_forward, c.hidden,
                      gelu ? LinearOutput::gated_gelu : LinearOutput::gated));
  } else {
    TRY_STATUS(linear(w.gate_up, hidden_.data(), gate_up_.data(), rows, 2 * c.feed_forward,
                      c.hidden, LinearOutput::rows_bf16));
    TRY_STATUS(check(cuda.gate({.gate_up = gate_up_.data(),
                                .output = inner_.data(),
                                .rows = rows,
                                .width = c.feed_forward,
                                .gelu = gelu},
                               stream_)));
  }
  TRY_STATUS(linear(w.down, inner_.data(), y_.data(), rows, c.hidden, c.feed_forward,
                    LinearOutput::rows_bf16));
  norm.post_norm = w.post_feed_forward_norm.as<float>();
  norm.weight = last ? weights_.output_norm.as<float>()
                     : weights_.layers[layer + 1].attention_norm.as<float>();
  if (last) norm.output = head_in_.data();
  return check(cuda.add_norm(norm, stream_));
}

Status DeviceModel::run(const Geometry& geometry, const Step& step) {
  const CudaApi& cuda = *device_.api;
  const ModelConfig& c = config_;
  const Front front(step.rows, groups_.size());
  TRY_STATUS(
      check(cuda.embed({.table = rows_of(weights_.embedding),
                        .tokens = reinterpret_cast<std::uint32_t*>(meta_.data() + front.tokens),
                        .best = best_.as<BestToken>(),
                        .x = x_.as<float>(),
                        .rows = step.rows,
                        .width = c.hidden,
                        .scale = c.embedding_scale,
                        .codes = weights_.embedding.codes()},
                       stream_)));
  TRY_STATUS(check(cuda.add_norm({.x = x_.as<float>(),
                                  .y = nullptr,
                                  .post_norm = nullptr,
                                  .weight = weights_.layers[0].attention_norm.as<float>(),
                                  .output = hidden_.data(),
                                  .rows = step.rows,
                                  .width = c.hidden,
                                  .epsilon = c.norm_epsilon},
                                 stream_)));
  for (std::uint32_t l = 0; l < c.layers; ++l) TRY_STATUS(run_layer(geometry, step, l));
  if (step.logit_rows == 0) return {};
  TRY_STATUS(linear(c.tied_head ? weights_.embedding : weights_.head, head_in_.data(),
                    logits_.data(), step.logit_rows, c.vocabulary, c.hidden,
                    LinearOutput::rows_f32));
  if (!step.greedy) return {};
  return check(cuda.argmax({.logits = logits_.as<float>(),
                            .best = best_.as<BestToken>(),
                            .rows = step.logit_rows,
                            .vocabulary = c.vocabulary,
                            .softcap = config_.logit_softcap},
                           stream_));
}

Status DeviceModel::forward(const Geometry& geometry, std::uint64_t serial, const StepRows& step,
                            float* logits) {
  const auto rows = static_cast<std::uint32_t>(step.tokens.size()),
             wanted = static_cast<std::uint32_t>(step.logit_rows.size());
  CHECK(geometry.tokens_per_block == kCudaPage);
  if (!step.taps.empty())
    return Error{Code::unsupported, "attention weights are not written down on a GPU"};
  std::uint32_t end = 0;
  for (const std::uint32_t p : step.positions) end = std::max(end, p + 1);
  TRY_STATUS(cover(end));
  if (step.groups[0].arena != arena_) {
    TRY_STATUS(check(device_.api->wait(stream_)));
    forget_graphs();
    arena_ = step.groups[0].arena;
  }
  Slot& slot = slots_[turn_ ^= 1];
  TRY_STATUS(check(device_.api->wait_for(slot.done)));  // of two steps ago
  plan(geometry, step);
  Step as{.rows = rows,
          .logit_rows = wanted,
          .greedy = step.greedy != nullptr,
          .merge = false,
          .decode_only = true,
          .tiles = 0};
  for (const Group& group : groups_) {
    as.merge = as.merge || group.plan.partials > 0;
    as.tiles = std::max(
        as.tiles, static_cast<std::uint32_t>(group.plan.items.size()) - group.plan.decode_count);
  }
  for (std::uint32_t s = 0; s < step.groups[0].sequence_count; ++s)  // several rows may fill blocks
    as.decode_only = as.decode_only && ((geometry.exact() && as.tiles == 0) ||
                                        step.groups[0].sequences[s].row_count == 1);
  as.decode_only = as.decode_only && wanted == rows;
  if (as.decode_only) {
    as.tiles = as.tiles == 0 ? 0 : std::bit_ceil(as.tiles);
    as.rows = as.logit_rows = std::min(row_class(rows), std::max(options_.rows_max, 1u));
  }
  const std::size_t logit_rows = std::max(as.logit_rows, kLibraryRows);
  TRY_STATUS(grow(logits_, logit_rows * config_.vocabulary * 4, "logits"));
  TRY_STATUS(grow(tail_x_, logit_rows * config_.hidden * 4, "the scratch of a step"));
  TRY_STATUS(upload(step, as));
  if (step.draws) TRY_STATUS(start_draws(*step.draws));
  if (as.decode_only) {
    const GraphKey key{serial, &geometry, as.rows, as.logit_rows, as.greedy, as.merge, as.tiles};
    auto found = graphs_.find(key);
    if (found == graphs_.end() && graphs_.size() >= kGraphsMax) {
      TRY_STATUS(check(device_.api->wait(stream_)));
      forget_graphs();
    }
    if (found == graphs_.end()) {
      TRY_STATUS(
          run(geometry, as));  // once for real: what is set up on first use cannot be captured
      TRY_STATUS(check(device_.api->wait(stream_)));
      TRY_STATUS(check(device_.api->begin_capture(stream_), "capturing a graph"));
      const Status ran = run(geometry, as);
      CudaGraph graph = nullptr;
      TRY_STATUS(check(device_.api->end_capture(stream_, &graph), "capturing a graph"));
      TRY_STATUS(ran);
      graphs_.emplace(key, graph);
    } else {
      TRY_STATUS(check(device_.api->launch(found->second, stream_)));
    }
  } else {
    TRY_STATUS(run(geometry, as));
  }
  if (step.draws) return finish_draws(step, logits);
  if (step.greedy) {
    if (wanted > 0)
      TRY_STATUS(check(
          device_.api->copy_to_host(slot.best, best_.data(), wanted * sizeof(BestToken), stream_)));
    TRY_STATUS(check(device_.api->record(slot.done, stream_)));
    if (step.ticket) *step.ticket = turn_;
    return step.ticket ? Status() : finish(turn_, {step.greedy, wanted});
  }
  if (wanted > 0)
    TRY_STATUS(check(device_.api->copy_to_host(
        logits, logits_.data(), std::size_t{wanted} * config_.vocabulary * 4, stream_)));
  TRY_STATUS(check(device_.api->wait(stream_)));
  if (config_.logit_softcap != 0)
    for (std::size_t i = 0; i < std::size_t{wanted} * config_.vocabulary; ++i)
      logits[i] = config_.logit_softcap * std::tanh(logits[i] / config_.logit_softcap);
  return {};
}

Status DeviceModel::finish(std::uint32_t ticket, std::span<BestToken> best) {
  TRY_STATUS(check(device_.api->wait_for(slots_[ticket].done)));
  std::copy_n(slots_[ticket].best, best.size(), best.data());
  return {};
}

}  // namespace quire
