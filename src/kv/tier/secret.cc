#include "kv/tier/secret.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <memory>

#include "base/file.h"
#include "base/hex.h"

namespace quire {

DeploymentSecret DeploymentSecret::random() {
  DeploymentSecret secret;
  CHECK(RAND_bytes(secret.bytes_.data(), static_cast<int>(secret.bytes_.size())) == 1);
  return secret;
}

Result<DeploymentSecret> DeploymentSecret::parse(std::string_view text, const std::string& where) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  DeploymentSecret secret;
  if (!from_hex(text, secret.bytes_))
    return Error{Code::corrupt,
                 where +
                     ": is not a secret of 128 hexadecimal digits; `openssl rand -hex 64` "
                     "makes one"};
  return secret;
}

Result<DeploymentSecret> DeploymentSecret::load(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
    return Error{Code::invalid, path + ": others can read or write this secret; chmod 600 it"};
  TRY(const std::string text, read_file(path));
  return parse(text, path);
}

std::string DeploymentSecret::text() const { return to_hex(bytes_) + '\n'; }

std::string DeploymentSecret::fingerprint() const {
  std::string input = "quire secret fingerprint";
  input.append(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  return to_hex(sha256(input)).substr(0, 16);
}

RecordKeyBytes DeploymentSecret::record_key(std::string_view tenant, const RecordSalt& salt) const {
  // Reading the algorithm's name takes longer than using it, so it is done once.
  static EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  CHECK(kdf != nullptr);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(kdf),
                                                                          &EVP_KDF_CTX_free);
  CHECK(context != nullptr);
  std::string info = "quire record key\n";
  info += tenant;
  char digest[] = "SHA256";
  const auto octets = [](const char* name, const void* data, std::size_t size) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(data), size);
  };
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                               octets(OSSL_KDF_PARAM_KEY, bytes_.data(), bytes_.size()),
                               octets(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
                               octets(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
                               OSSL_PARAM_construct_end()};
  RecordKeyBytes key;
  CHECK(EVP_KDF_derive(context.get(), key.data(), key.size(), params) == 1);
  return key;
}

}  // namespace quire
