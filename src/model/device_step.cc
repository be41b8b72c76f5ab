// Plans a step's attention and uploads what the step needs on the device.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/pages.h"
#include "model/device_model.h"
#include "model/device_upload.h"

namespace quire {
namespace {

constexpr std::uint32_t kNoPlace = 0xffffffffu;

}  // namespace

Status DeviceModel::check_storage(const StoragePolicy& storage, const Geometry& geometry) const {
  for (const LayerGroup& group : geometry.groups) {
    const std::string_view name = group.format->name;
    if (group.sealed() ? !cuda_kv_format(*group.format) : name != "bf16" && !storage.lossy())
      return Error{Code::unsupported,
                   fmt::format("KV format '{}' on a GPU; there are bf16, fp8-e4m3, int8, "
                               "hadamard-int4-head and hadamard-int2-head",
                               name)};
    if (group.sealed() && group.key_dim > 128)
      return Error{
          Code::unsupported,
          fmt::format("KV format '{}' for heads of {} on a GPU; bf16 works", name, group.key_dim)};
    if (group.recent_blocks + group.sink_blocks + 1 > kRowPagesMax)
      return Error{Code::unsupported,
                   fmt::format("{} tokens left exact on a GPU; sinks and recent ones are {} there "
                               "at most",
                               (group.recent_blocks + group.sink_blocks) * kCudaPage,
                               (kRowPagesMax - 1) * kCudaPage)};
  }
  return {};
}

void DeviceModel::plan(const Geometry& geometry, const StepRows& step) {
  groups_.resize(step.groups.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const LayerGroup& shape = geometry.groups[g];
    Group& group = groups_[g];
    group.attended = shape.kind != GroupKind::recent;
    group.format = shape.sealed() ? cuda_kv_format(*shape.format).value() : CudaKvFormat::bf16;
    const Attention& attn = config_.per_layer[shape.layers[0]].attn;
    CudaPlanShape how{.query_heads = attn.query_heads,
                      .kv_heads = attn.kv_heads,
                      .head_dim = attn.key_dim,
                      .multiprocessors = static_cast<std::uint32_t>(device_.info.multiprocessors),
                      .tiles = attn.key_dim <= 128};
    KvView view = step.groups[g];
    if (!group.attended) view.sequence_count = 0;
    if (shape.sealed()) {
      const std::uint32_t rows = geometry.row_place(shape.layers[0]).group;
      how.format = group.format;
      how.recent_blocks = geometry.groups[rows].recent_blocks;
      how.sink_blocks = geometry.groups[rows].sink_blocks;
      how.rows = &step.groups[rows];
    }
    plan_cuda_attention(view, how, group.plan);
  }
}

Status DeviceModel::upload(const StepRows& step, const Step& as) {
  const UploadLayout layout(as.rows, step.groups.size());
  std::size_t items = 0, tables = 0, partials = 0;
  for (const Group& group : groups_) {
    items = std::max(items, group.plan.items.size());
    tables = std::max(tables, group.plan.tables.size());
    partials = std::max<std::size_t>(partials, group.plan.partials);
  }
  const std::uint32_t partial_floats =
      config_.widest([](const LayerSpec& l) { return l.attn.query_heads * (l.attn.key_dim + 2); });
  TRY_STATUS(grow(partials_, partials * partial_floats * 4, "attention partials"));
  // Items and tables lie at fixed offsets behind the largest UploadLayout, until they outgrow them.
  const std::size_t largest_front =
      UploadLayout(std::max(row_class(options_.rows_max), kLibraryRows), groups_.size()).end;
  const auto group_bytes = [&] {
    return 2 * align(items_capacity_ * sizeof(AttendItem)) + 2 * align(tables_capacity_ * 4) +
           align(tables_capacity_ * sizeof(SealPair));
  };
  if (items > items_capacity_ || tables > tables_capacity_ ||
      meta_bytes_ < largest_front + groups_.size() * group_bytes()) {
    items_capacity_ = std::max<std::size_t>({items_capacity_, 2 * items, 4096});
    tables_capacity_ = std::max<std::size_t>({tables_capacity_, 2 * tables, 65536});
    meta_bytes_ = largest_front + groups_.size() * group_bytes();
    TRY_STATUS(check(device_.api->wait(stream_)));
    forget_graphs();  // things lie elsewhere now, even if the memory is the same
    TRY_STATUS(grow(meta_, meta_bytes_, "the plan of a step"));
    for (Slot& slot : slots_) {
      slot.host = {};
      TRY(slot.host, DeviceBuffer::pinned(device_, meta_bytes_));
    }
  }
  std::byte* const host = slots_[turn_].host.data();
  std::memset(host, 0, layout.end);
  std::memcpy(host + layout.tokens, step.tokens.data(), step.tokens.size_bytes());
  std::memcpy(host + layout.positions, step.positions.data(), step.positions.size_bytes());
  std::memcpy(host + layout.select, step.logit_rows.data(), step.logit_rows.size_bytes());
  for (std::uint32_t i = static_cast<std::uint32_t>(step.logit_rows.size()); i < as.logit_rows; ++i)
    reinterpret_cast<std::uint32_t*>(host + layout.select)[i] = i;  // padding picks padding
  std::size_t at = largest_front;
  const auto send = [&]<class T>(T*& to, std::span<const T> from, std::size_t capacity) {
    to = reinterpret_cast<T*>(meta_.data() + at);
    const std::size_t here = at, bytes = from.size() * sizeof(T);
    at += align(capacity * sizeof(T));
    if (bytes == 0) return 0;
    std::memcpy(host + here, from.data(), bytes);
    return device_.api->copy_to_device(meta_.data() + here, host + here, bytes, stream_);
  };
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const CudaPlan& plan = group.plan;
    const ItemCounts counts{plan.decode_count,
                            static_cast<std::uint32_t>(plan.items.size()) - plan.decode_count,
                            static_cast<std::uint32_t>(plan.seals.size()), 0};
    std::memcpy(host + layout.counts + g * sizeof counts, &counts, sizeof counts);
    auto* places = reinterpret_cast<std::uint32_t*>(host + layout.places(g));
    std::fill_n(places, as.rows, kNoPlace);
    const KvView& view = step.groups[g];
    for (std::uint32_t s = 0; group.format == CudaKvFormat::bf16 && s < view.sequence_count; ++s) {
      const KvSequenceView& q = view.sequences[s];
      for (std::uint32_t i = 0; i < q.row_count; ++i)
        places[q.first_row + i] = static_cast<std::uint32_t>(q.blocks[(q.past + i) / kCudaPage]);
    }
    std::memcpy(host + layout.merges(g, as.rows), plan.merges.data(),
                plan.merges.size() * sizeof(AttendMerge));
    const std::span items_all(plan.items);
    TRY_STATUS(check(send(group.items, items_all.first(plan.decode_count), items_capacity_)));
    TRY_STATUS(check(send(group.tiles, items_all.subspan(plan.decode_count), items_capacity_)));
    TRY_STATUS(check(send(group.tables, std::span(plan.tables), tables_capacity_)));
    TRY_STATUS(check(send(group.row_tables, std::span(plan.row_tables), tables_capacity_)));
    TRY_STATUS(check(send(group.seals, std::span(plan.seals), tables_capacity_)));
  }
  return check(device_.api->copy_to_device(meta_.data(), host, layout.end, stream_));
}

}  // namespace quire
