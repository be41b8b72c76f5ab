// Saving a session: its head, and the blocks that the cache has of it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <optional>

#include "base/stop.h"
#include "engine/job.h"
#include "engine/session_blocks.h"
#include "engine/session_disk.h"
#include "engine/session_store.h"
#include "kv/layout.h"
#include "kv/tier/block_segments.h"
#include "kv/tier/file_io.h"

namespace quire {
namespace {

RecordHead record_head(const Runtime& runtime, const Geometry& geometry, const Digest& layout,
                       const BlockKey& key, std::span<const TokenId> tokens,
                       const CopiedBlock& block) {
  const std::uint32_t per_block = geometry.tokens_per_block;
  return {.identity = TierLink::identity(
              runtime.secret(), key, layout,
              tokens.subspan(std::size_t{block.block} * per_block, per_block), block.group),
          .segments = TierLink::segments(geometry, block.group)};
}

}  // namespace

Result<SavedSession> SessionStore::write(const Session& session, const std::string& path,
                                         const SaveOptions& options, std::uint64_t bytes_max) {
  const KvPolicy& kv = session.kv;
  if (kv.blend || kv.convert)
    return Error{Code::unsupported,
                 fmt::format("a session with {} begins with what is cached, each time anew; it "
                             "cannot be saved",
                             kv.blend ? "kv.reuse approximate" : "kv.convert")};
  const Geometry geometry = runtime_.geometry(kv.storage.get());
  const Digest layout = layout_digest(geometry);
  SessionFile file{.model = model_of(kv),
                   .id = session.id,
                   .tokens = session.tokens,
                   .read = session.read,
                   .first_prompt = session.first_prompt,
                   .turns = session.turns,
                   .policy = session.policy,
                   .retain = kv.retain ? kv.retain->text() : "",
                   .select = kv.select ? kv.select->text() : "",
                   .producer = kv.producer,
                   .client = options.client,
                   .created = session.created,
                   .keys = prompt_keys(runtime_, session.tokens, kv),
                   .blocks = {}};
  // Behind the first prompt, programs may have read less than all; such blocks are nobody's.
  const bool programs = kv.retain || kv.select;
  const std::uint32_t most = !options.blocks ? 0 : programs ? session.first_prompt : session.read;

  auto reader = std::make_shared<std::optional<SessionReader>>();
  const auto on_engine = [&](const std::function<void(Runtime&)>& f) {
    const Status ran = engine_.run(f);
    if (!ran.ok() && engine_.abandon) engine_.abandon(reader);
    return ran;
  };
  // Blocks go behind room for a header that names as many as there may be.
  SessionFile largest = file;
  for (std::uint32_t b = 0; b < file.keys.size(); ++b)
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g)
      largest.blocks.push_back({b, g, kSessionRecordMax, {}});
  const std::uint64_t header_room = place_records(std::move(largest)).head_bytes;
  std::vector<CopiedBlock> part;
  TRY_STATUS(on_engine([&](Runtime& runtime) {
    reader->emplace(runtime, session.tokens, kv, most);
    part = (*reader)->next(kCopiedAtOnce);
  }));

  const OpenFile out(path, O_RDWR | O_CREAT | O_TRUNC);
  if (out.fd < 0) return disk_error("make", path);
  std::uint64_t at = header_room;
  Status failed;
  while (!part.empty() && failed.ok()) {
    for (const CopiedBlock& block : part) {
      const RecordHead head =
          record_head(runtime_, geometry, layout, file.keys[block.block], session.tokens, block);
      std::vector<std::byte> record(align_up(record_bytes(head)));
      const auto exact = std::span(record).first(record_bytes(head));
      encode_record(head, cut_block<const std::byte>(head.segments, block.bytes), exact);
      file.blocks.push_back({block.block, block.group, exact.size(), sha256(exact)});
      if (at + record.size() > bytes_max)
        failed = Error{Code::exhausted,
                       fmt::format("saved sessions may take {} bytes (--kv-disk); delete some",
                                   runtime_.sessions()->bytes_max)};
      if (failed.ok()) failed = write_at(out, path, record, at);
      if (!failed.ok()) break;
      at += record.size();
    }
    if (failed.ok() && stop_asked()) failed = Error{Code::cancelled, "the save was stopped"};
    if (failed.ok()) failed = on_engine([&](Runtime&) { part = (*reader)->next(kCopiedAtOnce); });
  }
  (void)on_engine([&](Runtime&) { reader->reset(); });
  TRY_STATUS(failed);

  const std::vector<std::byte> head = encode_session_head(
      file, session_seal(runtime_.sessions()->secret, session.tenant), header_room);
  TRY_STATUS(write_at(out, path, head, 0));
  if (::fdatasync(out.fd) != 0) return disk_error("sync", path);
  TRY(const std::string digest, file_digest(out, path));
  return SavedSession{.name = {},
                      .bytes = at,
                      .changed = 0,
                      .tokens = static_cast<std::uint32_t>(session.tokens.size()),
                      .sha256 = digest,
                      .blocks = static_cast<std::uint32_t>(file.blocks.size())};
}

}  // namespace quire
