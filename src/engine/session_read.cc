// Loading a session: everything is checked, then its blocks go to the cache.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/stop.h"
#include "engine/job.h"
#include "engine/session_blocks.h"
#include "engine/session_disk.h"
#include "engine/session_store.h"
#include "kv/layout.h"
#include "kv/tier/block_segments.h"
#include "kv/tier/file_io.h"
#include "model/adapter/adapter.h"

namespace quire {

// Whether this model can go on with the session.
Status SessionStore::check_model(const SessionFile& file, const KvPolicy& kv, bool own) const {
  std::string field = other_model(file.model, model_of(kv));
  if (field.empty() && (file.retain != (kv.retain ? kv.retain->text() : "") ||
                        file.select != (kv.select ? kv.select->text() : "")))
    field = "policy";
  if (field.empty() && own && prompt_keys(runtime_, file.tokens, kv) != file.keys) field = "keys";
  if (!field.empty())
    return Error{Code::invalid,
                 fmt::format("{}{}; load it where that is the same", kOtherModel, field)};
  if (file.tokens.size() > runtime_.context())
    return Error{Code::invalid, fmt::format("{}context: it has {} tokens, here fit {}", kOtherModel,
                                            file.tokens.size(), runtime_.context())};
  for (const TokenId t : file.tokens)
    if (t >= runtime_.config().vocabulary)
      return Error{Code::corrupt, "session file: a token that the model does not have"};
  return {};
}

Result<LoadedSession> SessionStore::read(const std::string& tenant, const SessionSource& source,
                                         const std::string& id, const ParsePolicy& parse) {
  TRY(const std::vector<std::byte> fixed,
      source.read(0, std::min<std::uint64_t>(source.size(), kSessionFixedBytes)));
  TRY(const std::uint64_t head_bytes, session_head_bytes(fixed));
  TRY(const std::vector<std::byte> head_read, source.read(0, head_bytes));
  TRY(SessionHead head, read_session_head(head_read, source.size()));
  SessionFile& file = head.file;

  const bool own = sealed_by(head_read, session_seal(runtime_.sessions()->secret, tenant));
  TRY(KvPolicy kv, parse(file.policy));
  kv.tenant = tenant;
  kv.adapters = file.model.adapter.empty() ? nullptr : AdapterSet::named(file.model.adapter);
  kv.producer = own ? file.producer : "import " + random_name();
  TRY_STATUS(check_model(file, kv, own));

  // Everything is read and checked before anything is loaded.
  const Geometry geometry = runtime_.geometry(kv.storage.get());
  const Digest layout = layout_digest(geometry);
  const std::uint32_t per_block = geometry.tokens_per_block;
  const Error corrupt{Code::corrupt,
                      "session file: a block is not what was written; nothing was loaded"};
  const auto block_at = [&](std::size_t i) -> Result<CopiedBlock> {
    const SessionBlock& b = file.blocks[i];
    TRY(const std::vector<std::byte> stored, source.read(head.at[i], align_up(b.bytes)));
    if (!session_block_ok(b, stored) || b.group >= geometry.groups.size() ||
        geometry.groups[b.group].open_only() || geometry.groups[b.group].kind == GroupKind::state)
      return corrupt;
    const auto record = read_record(stored);
    if (!record.ok()) return corrupt;
    const RecordView& view = record.value();
    const auto tokens = std::span(file.tokens).subspan(std::size_t{b.block} * per_block, per_block);
    if (view.record_bytes != b.bytes || view.head.identity.key != file.keys[b.block] ||
        view.head.identity.layout != layout ||
        !std::ranges::equal(view.head.identity.tokens, tokens) ||
        view.head.segments != TierLink::segments(geometry, b.group))
      return corrupt;
    CopiedBlock block{b.block, b.group,
                      std::vector<std::byte>(geometry.block_bytes(geometry.groups[b.group]))};
    std::uint32_t segment = 0;
    for (const std::span<std::byte> to :
         cut_block<std::byte>(view.head.segments, std::span(block.bytes))) {
      const auto from = std::span(stored).subspan(view.segment_at[segment], to.size());
      if (!view.read_segment(segment++, from, to)) return corrupt;
    }
    return block;
  };
  for (std::size_t i = 0; i < file.blocks.size(); ++i) {
    TRY_STATUS(block_at(i));
    if (stop_asked()) return Error{Code::cancelled, "the load was stopped"};
  }

  auto lander = std::make_shared<std::optional<SessionLander>>();
  const auto on_engine = [&](const std::function<void(Runtime&)>& f) {
    const Status ran = engine_.run(f);
    if (!ran.ok() && engine_.abandon) engine_.abandon(lander);
    return ran;
  };
  TRY_STATUS(on_engine([&](Runtime& runtime) { lander->emplace(runtime, file.tokens, kv); }));
  Status failed;
  bool room = true;
  for (std::size_t i = 0; i < file.blocks.size() && room && failed.ok();) {
    std::vector<CopiedBlock> part;
    for (std::uint64_t bytes = 0; i < file.blocks.size() && bytes < kCopiedAtOnce && failed.ok();
         ++i) {
      auto block = block_at(i);
      if (!block.ok()) {  // the file was changed meanwhile
        failed = block.error();
      } else {
        bytes += block.value().bytes.size();
        part.push_back(std::move(block.value()));
      }
    }
    if (failed.ok())
      failed = on_engine([&](Runtime&) {
        for (CopiedBlock& block : part) room = room && (*lander)->add(std::move(block));
      });
  }
  LoadedSession loaded{.session = {.tenant = tenant,
                                   .id = id.empty() ? file.id : id,
                                   .tokens = std::move(file.tokens),
                                   .read = file.read,
                                   .first_prompt = file.first_prompt,
                                   .turns = std::move(file.turns),
                                   .kv = std::move(kv),
                                   .policy = std::move(file.policy)},
                       .own = own,
                       .client = std::move(file.client),
                       .bytes = source.size()};
  const Status ended = on_engine([&](Runtime&) {
    if (failed.ok()) loaded.session.lease = (*lander)->finish(kSessionLabel + loaded.session.id);
    lander->reset();
  });
  TRY_STATUS(failed);
  TRY_STATUS(ended);
  return loaded;
}

}  // namespace quire
