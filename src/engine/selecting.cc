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
      exact_(runtime.cache().geometry(root).exact()),
      page_bytes_(
          runtime.cache().geometry(root).page_bytes(group_of(runtime.cache().geometry(root)))),
      bounds_(group_of(runtime.cache().geometry(root)).lanes(), runtime.config().head_dim) {}

void Selecting::open(SequenceOptions& options) const {
  options.recomputable = false;
  options.serve_max = std::min(options.serve_max, prompt_length_);
  options.publish_generated = false;  // what answers compute from a part of it is theirs
}

// In a lossy format, rows of blocks that a step fills exist only during the step. So answers are
// read token by token there.
std::uint32_t Selecting::rows_max(std::uint32_t past) const {
  if (exact_) return 0xffffffffu;
  return past < prompt_length_ ? prompt_length_ - past : 1;
}

std::optional<PageReads> Selecting::reads(std::uint32_t first) {
  if (first < prompt_length_) return {};
  return PageReads{.bounds = &bounds_, .pages_max = pages_max_, .counts = &counts_};
}

Status Selecting::truncate(std::uint32_t length) {
  if (length < prompt_length_)
    return Error{Code::unsupported, "with kv_select a prompt is read once, as a whole"};
  bounds_.cut(length / tokens_per_block_);
  return {};
}

void Selecting::report(ProgramReport& r) const {
  r.bytes_beside += bytes();
  r.bytes_read += bytes_read();
  r.bytes_readable += bytes_whole();
}

}  // namespace quire
