#include "engine/session_file.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/tier/record_testing.h"

namespace quire {
namespace {

SessionFile some_session() {
  SessionFile f;
  f.model = {.name = "m\xff",
             .weights = "aa",
             .tokenizer = "bb",
             .adapter = "",
             .layout = "cc",
             .positions = "rope",
             .numerics = "7",
             .format = "f16",
             .tokens_per_block = 4,
             .layers = 2,
             .kv_heads = 1,
             .head_dim = 8};
  f.id = "chat-42";
  for (TokenId t = 0; t < 11; ++t) f.tokens.push_back(t * 3);
  f.read = 10;
  f.first_prompt = 6;
  f.turns = {8, 11};
  f.policy = R"({"budget":{"policy":"h2o","ratio":0.5}})";
  f.client = R"({"messages":[]})";
  f.created = 1795000000123456789;
  f.keys = {BlockKey{sha256("one")}, BlockKey{sha256("two")}};
  return f;
}

// A whole file: the head and two records.
struct MadeFile {
  explicit MadeFile(const Seal& seal) {
    SessionFile f = some_session();
    std::vector<std::vector<std::byte>> records;
    for (std::uint32_t i = 0; i < 2; ++i) {
      records.push_back(TestBlock(i).encoded());
      f.blocks.push_back({i, 0, records.back().size(), sha256(records.back())});
    }
    bytes = encode_session_head(f, seal);
    for (const auto& r : records) {
      bytes.insert(bytes.end(), r.begin(), r.end());
      bytes.resize((bytes.size() + 4095) / 4096 * 4096);
    }
  }
  std::vector<std::byte> bytes;
};

// What a reader makes of the bytes: everything is checked. Empty: fine.
std::string read_all(std::span<const std::byte> bytes, const Seal& seal, bool* own = nullptr) {
  const auto head_bytes = session_head_bytes(bytes);
  if (!head_bytes.ok()) return head_bytes.error().message;
  if (head_bytes.value() > bytes.size()) return "too short";
  const auto head_part = bytes.first(head_bytes.value());
  const auto head = read_session_head(head_part, bytes.size());
  if (!head.ok()) return head.error().message;
  for (std::size_t i = 0; i < head.value().at.size(); ++i) {
    const SessionBlock& b = head.value().file.blocks[i];
    const std::uint64_t end =
        i + 1 < head.value().at.size() ? head.value().at[i + 1] : head.value().file_bytes;
    if (!session_block_ok(b, bytes.subspan(head.value().at[i], end - head.value().at[i])))
      return "block";
  }
  if (own) *own = sealed_by(head_part, seal);
  return "";
}

TEST(SessionFile, IsReadAsItWasWritten) {
  const DeploymentSecret secret = DeploymentSecret::random();
  const MadeFile made(session_seal(secret, "acme"));
  EXPECT_EQ(made.bytes.size() % 4096, 0u);
  bool own = false;
  EXPECT_EQ(read_all(made.bytes, session_seal(secret, "acme"), &own), "");
  EXPECT_TRUE(own);
  EXPECT_EQ(read_all(made.bytes, session_seal(secret, "other"), &own), "");
  EXPECT_FALSE(own) << "it is another tenant's";
  EXPECT_EQ(read_all(made.bytes, session_seal(DeploymentSecret::random(), "acme"), &own), "");
  EXPECT_FALSE(own) << "it is another deployment's";
  const std::uint64_t head = session_head_bytes(made.bytes).value();
  const auto read = read_session_head(std::span(made.bytes).first(head), made.bytes.size());
  ASSERT_TRUE(read.ok()) << read.error().message;
  const SessionFile &a = read.value().file, b = some_session();
  EXPECT_EQ(other_model(a.model, b.model), "");
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.turns, b.turns);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(std::tie(a.id, a.policy, a.client, a.created, a.read, a.first_prompt),
            std::tie(b.id, b.policy, b.client, b.created, b.read, b.first_prompt));
}

TEST(SessionFile, EveryFlippedBitIsFound) {
  const Seal seal = session_seal(DeploymentSecret::random(), "acme");
  MadeFile made(seal);
  for (std::size_t byte = 0; byte < made.bytes.size(); ++byte) {
    const auto bit = static_cast<std::byte>(1 << byte % 8);
    made.bytes[byte] ^= bit;
    ASSERT_NE(read_all(made.bytes, seal), "") << "byte " << byte;
    made.bytes[byte] ^= bit;
  }
  for (std::size_t size = 0; size < made.bytes.size(); size += 97)
    ASSERT_NE(read_all(std::span(made.bytes).first(size), seal), "") << size << " bytes";
}

TEST(SessionFile, NamesTheFieldThatDiffers) {
  const SessionModel here = some_session().model;
  SessionModel other = here;
  other.name = "another name";
  EXPECT_EQ(other_model(other, here), "");
  other.weights = "x";
  EXPECT_EQ(other_model(other, here), "weights");
  other = here;
  other.format = "int8";
  EXPECT_EQ(other_model(other, here), "format");
}

TEST(SessionFile, AHeadMayHaveRoomForMore) {
  const Seal seal = session_seal(DeploymentSecret::random(), "");
  const std::vector<std::byte> head = encode_session_head(some_session(), seal, 8192);
  ASSERT_EQ(head.size(), 8192u);
  EXPECT_TRUE(read_session_head(head, 8192).ok());
  EXPECT_TRUE(sealed_by(head, seal));
}

}  // namespace
}  // namespace quire
