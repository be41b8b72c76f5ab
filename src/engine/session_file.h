// engine/session_file.h - a session as a file: its text, its policy, and the cached blocks of the
// text.
//
// Layout: magic "KVC1", version u32, bytes of the header u64, bytes of the file u64, salt (32), tag
// (16), SHA-256 of these and of the header (32); the header, a JSON object; zeros up to a multiple of
// 4096; then one record (kv/tier/record.h) per block and group, each followed by such zeros. The
// header has the SHA-256 of every record, so nothing in the file can change unnoticed. The tag is
// the GMAC of what comes before it and of the header under a key of the deployment's secret and the
// tenant: it tells whether this deployment wrote the file. Numbers are little-endian.
//
//   SessionFile file{.model = ..., .tokens = ..., .blocks = {{.block = 0, .bytes = 4711, ...}}};
//   const std::vector<std::byte> head = encode_session_head(file, seal);   // then the records
//
//   TRY(const std::uint64_t claimed, session_head_bytes(first_bytes));
//   TRY(const SessionHead read, read_session_head(head, file_size));
//   if (!sealed_by(head, seal)) ...                                        // a stranger's file
//   if (!session_block_ok(read.file.blocks[i], stored)) ...                // corrupt
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "kv/key.h"
#include "kv/tier/seal.h"

namespace quire {

inline constexpr std::size_t kSessionFixedBytes = 104;
inline constexpr std::uint64_t kSessionHeaderMax = std::uint64_t{64} << 20;
inline constexpr std::uint32_t kSessionTokensMax = 1 << 20, kSessionBlocksMax = 1 << 19;
inline constexpr std::uint64_t kSessionRecordMax = std::uint64_t{1} << 30;

// What a model must be to go on with the session. Everything but the name is compared.
struct SessionModel {
  std::string name;
  std::string weights, tokenizer, adapter, layout;  // digests
  std::string positions, numerics, format;
  std::uint32_t tokens_per_block = 0, layers = 0, kv_heads = 0, head_dim = 0;
};

// A record: of block `block` of the text, in one group.
struct SessionBlock {
  std::uint32_t block = 0, group = 0;
  std::uint64_t bytes = 0;
  Digest digest{};

  bool operator==(const SessionBlock&) const = default;
};

struct SessionFile {
  SessionModel model;
  std::string id;
  std::vector<TokenId> tokens;
  std::uint32_t read = 0, first_prompt = 0;
  std::vector<std::uint32_t> turns;
  std::string policy = "{}";    // in the client's words: a JSON object
  std::string retain, select;   // what stays and what is read, as policies spell it; empty: all
  std::string producer;         // KvPolicy::producer
  std::string client = "null";  // whatever the program that saved it wants to know: JSON
  std::int64_t created = 0;     // nanoseconds since 1970
  std::vector<BlockKey> keys;   // of the text's whole blocks
  std::vector<SessionBlock> blocks;  // in the order of the file
};

struct SessionHead {
  SessionFile file;
  std::vector<std::uint64_t> at;  // where each record begins
  std::uint64_t head_bytes = 0, file_bytes = 0;
};

// All bytes before the first record: `room` of them, where that is given and is enough.
std::vector<std::byte> encode_session_head(const SessionFile& file, const Seal& seal,
                                           std::uint64_t room = 0);
// Where the records of such a file are. Digests do not matter.
SessionHead place_records(SessionFile file);

// How many bytes come before the first record. Needs kSessionFixedBytes.
Result<std::uint64_t> session_head_bytes(std::span<const std::byte> bytes);
// `head` has that many; `file_bytes` is the size of the file.
Result<SessionHead> read_session_head(std::span<const std::byte> head, std::uint64_t file_bytes);
bool sealed_by(std::span<const std::byte> head, const Seal& seal);
// `stored`: the record and the zeros behind it.
bool session_block_ok(const SessionBlock& block, std::span<const std::byte> stored);

// The field in which a file's model is another one; empty: in none.
std::string other_model(const SessionModel& file, const SessionModel& here);
// The key for a tenant's sessions, unlike that of its blocks.
Seal session_seal(const DeploymentSecret& secret, const std::string& tenant);

}  // namespace quire
