#include "server/kv_publisher.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/file.h"
#include "engine/explain.h"
#include "net/zmq_socket.h"
#include "server/access_log.h"
#include "server/api_error.h"
#include "server/event_sequence.h"
#include "server/fields.h"

namespace quire {

// What one look at the journal found: the present state of every block that it mentions.
struct JournalLook {
  std::vector<MirrorChange> changes = {};
  bool whole = false;        // these are all blocks there are
  std::uint64_t next = 0;    // record
  std::uint64_t missed = 0;  // records that were overwritten
  bool more = false;
};

namespace {

constexpr std::chrono::milliseconds kLookEvery{50};
constexpr std::uint64_t kLookRecords = 8192;  // of the journal, in one look
constexpr std::size_t kReplaysMax = 64;
constexpr int kReplayFrames = 512;  // of one replay, before others have their turn

// The first eight bytes of a key, as its hexadecimal form shows them.
std::uint64_t event_hash(std::uint64_t prefix) { return __builtin_bswap64(prefix); }

std::string eight_bytes(std::uint64_t number) {
  const std::uint64_t big = __builtin_bswap64(number);
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&big), sizeof big};
}

MirrorChange change_of(const NodeInfo& node, std::string salt) {
  return {.hash = event_hash(node.key.prefix()),
          .there = true,
          .block = {.parent = event_hash(node.parent.prefix()),
                    .tokens = {node.tokens.begin(), node.tokens.end()},
                    .tenant = std::string(node.tenant),
                    .salt = std::move(salt),
                    .adapter = std::string(node.adapter)}};
}

JournalLook look_at_all(EngineView& e) {
  JournalLook seen{.changes = {}, .whole = true, .next = e.runtime.cache().journal().next()};
  e.runtime.cache().tree([&](const NodeInfo& node) {
    if (node.ready) seen.changes.push_back(change_of(node, {}));
  });
  return seen;
}

JournalLook look_at_journal(EngineView& e, std::uint64_t from, bool all) {
  const KvCache& cache = e.runtime.cache();
  const Journal& journal = cache.journal();
  if (all || from < journal.first()) {
    JournalLook seen = look_at_all(e);
    if (!all) seen.missed = journal.first() - from;
    return seen;
  }
  JournalLook seen{.next = std::min(journal.next(), from + kLookRecords)};
  seen.more = seen.next < journal.next();
  for (std::uint64_t n = from; n < seen.next; ++n) {
    const JournalRecord& r = journal.at(n);
    const bool stored = r.reason == Reason::stored || r.reason == Reason::stored_duplicate;
    if (!stored && reason_kind(r.reason) != ReasonKind::eviction) continue;
    const auto node = cache.cached(static_cast<NodeId>(r.extra >> 32), r.key);
    if (!node) {
      seen.changes.push_back({.hash = event_hash(r.key)});
    } else if (stored) {  // else it has blocks that make a hit, though one was dropped
      const RequestRecord* request = r.request ? e.log.find(r.request) : nullptr;
      seen.changes.push_back(change_of(*node, request ? request->salt : std::string()));
    }
  }
  return seen;
}

}  // namespace

Status KvEventsOptions::take_config(const std::string& json) {
  TRY(const Json body, parse_json(json));
  Fields f(body, "--kv-events-config");
  if (const auto text = f.text("publisher", 16); text && *text != "zmq" && *text != "null")
    f.refuse("publisher", "must be zmq or null");
  else if (text && *text == "null")
    endpoint.clear();
  if (auto text = f.text("endpoint", 512)) endpoint = std::move(*text);
  if (auto text = f.text("replay_endpoint", 512)) replay = std::move(*text);
  if (auto text = f.text("topic", 512)) topic = std::move(*text);
  if (const auto most = f.integer("hwm", 1, 1 << 30)) messages_max = static_cast<int>(*most);
  if (const auto on = f.boolean("enable_kv_cache_events"); on && !*on) endpoint.clear();
  f.find("buffer_steps");    // a replay is a snapshot: nothing is buffered
  f.find("max_queue_size");  // the journal is the queue
  if (!f.failed()) f.refuse_unknown();
  if (f.failed()) return Error{Code::invalid, f.error().message};
  return {};
}

struct KvPublisher::Inside {
  struct Replay {
    std::string peer;
    std::uint64_t next, end;  // numbers; the snapshot goes first
    std::shared_ptr<const std::string> snapshot;
  };
  // Shared with the engine thread, which may look after the publisher has gone.
  struct Inbox {
    std::mutex mutex;
    std::optional<JournalLook> look;
  };

  Service& service;
  KvEventsOptions options;
  std::unique_ptr<ZmqSocket> publisher, router;
  EventSequence numbers;
  BlockMirror mirror;
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
  bool looking = false, begun = false, warned = false;
  std::uint64_t next_record = 0;
  std::deque<Replay> replays = {};
  std::shared_ptr<const std::string> snapshot = {};  // of the present state, once it was asked for

  void begin_look();
  bool take_look(std::uint64_t& missed);
  void publish(const Json& events);
  void hear_replay(const std::vector<std::string>& frames);
  bool send_replay(Replay& replay);
  static double now() { return static_cast<double>(unix_now_ns()) * 1e-9; }
};

Result<std::unique_ptr<KvPublisher>> KvPublisher::start(Service& service,
                                                        const KvEventsOptions& asked) {
  KvEventsOptions options = asked;
  ZmqOptions zmq{.messages_max = options.messages_max};
  if (!options.curve_file.empty()) {
    TRY(zmq.curve_secret, read_file(options.curve_file));
    while (!zmq.curve_secret.empty() && zmq.curve_secret.back() == '\n')
      zmq.curve_secret.pop_back();
    if (zmq.curve_secret.size() != 40)
      return Error{Code::invalid,
                   options.curve_file + ": a CURVE secret key has 40 characters (Z85)"};
  }
  TRY(options.endpoint, event_endpoint(options.endpoint, options.open));
  TRY(auto publisher, ZmqSocket::bind(ZmqKind::publisher, options.endpoint, zmq));
  std::unique_ptr<ZmqSocket> router;
  if (!options.replay.empty()) {
    TRY(options.replay, event_endpoint(options.replay, options.open));
    TRY(router, ZmqSocket::bind(ZmqKind::router, options.replay, zmq));
  }
  TRY(EventSequence numbers, EventSequence::open(options.state));
  const std::uint32_t per_block = service.runtime().geometry().tokens_per_block;
  const EventForm form = options.form;
  auto inside = std::unique_ptr<Inside>(
      new Inside{.service = service,
                 .options = std::move(options),
                 .publisher = std::move(publisher),
                 .router = std::move(router),
                 .numbers = std::move(numbers),
                 .mirror = BlockMirror({.tokens_per_block = per_block, .form = form})});
  std::unique_ptr<KvPublisher> made(new KvPublisher(std::move(inside)));
  made->thread_ = std::thread([p = made.get()] { p->loop(); });
  return made;
}

KvPublisher::KvPublisher(std::unique_ptr<Inside> inside) : inside_(std::move(inside)) {}

KvPublisher::~KvPublisher() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

Json KvPublisher::sources() const {
  return {{"endpoint", inside_->publisher->endpoint()},
          {"replay_endpoint", inside_->router ? Json(inside_->router->endpoint()) : Json()},
          {"topic", inside_->options.topic},
          {"encoding", "msgpack"},
          {"block_size", inside_->service.runtime().geometry().tokens_per_block}};
}

void KvPublisher::loop() {
  Inside& in = *inside_;
  auto last = std::chrono::steady_clock::now() - kLookEvery;
  while (!stopping_) {
    const auto now = std::chrono::steady_clock::now();
    if (!in.looking && now - last >= kLookEvery) {
      last = now;
      in.begin_look();
    }
    std::uint64_t missed = 0;
    if (in.take_look(missed)) last = now - kLookEvery;  // there is more
    dropped_ += missed;
    bool busy = false;
    while (in.router && in.begun) {
      const auto frames = in.router->receive();
      if (!frames) break;
      in.hear_replay(*frames);
    }
    for (std::size_t i = in.replays.size(); i > 0; --i) {
      Inside::Replay replay = std::move(in.replays.front());
      in.replays.pop_front();
      if (!in.send_replay(replay)) continue;
      busy = true;
      in.replays.push_back(std::move(replay));
    }
    const std::chrono::milliseconds pause(busy ? 1 : 10);
    if (in.router)
      in.router->wait(pause);
    else
      std::this_thread::sleep_for(pause);
  }
}

void KvPublisher::Inside::begin_look() {
  looking = service.post([box = inbox, from = next_record, all = !begun](EngineView& e) {
    JournalLook seen = look_at_journal(e, from, all);
    std::lock_guard lock(box->mutex);
    box->look = std::move(seen);
  });
}

// True: another look would find more at once.
bool KvPublisher::Inside::take_look(std::uint64_t& missed) {
  std::optional<JournalLook> seen;
  {
    std::lock_guard lock(inbox->mutex);
    seen.swap(inbox->look);
  }
  if (!seen) return false;
  looking = false;
  next_record = seen->next;
  missed = seen->missed;
  const Json events = seen->whole ? mirror.replace(std::move(seen->changes))
                                  : mirror.apply(std::move(seen->changes));
  if (!begun) {
    begun = true;
    publish(mirror.snapshot());
  } else if (!events.empty()) {
    publish(events);
  }
  return seen->more;
}

void KvPublisher::Inside::publish(const Json& events) {
  const std::string number = eight_bytes(numbers.take()), payload = event_payload(now(), events);
  publisher->send(std::array<std::string_view, 3>{options.topic, number, payload});
  snapshot.reset();
  if (!numbers.written().ok() && !std::exchange(warned, true))
    fmt::print(stderr, "warning: {}\n", numbers.written().error().message);
}

void KvPublisher::Inside::hear_replay(const std::vector<std::string>& frames) {
  if (frames.size() < 2 || frames.back().size() != 8) return;
  std::uint64_t from = 0;
  std::memcpy(&from, frames.back().data(), sizeof from);
  from = __builtin_bswap64(from);
  std::erase_if(replays, [&](const Replay& r) { return r.peer == frames[0]; });
  if (replays.size() >= kReplaysMax) replays.pop_front();
  if (!snapshot && from < numbers.next())
    snapshot = std::make_shared<const std::string>(event_payload(now(), mirror.snapshot()));
  replays.push_back({frames[0], from, std::max(from, numbers.next()), snapshot});
}

// Sends as much as the peer takes. False: it has all, or has left.
bool KvPublisher::Inside::send_replay(Replay& r) {
  const std::string empty = event_payload(now(), Json::array());
  for (int i = 0; i < kReplayFrames; ++i) {
    const bool over = r.next >= r.end;
    const std::string number = eight_bytes(over ? UINT64_MAX : r.next);
    const std::string_view payload = over ? std::string_view() : r.snapshot ? *r.snapshot : empty;
    const std::string_view topic = over ? std::string_view() : std::string_view(options.topic);
    switch (router->send(std::array<std::string_view, 5>{r.peer, "", topic, number, payload})) {
      case ZmqSocket::Sent::full:
        return true;
      case ZmqSocket::Sent::gone:
        return false;
      case ZmqSocket::Sent::yes:
        break;
    }
    if (over) return false;
    r.snapshot.reset();
    ++r.next;
  }
  return true;
}

}  // namespace quire
