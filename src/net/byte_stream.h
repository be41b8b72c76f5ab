// net/byte_stream.h - a connection to a server, plain or TLS, that waits no longer than it may.
//
// Blocking, for threads of their own. Connecting, and every read and write, fail when nothing moved
// for `patience`. After a failure the stream is of no more use: what arrives later belongs to an
// old question.
//
//   TRY(ByteStream stream, ByteStream::connect("127.0.0.1", 7000, {.patience = 50ms}));
//   TRY_STATUS(stream.write(request));
//   TRY(const std::size_t n, stream.read(buffer));      // 0: the other side has closed
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace quire {

struct StreamOptions {
  Nanoseconds patience = 50'000'000;
  bool tls = false;     // certificates are checked against the system's, and the host's name
  std::string ca_file;  // instead of the system's; SSL_CERT_FILE does the same
};

class ByteStream {
 public:
  static Result<ByteStream> connect(const std::string& host, std::uint16_t port,
                                    const StreamOptions& options);
  ByteStream(ByteStream&&) noexcept;
  ByteStream& operator=(ByteStream&&) noexcept;
  ~ByteStream();

  void set_patience(Nanoseconds patience);  // from now on
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  Result<std::size_t> read(std::span<std::byte> to);

 private:
  struct State;
  explicit ByteStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire
