#include "engine/session_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/json.h"
#include "kv/tier/file_io.h"

namespace quire {
namespace {

constexpr std::uint32_t kSessionVersion = 1;
constexpr std::array<char, 4> kSessionMagic = {'K', 'V', 'C', '1'};
constexpr JsonLimits kHeaderJson{
    .depth_max = 32, .values_max = 8 << 20, .keys_max = 1 << 16, .object_keys_max = 1 << 12};

struct SessionFixed {
  std::array<char, 4> magic;
  std::uint32_t version;
  std::uint64_t header_bytes, file_bytes;
  RecordSalt salt;
  SealTag tag;
  Digest digest;
};
static_assert(sizeof(SessionFixed) == kSessionFixedBytes);
constexpr std::size_t kTagAt = 56, kDigestAt = 72;

Error corrupt_session(const std::string& what) {
  return {Code::corrupt, "session file: " + what + "; nothing was loaded"};
}

std::string hex_of(const Digest& digest) { return BlockKey{digest}.hex(); }

bool read_hex(const Json& text, Digest& out) {
  if (!text.is_string() || text.get_ref<const std::string&>().size() != 64) return false;
  const std::string& digits = text.get_ref<const std::string&>();
  for (std::size_t i = 0; i < 32; ++i) {
    unsigned byte = 0;
    for (const char c : {digits[2 * i], digits[2 * i + 1]}) {
      const bool number = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
      if (!number && !letter) return false;
      byte = byte * 16 + static_cast<unsigned>(number ? c - '0' : c - 'a' + 10);
    }
    out[i] = static_cast<std::uint8_t>(byte);
  }
  return true;
}

Json header_json(const SessionFile& f) {
  Json keys = Json::array(), blocks = Json::array();
  for (const BlockKey& key : f.keys) keys.push_back(key.hex());
  for (const SessionBlock& b : f.blocks)
    blocks.push_back(Json::array({b.block, b.group, b.bytes, hex_of(b.digest)}));
  const SessionModel& m = f.model;
  return {{"model",
           {{"name", m.name},
            {"weights", m.weights},
            {"tokenizer", m.tokenizer},
            {"adapter", m.adapter},
            {"layout", m.layout},
            {"positions", m.positions},
            {"numerics", m.numerics},
            {"format", m.format},
            {"tokens_per_block", m.tokens_per_block},
            {"layers", m.layers},
            {"kv_heads", m.kv_heads},
            {"head_dim", m.head_dim}}},
          {"id", f.id},
          {"created", f.created},
          {"tokens", f.tokens},
          {"read", f.read},
          {"first_prompt", f.first_prompt},
          {"turns", f.turns},
          {"policy", f.policy},
          {"retain", f.retain},
          {"select", f.select},
          {"producer", f.producer},
          {"client", f.client},
          {"keys", std::move(keys)},
          {"blocks", std::move(blocks)}};
}

// What is not UTF-8 (a model's name may be anything) is replaced.
std::string header_text(const SessionFile& f) {
  return header_json(f).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Reads members of one JSON object; the first that is wrong stays.
class Members {
 public:
  explicit Members(const Json& object) : object_(object) {}

  const Json* find(const char* name) {
    const auto it = object_.is_object() ? object_.find(name) : object_.end();
    if (object_.is_object() && it != object_.end()) return &*it;
    fail(name);
    return nullptr;
  }
  void text(const char* name, std::string& to, std::size_t most = 1 << 20) {
    const Json* const v = find(name);
    if (v == nullptr) return;
    if (!v->is_string() || v->get_ref<const std::string&>().size() > most) return fail(name);
    to = v->get<std::string>();
  }
  template <class T>
  void number(const char* name, T& to, std::uint64_t most) {
    const Json* const v = find(name);
    if (v == nullptr) return;
    if (!v->is_number_unsigned() || v->get<std::uint64_t>() > most) return fail(name);
    to = static_cast<T>(v->get<std::uint64_t>());
  }
  template <class T>
  void numbers(const char* name, std::vector<T>& to, std::size_t count_max, std::uint64_t most) {
    const Json* const v = find(name);
    if (v == nullptr) return;
    if (!v->is_array() || v->size() > count_max) return fail(name);
    to.reserve(v->size());
    for (const Json& n : *v) {
      if (!n.is_number_unsigned() || n.get<std::uint64_t>() > most) return fail(name);
      to.push_back(static_cast<T>(n.get<std::uint64_t>()));
    }
  }
  void fail(const char* name) {
    if (wrong_.empty()) wrong_ = name;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const Json& object_;
  std::string wrong_;
};

void read_keys(Members& m, SessionFile& f) {
  const Json* const keys = m.find("keys");
  if (keys == nullptr || !keys->is_array() || keys->size() > kSessionBlocksMax)
    return m.fail("keys");
  f.keys.resize(keys->size());
  for (std::size_t i = 0; i < keys->size(); ++i)
    if (!read_hex((*keys)[i], f.keys[i].bytes)) return m.fail("keys");
}

// In the order of the text, groups within blocks.
void read_blocks(Members& m, SessionFile& f) {
  const Json* const blocks = m.find("blocks");
  if (blocks == nullptr || !blocks->is_array() || blocks->size() > kSessionBlocksMax)
    return m.fail("blocks");
  for (const Json& b : *blocks) {
    if (!b.is_array() || b.size() != 4) return m.fail("blocks");
    SessionBlock& to = f.blocks.emplace_back();
    for (std::size_t i = 0; i < 3; ++i)
      if (!b[i].is_number_unsigned() || b[i].get<std::uint64_t>() > kSessionRecordMax)
        return m.fail("blocks");
    to.block = b[0].get<std::uint32_t>();
    to.group = b[1].get<std::uint32_t>();
    to.bytes = b[2].get<std::uint64_t>();
    if (!read_hex(b[3], to.digest) || to.bytes == 0 || to.block >= f.keys.size() || to.group >= 64)
      return m.fail("blocks");
    if (f.blocks.size() > 1) {
      const SessionBlock& before = f.blocks[f.blocks.size() - 2];
      if (std::pair(before.block, before.group) >= std::pair(to.block, to.group))
        return m.fail("blocks");
    }
  }
}

Result<SessionFile> parse_header(std::string_view text) {
  auto parsed = parse_json(text, kHeaderJson);
  if (!parsed.ok() || !parsed.value().is_object())
    return corrupt_session("its header is not a JSON object");
  SessionFile f;
  Members m(parsed.value());
  static const Json kNothing = Json::object();
  const Json* const model = m.find("model");
  Members of(model ? *model : kNothing);
  SessionModel& s = f.model;
  for (const auto& [name, to] : {std::pair("name", &s.name),
                                 {"weights", &s.weights},
                                 {"tokenizer", &s.tokenizer},
                                 {"adapter", &s.adapter},
                                 {"layout", &s.layout},
                                 {"positions", &s.positions},
                                 {"numerics", &s.numerics},
                                 {"format", &s.format}})
    of.text(name, *to, 4096);
  for (const auto& [name, to] : {std::pair("tokens_per_block", &s.tokens_per_block),
                                 {"layers", &s.layers},
                                 {"kv_heads", &s.kv_heads},
                                 {"head_dim", &s.head_dim}})
    of.number(name, *to, 1 << 20);
  m.text("id", f.id, 128);
  m.number("created", f.created, INT64_MAX);
  m.numbers("tokens", f.tokens, kSessionTokensMax, UINT32_MAX);
  m.number("read", f.read, f.tokens.size());
  m.number("first_prompt", f.first_prompt, f.tokens.size());
  m.numbers("turns", f.turns, kSessionTokensMax, f.tokens.size());
  m.text("policy", f.policy, 1 << 16);
  m.text("retain", f.retain, 4096);
  m.text("select", f.select, 4096);
  m.text("producer", f.producer, 128);
  m.text("client", f.client, 16 << 20);
  read_keys(m, f);
  read_blocks(m, f);
  if (!of.wrong().empty()) return corrupt_session("model." + of.wrong() + " makes no sense");
  if (!m.wrong().empty()) return corrupt_session(m.wrong() + " makes no sense");
  if (s.tokens_per_block == 0 || f.keys.size() > f.tokens.size() / s.tokens_per_block)
    return corrupt_session("it has more keys than blocks");
  if (!std::ranges::is_sorted(f.turns)) return corrupt_session("turns makes no sense");
  return f;
}

SessionFixed read_fixed(std::span<const std::byte> bytes) {
  SessionFixed fixed;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  return fixed;
}

// What the digest and the tag are of: the bytes before them, and the header.
std::vector<std::byte> covered(std::span<const std::byte> head, std::size_t until,
                               std::size_t header_bytes) {
  std::vector<std::byte> all(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(until));
  const auto header = head.subspan(kSessionFixedBytes, header_bytes);
  all.insert(all.end(), header.begin(), header.end());
  return all;
}

SessionHead place_after(SessionFile file, std::uint64_t header_bytes) {
  SessionHead head;
  std::uint64_t at = head.head_bytes = align_up(kSessionFixedBytes + header_bytes);
  for (const SessionBlock& b : file.blocks) {
    head.at.push_back(at);
    at += align_up(b.bytes);
  }
  head.file_bytes = at;
  head.file = std::move(file);
  return head;
}

}  // namespace

Seal session_seal(const DeploymentSecret& secret, const std::string& tenant) {
  return Seal(secret, "session file of " + tenant);
}

SessionHead place_records(SessionFile file) {
  const std::size_t header = header_text(file).size();
  return place_after(std::move(file), header);
}

std::vector<std::byte> encode_session_head(const SessionFile& file, const Seal& seal,
                                           std::uint64_t room) {
  std::string header = header_text(file);
  if (room > kSessionFixedBytes + header.size())  // spaces are JSON, too
    header.resize(room - kSessionFixedBytes, ' ');
  const SessionHead places = place_after(file, header.size());
  SessionFixed fixed{.magic = kSessionMagic,
                     .version = kSessionVersion,
                     .header_bytes = header.size(),
                     .file_bytes = places.file_bytes,
                     .salt = Seal::random_salt(),
                     .tag = {},
                     .digest = {}};
  std::vector<std::byte> bytes(places.head_bytes);
  std::memcpy(bytes.data(), &fixed, sizeof fixed);
  std::memcpy(bytes.data() + sizeof fixed, header.data(), header.size());
  seal.cipher(fixed.salt).seal(0, covered(bytes, kTagAt, header.size()), {}, {}, fixed.tag);
  std::memcpy(bytes.data() + kTagAt, fixed.tag.data(), fixed.tag.size());
  fixed.digest = sha256(covered(bytes, kDigestAt, header.size()));
  std::memcpy(bytes.data() + kDigestAt, fixed.digest.data(), fixed.digest.size());
  return bytes;
}

Result<std::uint64_t> session_head_bytes(std::span<const std::byte> bytes) {
  if (bytes.size() < kSessionFixedBytes) return corrupt_session("it is too short");
  const SessionFixed fixed = read_fixed(bytes);
  if (fixed.magic != kSessionMagic) return corrupt_session("it does not begin with KVC1");
  if (fixed.version != kSessionVersion)
    return Error{Code::unsupported, fmt::format("session file: version {}, this program reads {}",
                                                fixed.version, kSessionVersion)};
  if (fixed.header_bytes == 0 || fixed.header_bytes > kSessionHeaderMax)
    return corrupt_session(fmt::format("it claims a header of {} bytes", fixed.header_bytes));
  return align_up(kSessionFixedBytes + fixed.header_bytes);
}

Result<SessionHead> read_session_head(std::span<const std::byte> head, std::uint64_t file_bytes) {
  TRY(const std::uint64_t claimed, session_head_bytes(head));
  const SessionFixed fixed = read_fixed(head);
  if (head.size() != claimed || fixed.file_bytes != file_bytes)
    return corrupt_session(
        fmt::format("it has {} bytes and should have {}", file_bytes, fixed.file_bytes));
  if (sha256(covered(head, kDigestAt, fixed.header_bytes)) != fixed.digest)
    return corrupt_session("its header was changed");
  const auto zeros = head.subspan(kSessionFixedBytes + fixed.header_bytes);
  if (!std::ranges::all_of(zeros, [](std::byte b) { return b == std::byte{}; }))
    return corrupt_session("what should be zero is not");
  const auto header = head.subspan(kSessionFixedBytes, fixed.header_bytes);
  TRY(SessionFile file,
      parse_header({reinterpret_cast<const char*>(header.data()), header.size()}));
  SessionHead read = place_after(std::move(file), fixed.header_bytes);
  if (read.file_bytes != file_bytes)
    return corrupt_session(
        fmt::format("its blocks end at {} of {} bytes", read.file_bytes, file_bytes));
  return read;
}

bool sealed_by(std::span<const std::byte> head, const Seal& seal) {
  const SessionFixed fixed = read_fixed(head);
  return seal.cipher(fixed.salt)
      .open(0, covered(head, kTagAt, fixed.header_bytes), {}, fixed.tag, {});
}

bool session_block_ok(const SessionBlock& block, std::span<const std::byte> stored) {
  if (stored.size() != align_up(block.bytes) || sha256(stored.first(block.bytes)) != block.digest)
    return false;
  return std::ranges::all_of(stored.subspan(block.bytes),
                             [](std::byte b) { return b == std::byte{}; });
}

std::string other_model(const SessionModel& a, const SessionModel& b) {
  const std::pair<const char*, bool> fields[] = {
      {"weights", a.weights == b.weights},
      {"tokenizer", a.tokenizer == b.tokenizer},
      {"adapter", a.adapter == b.adapter},
      {"positions", a.positions == b.positions},
      {"tokens_per_block", a.tokens_per_block == b.tokens_per_block},
      {"format", a.format == b.format},
      {"layout", a.layout == b.layout},
      {"layers", a.layers == b.layers},
      {"kv_heads", a.kv_heads == b.kv_heads},
      {"head_dim", a.head_dim == b.head_dim},
      {"numerics", a.numerics == b.numerics}};
  for (const auto& [name, same] : fields)
    if (!same) return name;
  return {};
}

}  // namespace quire
