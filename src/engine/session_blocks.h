// engine/session_blocks.h - the cached blocks of a text, copied out of the cache and back into it.
//
// Engine thread only, a few megabytes per call, so that others go on in between:
//
//   SessionReader reader(runtime, tokens, kv, most);          // holds the blocks while it lives
//   for (auto part = reader.next(8 << 20); !part.empty(); part = reader.next(8 << 20)) ...
//
//   SessionLander lander(runtime, tokens, kv);
//   lander.add(block);                                        // in order; false: no more room
//   lander.finish();                                          // the cache has them now
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/runtime.h"

namespace quire {

inline constexpr std::uint64_t kCopiedAtOnce = 8 << 20;  // bytes, between two steps

struct CopiedBlock {
  std::uint32_t block = 0, group = 0;
  std::vector<std::byte> bytes;  // the whole extent
};

class SessionReader {
 public:
  // `most`: tokens of the text whose blocks are wanted.
  SessionReader(Runtime& runtime, std::span<const TokenId> tokens, const KvPolicy& kv,
                std::uint32_t most);
  // The next blocks, about so many bytes of them; empty: there are no more.
  std::vector<CopiedBlock> next(std::uint64_t bytes);

 private:
  KvCache& cache_;
  const Geometry* geometry_ = nullptr;
  Sequence sequence_;
  std::uint32_t block_ = 0, end_ = 0;
};

class SessionLander {
 public:
  SessionLander(Runtime& runtime, std::span<const TokenId> tokens, const KvPolicy& kv);

  // Whether the cache lacks this block of the text.
  bool wants(std::uint32_t block, std::uint32_t group) const;
  std::uint64_t bytes(std::uint32_t group) const;  // of a block
  bool add(CopiedBlock block);
  // Gives the blocks to the cache, with a lease for the session. None: nothing of it is cached.
  std::optional<LeaseId> finish(const std::string& label);

 private:
  KvCache& cache_;
  const Geometry* geometry_ = nullptr;
  Sequence sequence_;
  std::vector<BlockKey> keys_;
  std::uint32_t first_ = 0, end_ = 0;  // blocks that may come
  std::vector<LandedBlock> landed_;    // from first_ on
};

}  // namespace quire
