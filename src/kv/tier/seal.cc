#include "kv/tier/seal.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace quire {
namespace {

using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

constexpr std::size_t kCipherStep = std::size_t{1} << 30;  // OpenSSL counts in int

const unsigned char* plain_bytes(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// A context with key, nonce and associated data, ready for the text.
CipherContext begin_cipher(const RecordKeyBytes& key, std::uint32_t number,
                           std::span<const std::byte> clear_head, bool encrypt) {
  CipherContext context(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  CHECK(context != nullptr);
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  int count = 0;
  CHECK(EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key.data(), nonce.data(),
                          encrypt) == 1);
  CHECK(EVP_CipherUpdate(context.get(), nullptr, &count, plain_bytes(clear_head),
                         static_cast<int>(clear_head.size())) == 1);
  CHECK(EVP_CipherUpdate(context.get(), nullptr, &count,
                         reinterpret_cast<const unsigned char*>(&number), sizeof number) == 1);
  return context;
}

void run_cipher(EVP_CIPHER_CTX* context, std::span<const std::byte> from, std::span<std::byte> to) {
  CHECK(from.size() == to.size());
  while (!from.empty()) {
    const std::size_t step = std::min(from.size(), kCipherStep);
    int count = 0;
    CHECK(EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(to.data()), &count,
                           plain_bytes(from), static_cast<int>(step)) == 1);
    from = from.subspan(step);
    to = to.subspan(step);
  }
}

}  // namespace

RecordSalt Seal::random_salt() {
  RecordSalt salt;
  CHECK(RAND_bytes(salt.data(), static_cast<int>(salt.size())) == 1);
  return salt;
}

void RecordCipher::seal(std::uint32_t number, std::span<const std::byte> clear_head,
                        std::span<const std::byte> from, std::span<std::byte> to,
                        SealTag& tag) const {
  const CipherContext context = begin_cipher(key_, number, clear_head, true);
  run_cipher(context.get(), from, to);
  unsigned char none[16];
  int count = 0;
  CHECK(EVP_CipherFinal_ex(context.get(), none, &count) == 1);
  CHECK(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()),
                            tag.data()) == 1);
}

bool RecordCipher::open(std::uint32_t number, std::span<const std::byte> clear_head,
                        std::span<const std::byte> from, const SealTag& tag,
                        std::span<std::byte> to) const {
  const CipherContext context = begin_cipher(key_, number, clear_head, false);
  run_cipher(context.get(), from, to);
  SealTag expected = tag;
  CHECK(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, static_cast<int>(expected.size()),
                            expected.data()) == 1);
  unsigned char none[16];
  int count = 0;
  if (EVP_CipherFinal_ex(context.get(), none, &count) == 1) return true;
  std::fill(to.begin(), to.end(), std::byte{});  // nobody sees what was not authenticated
  return false;
}

}  // namespace quire
