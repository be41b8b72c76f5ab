// The encoding that is hashed, after the 64 bytes of the secret. Integers are little-endian; a
// field is (tag u8, length u32, bytes), so no two different things ever encode alike.
//
//   root   version u8, 'R', fields in ascending order of tag
//   block  version u8, 'B', change count u16, token count u32, parent key (32), tokens u32 each,
//          then per change: kind u8, offset of its token in the block u32, length u32, bytes
//   stored version u8, 'N', zero u16, group u32, part u32, key (32)
#define OPENSSL_SUPPRESS_DEPRECATED  // SHA256_CTX is the one interface whose state can be kept
#include "kv/key.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <bit>

#include "base/hex.h"

namespace quire {

static_assert(std::endian::native == std::endian::little);

namespace {
constexpr std::uint8_t kKeyVersion = 1;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_field(std::string& out, std::uint8_t tag, std::string_view bytes) {
  put(out, tag);
  put(out, static_cast<std::uint32_t>(bytes.size()));
  out.append(bytes);
}

std::string_view view(const Digest& d) {
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}
}  // namespace

class KeyHasher {
 public:
  explicit KeyHasher(const KeySecret& secret) : options_(secret.options_) {
    SHA256_Init(&context_);
    std::copy(secret.midstate_.begin(), secret.midstate_.end(), context_.h);
    context_.Nl = KeySecret::kBytes * 8;
  }
  void add(const void* bytes, std::size_t size) { SHA256_Update(&context_, bytes, size); }
  BlockKey finish() {
    BlockKey key;
    SHA256_Final(key.bytes.data(), &context_);
    for (std::uint32_t bit = options_.keep_bits; bit < 256; ++bit)
      key.bytes[bit / 8] &= static_cast<std::uint8_t>(~(1u << (bit % 8)));
    return key;
  }
  static std::array<std::uint32_t, 8> midstate(std::span<const std::uint8_t, 64> secret) {
    SHA256_CTX context;
    SHA256_Init(&context);
    SHA256_Update(&context, secret.data(), secret.size());
    std::array<std::uint32_t, 8> state;
    std::copy(std::begin(context.h), std::end(context.h), state.begin());
    return state;
  }

 private:
  SHA256_CTX context_;
  const KeyOptions& options_;
};

std::string BlockKey::hex() const { return to_hex(bytes); }

Digest sha256(std::span<const std::byte> bytes) {
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), out.data());
  return out;
}

Digest sha256(std::string_view bytes) { return sha256(std::as_bytes(std::span(bytes))); }

KeySecret::KeySecret(std::span<const std::uint8_t, kBytes> secret, const KeyOptions& options)
    : midstate_(KeyHasher::midstate(secret)), options_(options) {}

KeySecret KeySecret::random() {
  std::array<std::uint8_t, kBytes> bytes;
  CHECK(RAND_bytes(bytes.data(), kBytes) == 1);
  return KeySecret(bytes);
}

BlockKey root_key(const KeySecret& secret, const RootIdentity& identity) {
  std::string out;
  put(out, kKeyVersion);
  put(out, 'R');
  put_field(out, 1, view(identity.weights));
  put_field(out, 2, identity.adapter);
  put_field(out, 3, view(identity.layout));
  put_field(out, 4, identity.position_scheme);
  std::string tokens_per_block;
  put(tokens_per_block, identity.tokens_per_block);
  put_field(out, 5, tokens_per_block);
  put_field(out, 6, identity.numerics);
  put_field(out, 7, identity.tenant);
  KeyHasher hasher(secret);
  hasher.add(out.data(), out.size());
  return hasher.finish();
}

BlockKey block_key(const KeySecret& secret, const BlockKey& parent,
                   std::span<const std::uint32_t> tokens, std::uint32_t first_position,
                   std::span<const KeyChange> changes) {
  struct {
    std::uint8_t version = kKeyVersion, kind = 'B';
    std::uint16_t change_count;
    std::uint32_t token_count;
    Digest parent;
  } head;
  static_assert(sizeof head == 40);
  CHECK(changes.size() <= UINT16_MAX);
  head.change_count = static_cast<std::uint16_t>(changes.size());
  head.token_count = static_cast<std::uint32_t>(tokens.size());
  head.parent = parent.bytes;
  KeyHasher hasher(secret);
  hasher.add(&head, sizeof head);
  hasher.add(tokens.data(), tokens.size_bytes());
  for (const KeyChange& change : changes) {
    CHECK(change.position >= first_position && change.position - first_position < tokens.size());
    std::string out;
    put(out, static_cast<std::uint8_t>(change.kind));
    put(out, change.position - first_position);
    put(out, static_cast<std::uint32_t>(change.value.size()));
    hasher.add(out.data(), out.size());
    hasher.add(change.value.data(), change.value.size());
  }
  return hasher.finish();
}

BlockKey stored_key(const KeySecret& secret, const BlockKey& key, std::uint32_t group,
                    std::uint32_t part) {
  const struct {
    std::uint8_t version = kKeyVersion, kind = 'N';
    std::uint16_t zero = 0;
    std::uint32_t group, part;
    Digest key;
  } named{.group = group, .part = part, .key = key.bytes};
  static_assert(sizeof named == 44);
  KeyHasher hasher(secret);
  hasher.add(&named, sizeof named);
  return hasher.finish();
}

KeyChain::KeyChain(const KeySecret& secret, const BlockKey& root, std::uint32_t tokens_per_block)
    : secret_(&secret), root_(root), tokens_per_block_(tokens_per_block) {
  CHECK(tokens_per_block > 0);
}

void KeyChain::change(KeyChange change) {
  CHECK(change.position >= keys_.size() * tokens_per_block_);
  CHECK(changes_.empty() || changes_.back().position <= change.position);
  CHECK(change.kind != ChangeKind::salt || change.position % tokens_per_block_ == 0);
  changes_.push_back(std::move(change));
}

void KeyChain::extend(std::span<const std::uint32_t> tokens) {
  const std::size_t blocks = tokens.size() / tokens_per_block_;
  if (blocks <= keys_.size()) return;
  keys_.reserve(blocks);
  auto change = std::partition_point(changes_.begin(), changes_.end(), [&](const KeyChange& c) {
    return c.position < keys_.size() * tokens_per_block_;
  });
  for (std::size_t i = keys_.size(); i < blocks; ++i) {
    const std::size_t first = i * tokens_per_block_;
    const auto begin = change;
    while (change != changes_.end() && change->position < first + tokens_per_block_) ++change;
    keys_.push_back(block_key(*secret_, i == 0 ? root_ : keys_.back(),
                              tokens.subspan(first, tokens_per_block_),
                              static_cast<std::uint32_t>(first), {begin, change}));
  }
}

void KeyChain::truncate(std::uint32_t token_count) {
  keys_.resize(std::min<std::size_t>(keys_.size(), token_count / tokens_per_block_));
  while (!changes_.empty() && changes_.back().position >= token_count) changes_.pop_back();
}

}  // namespace quire
