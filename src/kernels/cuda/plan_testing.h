// kernels/cuda/plan_testing.h - turns a plan made by hand into arguments of a kernel. For tests and
// benchmarks of attention.
//
//   add_attention(plan, {.table = 0, .row = 0, ...}, cuda_split(128), 1);
//   use_plan(plan, args, up, room);   // up(vector) copies to the device; room(bytes) allocates there
#pragma once

#include "kernels/cuda/plan.h"

namespace quire {

template <class Up, class Room>
void use_plan(const CudaPlan& plan, AttendArgs& a, Up up, Room room) {
  a.items = up(plan.items);
  a.items_max = static_cast<std::uint32_t>(plan.items.size());
  a.item_count = up(std::vector<std::uint32_t>{a.items_max});
  a.merges = up(plan.merges);
  a.rows = static_cast<std::uint32_t>(plan.merges.size());
  a.partials =
      static_cast<float*>(room((plan.partials + 1ull) * a.query_heads * (a.head_dim + 2) * 4));
}

}  // namespace quire
