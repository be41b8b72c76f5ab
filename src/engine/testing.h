// engine/testing.h - tiny models on disk and open, for the tests of engine/.
//
//   TinyRuntime runtime({.architecture = "gemma3", .layers = 7});
//   client_generate(*runtime, byte_tokens("hello"), {...});
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/client.h"
#include "engine/runtime.h"
#include "engine/stepper.h"
#include "model/tiny.h"

namespace quire {

class TinyFile {
 public:
  explicit TinyFile(const TinyOptions& options)
      : path_(::testing::TempDir() + "quire_" + std::to_string(::getpid()) + "_" +
              std::to_string(next_++) + ".gguf") {
    const Status written = write_tiny_gguf(path_, options);
    EXPECT_TRUE(written.ok()) << written.error().message;
  }
  ~TinyFile() { std::remove(path_.c_str()); }
  TinyFile(const TinyFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  static inline int next_ = 0;
  std::string path_;
};

class TinyRuntime {
 public:
  explicit TinyRuntime(const TinyOptions& model, RuntimeOptions options = {}) : file_(model) {
    if (options.threads == 0) options.threads = 1;
    if (options.kv_cache_bytes == 0) options.kv_cache_bytes = std::uint64_t{64} << 20;
    auto opened = Runtime::open(file_.path(), options);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    runtime_ = std::move(opened.value());
  }
  Runtime& operator*() { return *runtime_; }
  Runtime* operator->() { return runtime_.get(); }

 private:
  TinyFile file_;
  std::unique_ptr<Runtime> runtime_;
};

// The tiny vocabulary has a token for every byte.
inline std::vector<TokenId> byte_tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// Through an engine of its own.
inline Result<GenerateResult> client_generate(Runtime& runtime, std::span<const TokenId> prompt,
                                              const GenerateOptions& options,
                                              const GenerateEvents& events = {}) {
  return Client(runtime).generate(prompt, options, events);
}

}  // namespace quire
