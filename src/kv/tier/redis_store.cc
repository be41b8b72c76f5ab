#include "kv/tier/redis_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "kv/tier/redis_reply.h"
#include "kv/tier/store_tier.h"
#include "net/byte_stream.h"

namespace quire {
namespace {

constexpr std::uint32_t kSlots = 16384;
constexpr std::size_t kNodesMax = 1024;
constexpr int kRounds = 4;  // of asking again elsewhere
constexpr Nanoseconds kSilenceFirst = 1'000'000'000, kSilenceMost = 60'000'000'000;

struct RedisCommand {
  std::string name;                       // of the value; its key and slot follow
  std::vector<std::string> words;         // before the key is inserted as the second
  std::span<const std::byte> value = {};  // of SET: behind the key
  std::vector<std::string> behind = {};   // behind the value
};

void add_word(std::string& to, std::string_view word) {
  fmt::format_to(std::back_inserter(to), "${}\r\n", word.size());
  to.append(word).append("\r\n");
}

std::string encode_words(std::span<const std::string> words) {
  std::string text = fmt::format("*{}\r\n", words.size());
  for (const std::string& w : words) add_word(text, w);
  return text;
}

// How long a call may still wait: the patience since something last came, from whichever node.
struct RedisPatience {
  const Nanoseconds all;
  SteadyClock clock = {};
  Nanoseconds moved_at = 0;

  void moved() { moved_at = clock.now(); }
  bool over() const { return clock.now() - moved_at >= all; }
  Nanoseconds left() const {
    return std::max<Nanoseconds>(all - (clock.now() - moved_at), 1'000'000);
  }
};

// A connection to one node, and what has been read from it.
struct RedisLine {
  ByteStream stream;
  RedisPatience& patience;
  RedisReader reader = {};
  bool fresh = true;  // opened by the call in progress
  std::vector<std::byte> buffer = std::vector<std::byte>(std::size_t{256} << 10);

  Status send(std::string_view text) {
    stream.set_patience(patience.left());
    TRY_STATUS(stream.write(text));
    return {};
  }
  Result<RedisReply> reply() {
    while (true) {
      if (auto r = reader.next()) return std::move(*r);
      if (reader.broken()) return Error{Code::unavailable, "Redis sent what is no reply"};
      stream.set_patience(patience.left());
      TRY(const std::size_t n, stream.read(buffer));
      if (n == 0) return Error{Code::unavailable, "Redis closed the connection"};
      patience.moved();
      reader.feed(std::span(buffer).first(n));
    }
  }
};

class RedisStore final : public ValueStore {
 public:
  explicit RedisStore(RedisPlace place)
      : place_(std::move(place)), patience_{.all = place_.patience} {}

  Status contains(std::span<const std::string> names, std::span<std::uint8_t> there) override {
    std::vector<RedisCommand> commands;
    for (const std::string& name : names) commands.push_back({.name = name, .words = {"EXISTS"}});
    return run(commands, [&](std::size_t i, const RedisReply& r) {
      there[i] = r.kind == RedisReply::Kind::integer && r.integer > 0;
    });
  }

  Status get(std::span<const std::string> names, const Got& got) override {
    std::vector<RedisCommand> commands;
    for (const std::string& name : names) commands.push_back({.name = name, .words = {"GET"}});
    return run(commands, [&](std::size_t i, const RedisReply& r) {
      if (r.kind == RedisReply::Kind::bytes) got(i, std::as_bytes(std::span(r.text)));
    });
  }

  Status put(std::span<const NamedValue> values) override {
    std::vector<RedisCommand> commands;
    for (const NamedValue& v : values)
      commands.push_back({.name = v.name,
                          .words = {"SET"},
                          .value = v.value,
                          .behind = {"EX", std::to_string(place_.ttl_s)}});
    TRY_STATUS(run(commands, [](std::size_t, const RedisReply&) {}));
    if (full_)
      return Error{Code::exhausted, "Redis is full, and evicts nothing (maxmemory-policy)"};
    return {};
  }

  Status erase(std::span<const std::string> names) override {
    std::vector<RedisCommand> commands;
    for (const std::string& name : names) commands.push_back({.name = name, .words = {"UNLINK"}});
    return run(commands, [](std::size_t, const RedisReply&) {});
  }

 private:
  using Told = std::function<void(std::size_t which, const RedisReply& reply)>;
  struct Errand {  // a command on its way
    std::size_t which;
    std::optional<RedisAddress> asked = {};  // ASK: there, once
  };

  static std::string key_of(const std::string& name) { return "quire:" + name; }

  static void encode(const RedisCommand& c, std::string& to) {
    const bool has_value = c.value.data() != nullptr;
    fmt::format_to(std::back_inserter(to), "*{}\r\n",
                   c.words.size() + 1 + has_value + c.behind.size());
    for (const std::string& w : c.words) add_word(to, w);
    add_word(to, key_of(c.name));
    if (has_value) add_word(to, {reinterpret_cast<const char*>(c.value.data()), c.value.size()});
    for (const std::string& w : c.behind) add_word(to, w);
  }

  Result<RedisLine*> line(const RedisAddress& address) {
    if (const auto known = lines_.find(address); known != lines_.end()) return &known->second;
    TRY(ByteStream stream,
        ByteStream::connect(
            address.host, address.port,
            {.patience = patience_.left(), .tls = place_.tls, .ca_file = place_.ca_file}));
    RedisLine opened{.stream = std::move(stream), .patience = patience_};
    if (!place_.password.empty()) {
      std::vector<std::string> words = {"AUTH"};
      if (!place_.user.empty()) words.push_back(place_.user);
      words.push_back(place_.password);
      TRY_STATUS(opened.send(encode_words(words)));
      TRY(const RedisReply reply, opened.reply());
      if (reply.kind == RedisReply::Kind::error)
        return Error{Code::unavailable, "Redis refused the password"};
    }
    return &lines_.emplace(address, std::move(opened)).first->second;
  }

  // Asks the nodes it knows, one after the other, who has which slot.
  Status learn_slots() {
    std::vector<RedisAddress> ask = place_.nodes;
    ask.insert(ask.end(), seen_.begin(), seen_.end());
    Status status = Error{Code::unavailable, "no node of Redis answers"};
    for (const RedisAddress& address : ask) {
      if (silent(address)) continue;
      status = learn_slots_from(address);
      if (status.ok()) return status;
      rest(address);
    }
    return status;
  }

  // A node that did not answer is not asked again for a while, twice as long each time.
  bool silent(const RedisAddress& node) const {
    const auto found = silent_.find(node);
    return found != silent_.end() && patience_.clock.now() < found->second.until;
  }
  void rest(const RedisAddress& node) {
    lines_.erase(node);
    if (silent_.size() > kNodesMax) silent_.clear();
    Silence& s = silent_[node];
    s.length = std::clamp(2 * s.length, kSilenceFirst, kSilenceMost);
    s.until = patience_.clock.now() + s.length;
  }

  Status learn_slots_from(const RedisAddress& from) {
    TRY(RedisLine* const node, line(from));
    const std::string words[] = {"CLUSTER", "SLOTS"};
    TRY_STATUS(node->send(encode_words(words)));
    TRY(const RedisReply reply, node->reply());
    if (reply.kind == RedisReply::Kind::error) {
      if (reply.text.find("cluster support disabled") == reply.text.npos)
        return Error{Code::unavailable, "Redis: " + reply.text};
      owners_.assign(kSlots, from);  // a server alone
      return {};
    }
    std::vector<std::optional<RedisAddress>> owners(kSlots);
    for (const RedisReply& range : reply.list) {
      if (range.list.size() < 3 || range.list[2].list.size() < 2) continue;
      const auto &first = range.list[0], &last = range.list[1], &node_of = range.list[2];
      RedisAddress owner{.host = node_of.list[0].text,
                         .port = static_cast<std::uint16_t>(node_of.list[1].integer)};
      if (owner.host.empty()) owner.host = from.host;
      if (seen_.size() < kNodesMax) seen_.insert(owner);
      for (std::int64_t s = std::max<std::int64_t>(first.integer, 0);
           s <= last.integer && s < std::int64_t{kSlots}; ++s)
        owners[static_cast<std::size_t>(s)] = owner;
    }
    owners_ = std::move(owners);
    return {};
  }

  // Asks all nodes. What belongs to one that is silent has no reply: the others still serve. An error
  // means that none did.
  Status run(std::span<const RedisCommand> commands, const Told& told) {
    std::vector<Errand> left;
    for (std::size_t i = 0; i < commands.size(); ++i) left.push_back({i});
    patience_.moved();
    full_ = false;
    for (auto& [node, of] : lines_) of.fresh = false;
    if (!left.empty() && (owners_.empty() || slots_are_old_)) {
      const Status learned = learn_slots();
      if (owners_.empty() && !learned.ok()) return learned;
      slots_are_old_ = false;
    }
    Status last;
    bool served = false;
    for (int round = 0; round < kRounds && !left.empty(); ++round) {
      std::map<RedisAddress, std::vector<Errand>> by_node;
      for (Errand& e : left) {
        const auto& owner = owners_[redis_slot(key_of(commands[e.which].name))];
        const auto& node = e.asked ? e.asked : owner;
        if (node && !silent(*node)) {
          by_node[*node].push_back(std::move(e));
        } else {
          slots_are_old_ = true;  // another one may have its slots by now
          if (last.ok()) last = Error{Code::unavailable, "Redis: a node does not answer"};
        }
      }
      left.clear();
      for (auto& [node, errands] : by_node)
        if (const Status s = send(node, commands, errands); !s.ok())
          fail(node, errands, s, left, last);
      for (auto& [node, errands] : by_node) {
        std::size_t done = 0;
        const Status s = receive(node, commands, errands, done, told, left);
        if (done > 0) silent_.erase(node);
        served |= done > 0;
        errands.erase(errands.begin(), errands.begin() + static_cast<std::ptrdiff_t>(done));
        if (!s.ok()) fail(node, errands, s, left, last);
      }
      if (!last.ok() && !left.empty() && round + 1 < kRounds && !learn_slots().ok()) break;
    }
    if (served || commands.empty()) return {};
    return last.ok() ? Error{Code::unavailable, "Redis sends from node to node without end"}
                     : last.error();
  }

  // A node that does not answer: its commands are asked for elsewhere, if another one has them.
  void fail(const RedisAddress& node, std::vector<Errand>& errands, const Status& why,
            std::vector<Errand>& left, Status& last) {
    const auto found = lines_.find(node);
    if (found != lines_.end() && !found->second.fresh && !patience_.over())
      lines_.erase(found);  // it was closed while nobody asked
    else
      rest(node);
    for (const Errand& e : errands) left.push_back({e.which});
    errands.clear();
    last = why;
  }

  Status send(const RedisAddress& node, std::span<const RedisCommand> commands,
              std::span<const Errand> errands) {
    TRY(RedisLine* const to, line(node));
    std::string text;
    const std::string asking[] = {"ASKING"};
    for (const Errand& e : errands) {
      if (e.asked) text += encode_words(asking);
      encode(commands[e.which], text);
    }
    return to->send(text);
  }

  Status receive(const RedisAddress& node, std::span<const RedisCommand> commands,
                 std::span<const Errand> errands, std::size_t& done, const Told& told,
                 std::vector<Errand>& left) {
    const auto found = lines_.find(node);
    if (errands.empty() || found == lines_.end()) return {};
    for (const Errand& e : errands) {
      if (e.asked) {
        TRY([[maybe_unused]] const RedisReply to_asking, found->second.reply());
      }
      TRY(const RedisReply reply, found->second.reply());
      if (reply.kind == RedisReply::Kind::error) {
        const auto elsewhere = redirect(reply.text);
        const bool full = reply.text.starts_with("OOM ");
        full_ |= full;
        if (full) {
          ++done;
          continue;
        }
        if (!elsewhere) return Error{Code::unavailable, "Redis: " + reply.text};
        const bool moved = reply.text.starts_with("MOVED");
        if (moved) owners_[redis_slot(key_of(commands[e.which].name))] = *elsewhere;
        if (seen_.size() < kNodesMax) seen_.insert(*elsewhere);
        left.push_back({e.which, moved ? std::nullopt : elsewhere});
      } else {
        told(e.which, reply);
      }
      ++done;
    }
    return {};
  }

  // "MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381"
  static std::optional<RedisAddress> redirect(std::string_view text) {
    if (!text.starts_with("MOVED ") && !text.starts_with("ASK ")) return std::nullopt;
    const std::string_view where = text.substr(text.rfind(' ') + 1);
    const std::size_t colon = where.rfind(':');
    if (colon == where.npos || colon == 0) return std::nullopt;
    RedisAddress a{.host = std::string(where.substr(0, colon)), .port = 0};
    std::from_chars(where.data() + colon + 1, where.data() + where.size(), a.port);
    return a.port == 0 ? std::nullopt : std::optional(a);
  }

  struct Silence {
    Nanoseconds until = 0, length = 0;
  };

  const RedisPlace place_;
  RedisPatience patience_;
  bool slots_are_old_ = false, full_ = false;
  std::map<RedisAddress, Silence> silent_;
  std::vector<std::optional<RedisAddress>> owners_;  // by slot; empty: not asked yet
  std::set<RedisAddress> seen_;
  std::map<RedisAddress, RedisLine> lines_;
};

}  // namespace

// CRC-16/XMODEM of the key, as the cluster specification has it. Our keys have no braces.
std::uint32_t redis_slot(std::string_view key) {
  std::uint32_t crc = 0;
  for (const char c : key) {
    crc ^= static_cast<std::uint32_t>(static_cast<unsigned char>(c)) << 8;
    for (int i = 0; i < 8; ++i) crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
  }
  return crc % kSlots;
}

std::unique_ptr<ValueStore> open_redis_store(RedisPlace place) {
  return std::make_unique<RedisStore>(std::move(place));
}

namespace {

Result<std::unique_ptr<Tier>> open_redis_tier(const TierSettings& settings, const std::string&) {
  TRY(const RedisPlace place, parse_redis_url(settings.place));
  return open_store_tier(settings, [place]() -> Result<std::unique_ptr<ValueStore>> {
    return open_redis_store(place);
  });
}

}  // namespace

extern const TierKind kRedisTierKind = {"redis", "Redis or Valkey: redis://HOST:PORT,HOST:PORT",
                                        open_redis_tier};
extern const TierKind kRedisTlsTierKind = {"rediss", "the same over TLS: rediss://HOST:PORT",
                                           open_redis_tier};

}  // namespace quire
