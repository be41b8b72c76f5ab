// kv/tier/disk_folder.h - the folder of a disk tier: manifest, secret, lock and the names in it.
//
//   manifest.json   version of the folder and of records, when it was made, which secret it has
//   secret          kv/tier/secret.h, unless the secret comes from elsewhere
//   lock            held while a process uses the folder
//   index.qidx      kv/tier/disk_index.h
//   sessions/       saved sessions
//   responses/      server/dialect/responses/response_store.h
//   segments/       kv/tier/disk_volume.h
//
//   TRY(DiskFolder folder, DiskFolder::open(files, {.path = "/var/cache/quire/kv"}));
//   folder.secret().key_secret();
//
// A damaged manifest or secret is replaced, which `problems()` tells: a cold cache, not a failed
// start. A folder of a newer version, one in use, or one that holds other things is refused.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/tier/file_io.h"
#include "kv/tier/secret.h"

namespace quire {

struct DiskFolderOptions {
  std::string path;
  bool read_only = false;                       // looks, without lock; makes and mends nothing
  bool create = true;                           // make the folder if there is none
  std::optional<DeploymentSecret> secret = {};  // instead of the file
};

class DiskFolder {
 public:
  static Result<DiskFolder> open(Files& files, const DiskFolderOptions& options);

  DiskFolder(DiskFolder&& o) noexcept;
  DiskFolder& operator=(DiskFolder&&) = delete;
  ~DiskFolder();  // lets go of the lock

  const DeploymentSecret& secret() const { return secret_; }
  const std::vector<std::string>& problems() const { return problems_; }
  bool read_only() const { return read_only_; }
  const std::string& path() const { return path_; }
  std::string index_path() const { return path_ + "/index.qidx"; }
  std::string volumes_path() const { return path_ + "/segments"; }
  std::string volume_path(std::uint32_t number) const;

  // Whether the folder takes and gives bytes at the moment.
  Status probe() const;

 private:
  DiskFolder(Files& files, const DiskFolderOptions& options);
  Status check_content() const;
  Status read_manifest();
  Status read_secret();

  Files* files_;
  std::string path_;
  bool read_only_;
  bool damaged_ = false;
  std::string created_, fingerprint_;  // as the manifest has them
  std::optional<FileId> lock_;
  std::optional<DeploymentSecret> given_;
  DeploymentSecret secret_;
  std::vector<std::string> problems_;
};

}  // namespace quire
