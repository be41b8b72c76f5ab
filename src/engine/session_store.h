// engine/session_store.h - sessions in files: saved, loaded, listed, removed.
//
// A folder of the cache folder's `sessions/` per tenant, and in it one file (engine/session_file.h)
// per name. Files are written under another name, synced and renamed, and only their owner may read
// them. All of them together are bounded. Not for the engine thread: it reads and writes disks. The
// engine copies a few megabytes at a time (engine/session_blocks.h).
//
//   SessionStore store(runtime, engine_access);
//   TRY(const SavedSession saved, store.save(session, "name"));
//   TRY(LoadedSession loaded, store.load("tenant", "name", "", parse_policy));
//   sessions.create(std::move(loaded.session));
//
// A session with a policy that begins with whatever is cached (approximate reuse, conversion) is not
// saved: it could not go on with the same tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime.h"
#include "engine/session_file.h"
#include "engine/sessions.h"

namespace quire {

class SessionSource;  // engine/session_disk.h

// How the engine thread is reached.
struct EngineAccess {
  // Runs it there and waits. An error: the engine has ended, and it was not run.
  std::function<Status(const std::function<void(Runtime&)>&)> run;
  // Keeps what belongs to an engine that has ended until the engine is gone.
  std::function<void(std::shared_ptr<void>)> abandon = {};
};

struct SaveOptions {
  std::string client = "null";  // SessionFile::client
  // False: the text alone. Its blocks are computed again, unless a tier has them.
  bool blocks = true;
};

struct SavedSession {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t changed = 0;  // nanoseconds since 1970
  std::uint32_t tokens = 0;  // the next two: of save() only
  std::string sha256 = {};   // of the file
  std::uint32_t blocks = 0;
};

struct LoadedSession {
  Session session;     // its id is the one that was saved; its lease is taken
  bool own = false;    // this deployment's secret authenticates the file
  std::string client;  // SessionFile::client
  std::uint64_t bytes = 0;
};

class SessionStore {
 public:
  // The policy of a session, from the client's words.
  using ParsePolicy = std::function<Result<KvPolicy>(const std::string& words)>;
  static constexpr std::uint32_t kSavesMax = 1024;  // of a tenant

  SessionStore(const Runtime& runtime, EngineAccess engine)
      : runtime_(runtime), engine_(std::move(engine)) {}

  // Codes: `unavailable`, the disk or the engine said no; `exhausted`, the bound; `unsupported`, it
  // cannot be saved; `corrupt`, the file is not what was written; `invalid`, it is another model's
  // (the message names the field) or the name is none; `not_found`.
  Result<SavedSession> save(const Session& session, const std::string& name,
                            const SaveOptions& options = {});
  // `id`: the name that the session gets; empty: the one that it had.
  Result<LoadedSession> load(const std::string& tenant, const std::string& name,
                             const std::string& id, const ParsePolicy& parse);
  Result<std::vector<SavedSession>> list(const std::string& tenant) const;
  Result<SavedSession> remove(const std::string& tenant, const std::string& name, bool dry_run);

  // To and from a file without a name, which is removed when `path` goes.
  struct Nameless {
    explicit Nameless(std::string p) : path(std::move(p)) {}
    Nameless(const Nameless&) = delete;
    ~Nameless();
    const std::string path;
  };
  Result<std::shared_ptr<const Nameless>> save_nameless(const Session& session);
  Result<LoadedSession> load_bytes(const std::string& tenant, std::string_view bytes,
                                   const std::string& id, const ParsePolicy& parse);

 private:
  Result<std::string> folder(const std::string& tenant) const;  // made if it is not there
  std::uint64_t stored_bytes() const;                           // of all tenants
  SessionModel model_of(const KvPolicy& kv) const;
  Result<SavedSession> write(const Session& session, const std::string& path,
                             const SaveOptions& options, std::uint64_t bytes_max);
  Result<LoadedSession> read(const std::string& tenant, const SessionSource& source,
                             const std::string& id, const ParsePolicy& parse);
  Status check_model(const SessionFile& file, const KvPolicy& kv, bool own) const;

  const Runtime& runtime_;
  EngineAccess engine_;
};

// An error: not a name for a file. Letters, digits, `.`, `_` and `-`, and no dot at the beginning.
Status check_save_name(std::string_view name);

std::string random_name();  // of a file, or of a producer

// What SessionStore::load says when the file is of another model begins so.
inline constexpr std::string_view kOtherModel = "the session was saved with another ";

}  // namespace quire
