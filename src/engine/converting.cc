#include "engine/converting.h"

#include "engine/convert.h"
#include "engine/stepper.h"

namespace quire {

std::optional<Attached> Converting::attach(Stepper& stepper, Sequence& s,
                                           const SequenceOptions& options) {
  Runtime& runtime = stepper.runtime();
  const StoragePolicy& storage = storage_ ? *storage_ : runtime.storage();
  if (!storage.lossy() || !options.reuse) return {};
  const StoragePolicy rows = storage.rows();
  const auto root = runtime.find_root(tenant_, &rows, adapter_);
  if (!root) return {};
  const std::vector<TokenId> prompt(s.tokens().begin(), s.tokens().end());
  std::vector<KeyChange> changes;
  if (!salt_.empty()) changes.push_back({.kind = ChangeKind::salt, .value = salt_});
  auto exact = runtime.cache().open({.root = *root,
                                     .token_capacity = static_cast<std::uint32_t>(prompt.size()),
                                     .publish = false,
                                     .changes = changes});
  if (!exact.ok()) return {};
  const Attached found = runtime.cache().attach(exact.value(), prompt);
  const std::uint32_t block = runtime.geometry().tokens_per_block,
                      tokens = found.tokens / block * block;
  if (tokens <= runtime.cache().peek(s).tokens) return {};

  changes.push_back({.kind = ChangeKind::converted, .value = std::string(rows.format->name)});
  changes.push_back({.position = tokens, .kind = ChangeKind::producer, .value = "after converted"});
  SequenceOptions own = options;
  own.changes = changes;
  own.recomputable = false;
  auto made = runtime.cache().open(own);
  if (!made.ok()) return {};
  Attached got = runtime.cache().attach(made.value(), prompt);
  if (got.tokens < tokens) {
    if (!convert_blocks(runtime, exact.value(), made.value(), tokens).ok()) return {};
    got = {.tokens = tokens, .reason = found.reason};
  }
  s = std::move(made.value());
  converted_ = true;
  return got;
}

}  // namespace quire
