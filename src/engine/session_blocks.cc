#include "engine/session_blocks.h"

#include <algorithm>
#include <cstring>

#include "engine/job.h"

namespace quire {
namespace {

// A sequence that is attached to the text. Its last token is never served, so one follows.
Result<Sequence> open_text(Runtime& runtime, std::span<const TokenId> tokens, const KvPolicy& kv,
                           bool publish) {
  TRY(const RootId root, runtime.tenant_root(kv.tenant, kv.storage.get(), kv.root_adapter()));
  const std::vector<KeyChange> changes = key_changes(kv, tokens);
  TRY(Sequence s,
      runtime.cache().open({.root = root,
                            .token_capacity = static_cast<std::uint32_t>(tokens.size()) + 1,
                            .publish = publish,
                            .publish_generated = false,
                            .goes_below = goes_below(runtime, kv),
                            .priority = kv.priority,
                            .changes = changes}));
  std::vector<TokenId> all(tokens.begin(), tokens.end());
  all.push_back(0);
  runtime.cache().attach(s, all, prompt_keys(runtime, tokens, kv));
  return s;
}

}  // namespace

SessionReader::SessionReader(Runtime& runtime, std::span<const TokenId> tokens, const KvPolicy& kv,
                             std::uint32_t most)
    : cache_(runtime.cache()) {
  Result<Sequence> s = open_text(runtime, tokens, kv, false);
  if (!s.ok()) return;
  sequence_ = std::move(s.value());
  geometry_ = &cache_.geometry(sequence_.root());
  end_ = std::min(sequence_.length(), most) / geometry_->tokens_per_block;
}

std::vector<CopiedBlock> SessionReader::next(std::uint64_t bytes) {
  std::vector<CopiedBlock> part;
  const std::uint32_t tokens = end_ * (geometry_ ? geometry_->tokens_per_block : 0);
  for (std::uint64_t copied = 0; block_ < end_ && copied < bytes; ++block_)
    for (std::uint32_t g = 0; g < geometry_->groups.size(); ++g) {
      if (!cache_.wants(sequence_, g, block_, tokens)) continue;
      const ArenaOffset at = cache_.view(sequence_, g).blocks[block_];
      if (at == kNoBlock) continue;  // a window has passed it
      const std::byte* const from = arena_at(cache_.arena(), at);
      const std::uint64_t size = geometry_->block_bytes(geometry_->groups[g]);
      part.push_back({block_, g, {from, from + size}});
      copied += size;
    }
  return part;
}

SessionLander::SessionLander(Runtime& runtime, std::span<const TokenId> tokens, const KvPolicy& kv)
    : cache_(runtime.cache()) {
  Result<Sequence> s = open_text(runtime, tokens, kv, true);
  if (!s.ok()) return;
  sequence_ = std::move(s.value());
  geometry_ = &cache_.geometry(sequence_.root());
  keys_ = prompt_keys(runtime, tokens, kv);
  first_ = end_ = sequence_.length() / geometry_->tokens_per_block;
}

bool SessionLander::wants(std::uint32_t block, std::uint32_t group) const {
  return geometry_ != nullptr && block >= first_ && block < keys_.size() &&
         group < geometry_->groups.size();
}

std::uint64_t SessionLander::bytes(std::uint32_t group) const {
  return geometry_->block_bytes(geometry_->groups[group]);
}

bool SessionLander::add(CopiedBlock block) {
  if (!wants(block.block, block.group)) return true;
  std::optional<Landing> room = cache_.land(sequence_, block.group);
  if (!room || room->bytes().size() != block.bytes.size()) return false;
  std::ranges::copy(block.bytes, room->bytes().begin());
  if (landed_.size() <= block.block - first_) landed_.resize(block.block - first_ + 1);
  landed_[block.block - first_][block.group] = std::move(*room);
  return true;
}

std::optional<LeaseId> SessionLander::finish(const std::string& label) {
  if (geometry_ == nullptr) return std::nullopt;
  if (!landed_.empty()) {
    const std::uint32_t taken = cache_.adopt(sequence_, first_, landed_);
    // Tiers have not seen them.
    for (std::uint32_t b = first_; b < first_ + taken; ++b)
      for (std::uint32_t g = 0; g < geometry_->groups.size(); ++g) cache_.not_below(keys_[b], g);
    landed_.clear();
  }
  const Result<LeaseId> lease = cache_.lease(sequence_, {.label = label});
  sequence_.close();
  return lease.ok() ? std::optional(lease.value()) : std::nullopt;
}

}  // namespace quire
