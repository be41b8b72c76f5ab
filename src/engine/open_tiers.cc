#include "engine/open_tiers.h"

#include "kv/tier/disk_tier.h"
#include "kv/tier/store_url.h"

namespace quire {
namespace {

using OpenedTier = Result<std::unique_ptr<Tier>>;

std::uint64_t folder_bytes(const RuntimeOptions& options) {
  return options.kv_disk_bytes ? options.kv_disk_bytes : 1ull << 30;
}

// Gives the secret that the folder has, if it was not given one.
OpenedTier open_disk(const RuntimeOptions& options, Mailbox& mailbox,
                     std::optional<DeploymentSecret>& secret) {
  DiskTierOptions disk;
  disk.store.folder.path = options.kv_dir;
  disk.store.folder.secret = secret;
  disk.store.capacity_bytes = folder_bytes(options);
  disk.mailbox = &mailbox;
  disk.log = options.log;
  TRY(std::unique_ptr<DiskTier> tier, DiskTier::open(std::move(disk)));
  secret = tier->secret();
  return OpenedTier(std::move(tier));
}

}  // namespace

Status open_tiers(const RuntimeOptions& options, RuntimeParts& parts) {
  if (options.kv_dir.empty() && options.kv_store.empty()) return {};
  if (options.device != DeviceKind::cpu)
    return Error{
        Code::unsupported,
        "--kv-dir, --kv-store: blocks of a GPU's cache cannot be kept elsewhere yet; leave "
        "them out"};
  std::optional<DeploymentSecret> secret;
  if (!options.kv_secret_file.empty()) {
    TRY(secret, DeploymentSecret::load(options.kv_secret_file));
  }
  const TierLinkOptions way{.write = options.kv_disk_write};
  if (!options.kv_dir.empty()) {
    auto link =
        TierLink::open(way, [&](Mailbox& mailbox) { return open_disk(options, mailbox, secret); });
    if (link.ok()) {
      parts.tiers = std::move(link.value());
      parts.sessions = {options.kv_dir + "/sessions", *secret, folder_bytes(options)};
    } else if (options.kv_dir_needed) {
      return link.error();
    } else if (options.log) {
      options.log("nothing is kept on disk: " + link.error().message);
    }
  }
  if (!options.kv_store.empty()) {
    const auto open = [&](Mailbox& mailbox) {
      return open_store_url(options.kv_store,
                            {.mailbox = &mailbox, .secret = secret, .log = options.log});
    };
    if (parts.tiers) {
      TRY_STATUS(parts.tiers->add(open));
    } else {
      TRY(parts.tiers, TierLink::open(way, open));
    }
  }
  if (secret) parts.cache.secret = secret->key_secret();
  return {};
}

}  // namespace quire
