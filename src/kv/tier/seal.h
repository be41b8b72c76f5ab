// kv/tier/seal.h - AES-256-GCM for records in places that others can read or write.
//
// A place (shared store, peer, shared folder) has one Seal per tenant. Every record draws a salt,
// which is in its clear head; salt, secret and tenant give the record's own key, so the segment's
// number can be the nonce. The clear head and the number are authenticated with every part: a
// record can be neither read, forged, nor moved to another name.
//
//   const Seal seal(secret, "tenant");
//   const RecordCipher cipher = seal.cipher(salt);                  // one per record
//   cipher.seal(number, clear_head, plain, sealed, tag);
//   if (!cipher.open(number, clear_head, sealed, tag, plain)) ...   // counted as a miss
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kv/tier/secret.h"

namespace quire {

using SealTag = std::array<std::byte, 16>;

class RecordCipher {
 public:
  explicit RecordCipher(const RecordKeyBytes& key) : key_(key) {}

  // `to` has the size of `from` and may be the same memory.
  void seal(std::uint32_t number, std::span<const std::byte> clear_head,
            std::span<const std::byte> from, std::span<std::byte> to, SealTag& tag) const;
  // False if anything differs from what was sealed; `to` is then zero.
  [[nodiscard]] bool open(std::uint32_t number, std::span<const std::byte> clear_head,
                          std::span<const std::byte> from, const SealTag& tag,
                          std::span<std::byte> to) const;

 private:
  RecordKeyBytes key_;
};

class Seal {
 public:
  Seal(const DeploymentSecret& secret, std::string tenant)
      : secret_(secret), tenant_(std::move(tenant)) {}

  static RecordSalt random_salt();
  RecordCipher cipher(const RecordSalt& salt) const {
    return RecordCipher(secret_.record_key(tenant_, salt));
  }

 private:
  DeploymentSecret secret_;
  std::string tenant_;
};

}  // namespace quire
