// kv.convert: a request in a lossy format takes the exact blocks of its prompt that are cached,
// encodes them and goes on from there. Its chain says how many were made that way and is nobody
// else's but those who converted as many.
#include "engine/convert.h"
#include "engine/engine.h"

namespace quire {

// What the job's sequence begins with; nothing if its own chain has as much, or if there is no room.
std::optional<Attached> Engine::convert(Job& job) {
  const Request& r = job.request;
  const StoragePolicy& storage = r.kv.storage ? *r.kv.storage : runtime_.storage();
  if (!storage.lossy() || !r.kv.reuse || job.width() != 1) return {};
  const StoragePolicy rows = storage.rows();
  const auto root = runtime_.tenant_root(r.kv.tenant, &rows);
  if (!root.ok()) return {};
  std::vector<KeyChange> changes;
  if (!r.kv.salt.empty()) changes.push_back({.kind = ChangeKind::salt, .value = r.kv.salt});
  auto exact = runtime_.cache().open({.root = root.value(),
                                      .token_capacity = static_cast<std::uint32_t>(r.prompt.size()),
                                      .publish = false,
                                      .changes = changes});
  if (!exact.ok()) return {};
  const Attached found = runtime_.cache().attach(exact.value(), r.prompt);
  const std::uint32_t block = runtime_.geometry().tokens_per_block,
                      tokens = found.tokens / block * block;
  Sequence& plain = *job.branch(0).sequence;
  if (tokens <= runtime_.cache().peek(plain).tokens) return {};

  changes.push_back({.kind = ChangeKind::converted, .value = std::string(rows.format->name)});
  changes.push_back({.position = tokens, .kind = ChangeKind::producer, .value = "after converted"});
  SequenceOptions options = sequence_options(job, changes);
  options.recomputable = false;
  auto made = runtime_.cache().open(options);
  if (!made.ok()) return {};
  Attached got = runtime_.cache().attach(made.value(), r.prompt);
  if (got.tokens < tokens) {
    if (!convert_blocks(runtime_, exact.value(), made.value(), tokens).ok()) return {};
    got = {.tokens = tokens, .reason = found.reason};
  }
  plain = std::move(made.value());
  job.converted = true;
  return got;
}

}  // namespace quire
