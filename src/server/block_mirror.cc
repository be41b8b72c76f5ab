#include "server/block_mirror.h"

#include <algorithm>
#include <unordered_set>

namespace quire {

// Joins blocks that follow each other into one event.
class BlockMirror::Writer {
 public:
  explicit Writer(const Options& options) : options_(options) {}

  void cleared() {
    events_.push_back(array() ? Json::array({"AllBlocksCleared"})
                              : Json{{"type", "AllBlocksCleared"}});
  }
  void removed(std::vector<std::uint64_t> hashes) {
    if (hashes.empty()) return;
    if (array())
      events_.push_back(Json::array({"BlockRemoved", hashes, "GPU"}));
    else
      events_.push_back({{"type", "BlockRemoved"}, {"block_hashes", hashes}, {"medium", "GPU"}});
  }
  void stored(std::uint64_t hash, const MirroredBlock& block) {
    if (!run_.empty() && (block.parent != run_.back() || block.salt != first_.salt ||
                          block.tenant != first_.tenant || block.adapter != first_.adapter))
      end_run();
    if (run_.empty())
      first_ = {.parent = block.parent,
                .tenant = block.tenant,
                .salt = block.salt,
                .adapter = block.adapter};
    run_.push_back(hash);
    tokens_.insert(tokens_.end(), block.tokens.begin(), block.tokens.end());
  }
  Json take() {
    end_run();
    return std::move(events_);
  }

 private:
  bool array() const { return options_.form == EventForm::array; }

  void end_run() {
    if (run_.empty()) return;
    const Json parent = first_.parent == 0 ? Json() : Json(first_.parent);
    if (array()) {
      events_.push_back(Json::array({"BlockStored", run_, parent, tokens_,
                                     options_.tokens_per_block, nullptr, "GPU", nullptr}));
    } else {
      Json event{{"type", "BlockStored"},
                 {"block_hashes", run_},
                 {"parent_block_hash", parent},
                 {"token_ids", tokens_},
                 {"block_size", options_.tokens_per_block},
                 {"lora_id", nullptr},
                 {"medium", "GPU"},
                 {"lora_name", nullptr},
                 {"group_idx", 0},
                 {"kv_cache_spec_kind", "full_attention"},
                 {"kv_cache_spec_sliding_window", nullptr}};
      Json keys = Json::array();  // what besides tokens tells these blocks from others
      if (!first_.salt.empty()) keys.push_back(first_.salt);
      if (!first_.tenant.empty()) keys.push_back("tenant:" + first_.tenant);
      if (!first_.adapter.empty()) keys.push_back("adapter:" + first_.adapter);
      if (!keys.empty()) event["extra_keys"] = Json(run_.size(), keys);
      if (!first_.salt.empty()) event["cache_salt"] = first_.salt;
      events_.push_back(std::move(event));
    }
    run_.clear();
    tokens_.clear();
  }

  const Options& options_;
  Json events_ = Json::array();
  std::vector<std::uint64_t> run_;
  std::vector<TokenId> tokens_;
  MirroredBlock first_;
};

Json BlockMirror::apply(std::vector<MirrorChange> changes) {
  Writer writer(options_);
  std::vector<std::uint64_t> gone;
  for (const MirrorChange& c : changes)
    if (!c.there && blocks_.erase(c.hash) > 0) gone.push_back(c.hash);
  std::ranges::reverse(gone);  // children first
  writer.removed(std::move(gone));
  for (MirrorChange& c : changes) {
    if (!c.there) continue;
    const auto [at, is_new] = blocks_.try_emplace(c.hash, std::move(c.block));
    if (is_new) writer.stored(c.hash, at->second);
  }
  return writer.take();
}

Json BlockMirror::replace(std::vector<MirrorChange> all) {
  std::unordered_set<std::uint64_t> kept;
  for (const MirrorChange& c : all) kept.insert(c.hash);
  std::vector<MirrorChange> changes;
  for (const auto& [hash, block] : blocks_)
    if (!kept.contains(hash)) changes.push_back({.hash = hash});
  std::ranges::sort(changes, {}, &MirrorChange::hash);
  std::ranges::move(all, std::back_inserter(changes));
  return apply(std::move(changes));
}

Json BlockMirror::snapshot() const {
  Writer writer(options_);
  writer.cleared();
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> children;
  std::vector<std::uint64_t> next;
  for (const auto& [hash, block] : blocks_)
    (blocks_.contains(block.parent) ? children[block.parent] : next).push_back(hash);
  std::ranges::sort(next);
  while (!next.empty()) {
    const std::uint64_t hash = next.back();
    next.pop_back();
    writer.stored(hash, blocks_.at(hash));
    if (const auto it = children.find(hash); it != children.end()) {
      std::ranges::sort(it->second);
      next.insert(next.end(), it->second.begin(), it->second.end());
    }
  }
  return writer.take();
}

std::string event_payload(double seconds, const Json& events) {
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(Json::array({seconds, events}));
  return {bytes.begin(), bytes.end()};
}

}  // namespace quire
