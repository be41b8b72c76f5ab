#include "engine/selecting.h"

#include <algorithm>

#include "base/check.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

const LayerGroup& group_of(const Geometry& geometry) {
  const auto g = std::ranges::find_if(geometry.groups, retains);
  CHECK(g != geometry.groups.end());  // check_select
  return *g;
}

}  // namespace

Selecting::Selecting(const Runtime& runtime, const SelectPolicy& policy,
                     std::uint32_t prompt_length, RootId root)
    : prompt_length_(prompt_length),
      tokens_per_block_(runtime.geometry().tokens_per_block),
      pages_max_(policy.pages(prompt_length, tokens_per_block_)),
      page_bytes_(
          runtime.cache().geometry(root).page_bytes(group_of(runtime.cache().geometry(root)))),
      bounds_(group_of(runtime.cache().geometry(root)).lanes(), runtime.config().head_dim) {}

PageReads Selecting::reads() {
  return {.bounds = &bounds_, .pages_max = pages_max_, .counts = &counts_};
}

}  // namespace quire
