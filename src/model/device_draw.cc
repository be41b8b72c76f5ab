// Tokens drawn on the device after a pass. Its inputs and results lie in pinned memory, so nothing
// is copied and a step waits only once. It waits twice if the likely part of a row was too large,
// and the row's logits must be copied to the host.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "model/device_model.h"
#include "model/device_upload.h"

namespace quire {

Status DeviceModel::start_draws(const Draws& draws) {
  const std::size_t rows = draws.rows.size(), changes = draws.changes.size();
  const std::size_t lists_at = 0, rows_at = align(draws.lists * sizeof(DrawList)),
                    drawn_at = rows_at + align(rows * sizeof(DrawRow)),
                    changes_at = drawn_at + align(rows * sizeof(Drawn)),
                    bytes = changes_at + align(changes * sizeof(DrawChange));
  const auto at_least = [&](DeviceBuffer& buffer, std::size_t needed) -> Status {
    if (buffer.size() >= needed) return {};
    TRY_STATUS(check(device_.api->wait(stream_)));
    buffer = {};
    TRY(buffer, DeviceBuffer::allocate(device_, std::bit_ceil(needed), "the scratch of a step"));
    return {};
  };
  TRY_STATUS(at_least(draw_scratch_, draws.lists * sizeof(DrawList)));
  TRY_STATUS(at_least(draw_raw_, changes * sizeof(float)));
  if (draw_host_.size() < bytes) {
    TRY_STATUS(check(device_.api->wait(stream_)));
    draw_host_ = {};
    TRY(draw_host_, DeviceBuffer::pinned(device_, std::bit_ceil(bytes)));
  }
  std::byte* const host = draw_host_.data();
  std::copy_n(draws.rows.data(), rows, reinterpret_cast<DrawRow*>(host + rows_at));
  std::copy_n(draws.changes.data(), changes, reinterpret_cast<DrawChange*>(host + changes_at));
  drawing_ = {.logits = nullptr,
              .rows = reinterpret_cast<const DrawRow*>(host + rows_at),
              .changes = reinterpret_cast<const DrawChange*>(host + changes_at),
              .raw = draw_raw_.as<float>(),
              .scratch = draw_scratch_.as<DrawList>(),
              .lists = reinterpret_cast<DrawList*>(host + lists_at),
              .drawn = reinterpret_cast<Drawn*>(host + drawn_at),
              .row_count = static_cast<std::uint32_t>(rows),
              .vocabulary = config_.vocabulary};
  return {};
}

Status DeviceModel::finish_draws(const StepRows& step, float* logits) {
  const std::span<const DrawRow> rows = step.draws->rows;
  CHECK(rows.size() == step.logit_rows.size());
  const std::size_t vocabulary = config_.vocabulary;
  const auto bring = [&](std::size_t i) {
    return check(device_.api->copy_to_host(
        logits + i * vocabulary, logits_.as<float>() + i * vocabulary, vocabulary * 4, stream_));
  };
  if (rows.empty()) return check(device_.api->wait(stream_));
  drawing_.logits = logits_.as<float>();
  TRY_STATUS(check(device_.api->draw(drawing_, stream_)));
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].mode == DrawMode::logits) TRY_STATUS(bring(i));
  TRY_STATUS(check(device_.api->wait(stream_)));
  bool more = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Drawn& drawn = step.drawn[i] = drawing_.drawn[i];
    if (drawn.mode == DrawMode::above || drawn.mode == DrawMode::top)
      drawn.list = &drawing_.lists[rows[i].list];
    if (drawn.mode != DrawMode::logits || rows[i].mode == DrawMode::logits) continue;
    TRY_STATUS(bring(i));
    more = true;
  }
  return more ? check(device_.api->wait(stream_)) : Status();
}

}  // namespace quire
