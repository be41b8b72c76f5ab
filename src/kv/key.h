// kv/key.h - the name of a block: everything that went into computing it.
//
//   key_root = SHA-256(secret, identity)
//   key_i    = SHA-256(secret, key_{i-1}, tokens_i, change_i)
//
// Blocks with equal keys have interchangeable bytes. The secret (64 bytes, one per deployment,
// shared by peers) makes keys unguessable; it fills exactly one block of the hash, so the hash
// state after it is kept. Model, adapter, layout, tenant and the rest of the identity are in the
// root only. A change marks a block that is more than just further tokens (a salt, media, ...). The
// encoding is versioned, tagged and length-prefixed (kv/key.cc). Each object may be used by one
// thread at a time.
//
//   const KeySecret secret(bytes);                     // once
//   const BlockKey root = root_key(secret, identity);  // per model, adapter, layout and tenant
//   KeyChain chain(secret, root, 32);                  // per sequence, off the engine thread
//   chain.extend(tokens);                              // hashes only blocks that became full since
//   index.match(chain.keys(), tokens);
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

using Digest = std::array<std::uint8_t, 32>;

struct BlockKey {
  Digest bytes{};

  auto operator<=>(const BlockKey&) const = default;
  std::uint64_t prefix() const {  // for hash tables and the ghost table
    std::uint64_t p;
    std::memcpy(&p, bytes.data(), sizeof p);
    return p;
  }
  std::string hex() const;  // 64 digits
};

struct BlockKeyHash {  // a key is already uniform
  std::size_t operator()(const BlockKey& k) const { return k.prefix(); }
};

Digest sha256(std::span<const std::byte> bytes);  // plain, for digests of files and layouts
Digest sha256(std::string_view bytes);

struct KeyOptions {
  // Tests only: keeps this many bits of each key and clears the rest, so that keys of different
  // blocks collide and only the comparison of tokens tells them apart. 256 keeps all.
  std::uint32_t keep_bits = 256;
};

class KeySecret {
 public:
  static constexpr std::size_t kBytes = 64;
  explicit KeySecret(std::span<const std::uint8_t, kBytes> secret, const KeyOptions& options = {});
  static KeySecret random();  // from the system

 private:
  friend class KeyHasher;
  std::array<std::uint32_t, 8> midstate_;  // SHA-256 after the secret
  KeyOptions options_;
};

// What all blocks of a chain have in common. Every field counts; empty means "none", which differs
// from any value.
struct RootIdentity {
  Digest weights{};             // of the model file
  std::string adapter;          // digest of an adapter, or empty
  Digest layout{};              // kv/layout.h: groups, formats with parameters, windows
  std::string position_scheme;  // "rope", with what changes angles: "rope/theta=10000/scaling=none"
  std::uint32_t tokens_per_block = 0;
  std::string numerics;  // numerics id (design D7)
  std::string tenant;    // never empty on a server with tenants
};

BlockKey root_key(const KeySecret& secret, const RootIdentity& identity);

enum class ChangeKind : std::uint8_t {
  salt = 1,       // a private range begins; at the first token of a block
  media = 2,      // a digest of what placeholder tokens stand for
  producer = 3,   // computed by something else than this identity's forward pass
  converted = 4,  // encoded from exact blocks instead of computed
  adapter = 5,    // from here on rows have an adapter; its digest
};

struct KeyChange {
  std::uint32_t position = 0;  // token position in the sequence; belongs to the block it lies in
  ChangeKind kind = ChangeKind::salt;
  std::string value = {};
};

// The key of one block, as KeyChain computes it. `changes` are those of this block, in order.
BlockKey block_key(const KeySecret& secret, const BlockKey& parent,
                   std::span<const std::uint32_t> tokens, std::uint32_t first_position,
                   std::span<const KeyChange> changes);

// What the bytes of a block are stored under outside memory: one name per block and layer group.
// `part` tells lane ranges apart where several ranks hold one block; 0 is the whole group.
BlockKey stored_key(const KeySecret& secret, const BlockKey& key, std::uint32_t group,
                    std::uint32_t part = 0);

class KeyChain {
 public:
  KeyChain(const KeySecret& secret, const BlockKey& root, std::uint32_t tokens_per_block);

  // Says that something changes at a position. In ascending order of position, and not inside a
  // block already keyed.
  void change(KeyChange change);

  // `tokens` is the whole sequence from position 0. Adds a key for every block that is full and has
  // none yet.
  void extend(std::span<const std::uint32_t> tokens);

  // Forgets what lies at or after this token (rollback). The next extend() hashes the changed
  // blocks again.
  void truncate(std::uint32_t token_count);

  const BlockKey& root() const { return root_; }
  std::span<const BlockKey> keys() const { return keys_; }  // one per full block
  std::uint32_t tokens_per_block() const { return tokens_per_block_; }
  std::span<const KeyChange> changes() const { return changes_; }

 private:
  const KeySecret* secret_;
  BlockKey root_;
  std::uint32_t tokens_per_block_;
  std::vector<BlockKey> keys_;
  std::vector<KeyChange> changes_;
};

}  // namespace quire
