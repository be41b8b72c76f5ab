// kv/tier/secret.h - the deployment secret: 64 random bytes that make keys and records ours.
//
// Block keys, names of stored records and the encryption of shared places all depend on it.
// Machines that share a store have the same one. Losing it costs a cold cache, nothing else. As a
// file it is 128 hexadecimal digits and a newline, readable by its owner alone.
//
//   TRY(const DeploymentSecret secret, DeploymentSecret::load("/etc/quire/kv-secret"));
//   const KeySecret keys = secret.key_secret();                       // kv/key.h
//   const RecordKeyBytes key = secret.record_key("tenant", salt);     // kv/tier/seal.h
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/key.h"

namespace quire {

using RecordSalt = std::array<std::uint8_t, 32>;      // random, in a sealed record's head
using RecordKeyBytes = std::array<std::uint8_t, 32>;  // of AES-256

class DeploymentSecret {
 public:
  static DeploymentSecret random();
  // `where` names the file in messages.
  static Result<DeploymentSecret> parse(std::string_view text, const std::string& where);
  // Refuses a file that others than its owner can read or write.
  static Result<DeploymentSecret> load(const std::string& path);

  std::string text() const;  // what parse() reads
  KeySecret key_secret() const { return KeySecret(bytes_); }
  std::string fingerprint() const;  // 16 digits that tell secrets apart and tell nothing else

  // HKDF-SHA-256 of the secret; the salt and the tenant are its salt and info.
  RecordKeyBytes record_key(std::string_view tenant, const RecordSalt& salt) const;

  bool operator==(const DeploymentSecret&) const = default;

 private:
  std::array<std::uint8_t, KeySecret::kBytes> bytes_{};
};

}  // namespace quire
