// Attention of a sequence whose blocks are brought while the step runs, window by window.
#include <chrono>
#include <thread>

#include "model/executor.h"
#include "model/pass.h"

namespace quire {

namespace {

// A nap is short compared with reading a block from a disk.
bool wait_for(ColdBlocks& cold, std::uint32_t layer, std::uint32_t first, std::uint32_t end,
              ArenaOffset* table) {
  for (;;) switch (cold.bring(layer, first, end, table)) {
      case ColdBlocks::Came::now:
        return true;
      case ColdBlocks::Came::never:
        return false;
      case ColdBlocks::Came::later:
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

}  // namespace

// What rows read split by split. False: a block cannot be had. All threads come to the same end, since
// only the first one decides, before they meet.
bool Pass::attend_streamed(const Layer& l, const AttendStep& as_rows) {
  const LayerPlace place = geometry_.places[l.index];
  GroupStep& group = s_.groups.groups[place.group];
  const StreamedPlan& plan = group.streamed_plan;
  const std::uint32_t per_split = kAttendSplit / group.view.tokens_per_block;
  const SealedStep encoded = group.sealed ? sealed_step(l, group, as_rows) : SealedStep{};
  const Range mine = share(static_cast<std::uint32_t>(plan.sums.size()), 1);
  for (std::size_t i = 0; i < plan.windows.size(); ++i) {
    const StreamedPlan::Window& w = plan.windows[i];
    if (w.cold && worker_.index == 0 && !step_.dropped[0])
      step_.dropped[0] =
          !wait_for(*step_.cold, place.index, w.first_split * per_split,
                    std::min(w.end_split * per_split, step_.cold->blocks()), group.table.data());
    worker_.barrier();  // its blocks are there, and sums of the window before
    if (step_.dropped[0]) return false;
    for (std::uint32_t t = w.first_task + worker_.index; t < w.end_task; t += worker_.count)
      if (group.sealed)
        s_.attend.attend_sealed(encoded, plan.tasks[t], own_.attend.data());
      else
        s_.attend.attend(as_rows, plan.tasks[t], own_.attend.data());
    worker_.barrier();  // every row has read it
    if (w.cold && worker_.index == 0) step_.cold->release();
    for (std::uint32_t sum = mine.begin; sum < mine.end; ++sum)
      fold_window(as_rows.shape, plan, i, plan.sums[sum], as_rows.partials);
  }
  if (group.sealed) return true;
  worker_.barrier();
  for (std::uint32_t i = mine.begin; i < mine.end; ++i) {
    const StreamedPlan::Sum& sum = plan.sums[i];
    s_.attend.merge(as_rows, {0, sum.kv_head, sum.row, plan.partial_of(sum.row, sum.kv_head), 1});
  }
  return true;
}

}  // namespace quire
