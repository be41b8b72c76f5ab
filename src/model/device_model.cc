#include "model/device_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/random.h"
#include "kernels/cuda/packed.h"
#include "model/device_upload.h"

namespace quire {
namespace {

constexpr std::uint32_t kDeviceNumerics = 4;  // bumped when the bits of an answer may change
constexpr std::size_t kGraphsMax = 1024;      // then all are made anew as they are needed
}  // namespace

Result<std::unique_ptr<DeviceModel>> DeviceModel::load(const ModelSource& source,
                                                       ModelOptions options) {
  TRY(const CudaDevice* device, open_cuda());
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
  for (const Slot& slot : slots_)
    if (slot.done) device_.api->free_event(slot.done);
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
  const std::uint32_t queries = config_.widest([](const LayerSpec&l) { return l.attn.queries(); }),
                      qkv = config_.widest([](const LayerSpec&l) { return l.attn.qkv(); }),
                      inner = config_.widest([](const LayerSpec&l) { return l.ffn.width; });
  const auto take = [&](DeviceBuffer& b, std::size_t columns, std::size_t element) {
    return grow(b, rows * columns * element, "the scratch of a step");
  };
  TRY_STATUS(take(x_, config_.hidden, 4));
  TRY_STATUS(take(hidden_, config_.hidden, 2));
  TRY_STATUS(take(qkv_, qkv, 2));
  TRY_STATUS(take(queries_, queries, 2));
  TRY_STATUS(take(attended_, queries, 2));
  TRY_STATUS(take(y_, config_.hidden, 2));
  TRY_STATUS(take(inner_, inner, 2));
  TRY_STATUS(take(gate_up_, 2 * inner, 2));
  TRY_STATUS(take(head_in_, config_.hidden, 2));
  TRY_STATUS(take(best_, 1, sizeof(CudaBest)));
  if (options_.rows_max > kPackedRowsMax)
    TRY_STATUS(grow(unpacked_, weights_.unpacked_bytes, "the largest packed matrix as bf16"));
  for (Slot& slot : slots_) {
    TRY(slot.best, DeviceBuffer::pinned(device_, rows * sizeof(CudaBest)));
    TRY_STATUS(check(device_.api->make_event(&slot.done)));
  }
  TRY_STATUS(grow(logits_, std::size_t{kLibraryRows} * config_.vocabulary * 4, "logits"));
  for (const RopeConfig& rope : config_.ropes) ropes_.emplace_back(rope);
  angles_.resize(ropes_.size());
  return {};
}

Status DeviceModel::tune() {
  const auto tune = [&](const DeviceMatrix& w, LinearOutput kind,
                        std::uint32_t rows_max) -> Status {
    if (rows_max <= kPackedRowsMax) return {};
    for (std::uint32_t rows = kLibraryRows; rows < 2 * rows_max; rows *= 2)
      TRY_STATUS(check(device_.api->tune_linear(product(w, nullptr, nullptr, rows, kind), stream_),
                       "choosing matrix kernels (is libcublasLt.so.13 there?)"));
    return {};
  };
  using Widths = std::array<std::uint32_t, 3>;
  std::set<Widths> known;  // layers of one shape are tuned once
  for (const DeviceWeights::Layer& w : weights_.layers)
    if (known.insert(Widths{w.qkv.outputs, w.out.inputs, w.down.inputs}).second)
      for (const DeviceMatrix* matrix : {&w.qkv, &w.out, &w.gate_up, &w.down})
        TRY_STATUS(tune(*matrix, LinearOutput::rows_bf16, options_.rows_max));
  return tune(head(), LinearOutput::rows_f32, std::min(options_.rows_max, 512u));
}

Status DeviceModel::cover(std::uint32_t positions) {
  if (positions <= covered_) return {};
  const std::uint32_t most = std::max(config_.context, positions);
  positions = std::min(most, (positions + 4095) / 4096 * 4096);
  const auto width = [&](std::size_t i) { return device_head_width(2 * ropes_[i].half()); };
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    if (angles_[i].size() < std::size_t{positions} * width(i) * 4) {
      TRY_STATUS(grow(angles_[i], std::size_t{most} * width(i) * 4, "the angles of positions"));
      covered_ = 0;
    }
    ropes_[i].cover(positions);
  }
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    const std::uint32_t dim = width(i), half = ropes_[i].half();
    std::vector<float> rows(std::size_t{positions - covered_} * dim);
    for (std::uint32_t p = covered_; p < positions; ++p) {
      float* to = rows.data() + std::size_t{p - covered_} * dim;  // padding: any number
      std::copy_n(ropes_[i].cosines(p), half, to);
      std::copy_n(ropes_[i].sines(p), half, to + dim / 2);
    }
    TRY_STATUS(
        check(device_.api->copy_to_device(angles_[i].as<float>() + std::size_t{covered_} * dim,
                                          rows.data(), rows.size() * 4, stream_)));
    TRY_STATUS(check(device_.api->wait(stream_)));
  }
  covered_ = positions;
  return {};
}

Status DeviceModel::run_or_replay(const Geometry& geometry, std::uint64_t serial,
                                  const Step& step) {
  const GraphKey key{serial,      &geometry,     step.rows,  step.logit_rows,
                     step.greedy, step.logprobs, step.merge, step.tiles};
  if (const auto found = graphs_.find(key); found != graphs_.end())
    return check(device_.api->launch(found->second, stream_));
  if (graphs_.size() >= kGraphsMax) {
    TRY_STATUS(check(device_.api->wait(stream_)));
    forget_graphs();
  }
  TRY_STATUS(run(geometry, step));  // once for real: what is set up on first use cannot be captured
  TRY_STATUS(check(device_.api->wait(stream_)));
  TRY_STATUS(check(device_.api->begin_capture(stream_), "capturing a graph"));
  const Status ran = run(geometry, step);
  CudaGraph graph = nullptr;
  TRY_STATUS(check(device_.api->end_capture(stream_, &graph), "capturing a graph"));
  TRY_STATUS(ran);
  graphs_.emplace(key, graph);
  return {};
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
          .logprobs = step.logprobs,
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
  slot.broken = {};
  if (!as.decode_only) {
    const UploadLayout layout(as.rows, groups_.size());
    as.broken = reinterpret_cast<std::uint32_t*>(slot.host.data() + layout.broken);
    slot.broken = {as.broken, rows};
  }
  if (step.draws) TRY_STATUS(start_draws(*step.draws));
  TRY_STATUS(as.decode_only ? run_or_replay(geometry, serial, as) : run(geometry, as));
  if (step.draws) return finish_draws(step, logits);
  if (step.greedy) {
    if (wanted > 0)
      TRY_STATUS(check(device_.api->copy_to_host(slot.best.data(), best_.data(),
                                                 wanted * sizeof(CudaBest), stream_)));
    TRY_STATUS(check(device_.api->record(slot.done, stream_)));
    if (step.ticket) *step.ticket = turn_;
    return step.ticket ? Status() : finish(turn_, {step.greedy, wanted});
  }
  if (wanted > 0)
    TRY_STATUS(check(device_.api->copy_to_host(
        logits, logits_.data(), std::size_t{wanted} * config_.vocabulary * 4, stream_)));
  TRY_STATUS(check(device_.api->wait(stream_)));
  return {};
}

Status DeviceModel::finish(std::uint32_t ticket, std::span<BestToken> best) {
  TRY_STATUS(check(device_.api->wait_for(slots_[ticket].done)));
  const CudaBest* const found = slots_[ticket].best.as<CudaBest>();
  for (std::size_t i = 0; i < best.size(); ++i) {  // as the Sampler computes it
    const double max = found[i].max, sum = found[i].sum;
    best[i] = {found[i].token, static_cast<float>(max - (max + std::log(sum)))};
  }
  return {};
}

}  // namespace quire
