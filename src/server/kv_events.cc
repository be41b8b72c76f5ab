#include "server/kv_events.h"

#include <fmt/core.h>

#include <charconv>

#include "engine/explain.h"
#include "engine/loading.h"
#include "server/routes.h"

namespace quire {
namespace {

constexpr std::size_t kRecordsMax = 512;  // of one look

struct Batch {
  struct Item {
    std::uint64_t number;
    JournalRecord record;
    std::string request_id;
  };
  std::vector<Item> items = {};
  std::uint64_t first = 0, next = 0;
  Nanoseconds now = 0;
};

std::string event_text(const Batch::Item& item, Nanoseconds now) {
  const JournalRecord& r = item.record;
  const double ts = static_cast<double>(unix_now_ns() + r.time - now) / 1e9;
  Json data{{"seq", item.number},
            {"ts", ts},
            {"reason", reason_name(r.reason)},
            {"blocks", Json::array()},
            {"tokens", r.tokens},
            {"bytes", r.bytes},
            {"tier", "cpu"},
            {"request_id", item.request_id.empty() ? Json() : Json(item.request_id)}};
  if (r.key != 0) data["blocks"].push_back(fmt::format("{:016x}", __builtin_bswap64(r.key)));
  if (reason_kind(r.reason) == ReasonKind::eviction)
    data["cause"] = std::string(reason_name(r.reason)).substr(8);
  if (r.reason == Reason::moved) {
    const char* const below = r.extra == kMovedUpShared ? "remote" : "disk";
    data["from"] = r.extra == kMovedDown ? "cpu" : below;
    data["to"] = r.extra == kMovedDown ? "disk" : "cpu";
  }
  return sse(dump(data), event_type(r.reason), std::to_string(item.number));
}

}  // namespace

std::string_view event_type(Reason reason) {
  switch (reason_kind(reason)) {
    case ReasonKind::miss:
      return "miss";
    case ReasonKind::eviction:
      return "removed";
    case ReasonKind::request:
      return "request";
    case ReasonKind::none:
      return "other";
    case ReasonKind::block:
      break;
  }
  switch (reason) {
    case Reason::hit:
    case Reason::hit_partial:
    case Reason::hit_in_flight:
      return "hit";
    case Reason::stored:
    case Reason::stored_duplicate:
      return "stored";
    case Reason::pinned:
      return "pinned";
    case Reason::unpinned:
      return "unpinned";
    case Reason::moved:
      return "moved";
    default:
      return "block";
  }
}

EventPump::EventPump(Server& server) : server_(server), thread_([this] { loop(); }) {}

EventPump::~EventPump() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EventPump::add(std::shared_ptr<EventStream> stream) {
  Exchange& x = *stream->call->exchange;
  x.begin(sse_head(": keep-alive\n\n"));
  x.write(": ready\n\n");
  // The exchange keeps the stream alive, until the client leaves.
  x.gone = [stream] {};
  x.drained = [stream] { stream->paused = false; };
  {
    std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }
  changed_.notify_all();
}

void EventPump::end_all() {
  std::lock_guard lock(mutex_);
  for (const auto& weak : streams_)
    if (const auto stream = weak.lock()) {
      // The exchange is held on its own: the stream may be gone before the function runs.
      auto x = stream->call->exchange;
      x->post([x] { x->end(); });
    }
}

void EventPump::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
    if (streams_.empty()) {
      changed_.wait(lock);
      continue;
    }
    for (const auto& weak : streams_)
      if (const auto stream = weak.lock()) {
        auto x = stream->call->exchange;
        x->post([this, stream] { fetch(stream); });
      }
    changed_.wait_for(lock, std::chrono::milliseconds(200));
  }
}

void EventPump::fetch(const std::shared_ptr<EventStream>& stream) {
  if (stream->fetching || stream->paused || stream->call->exchange->over()) return;
  stream->fetching = true;
  server_.with_engine(
      stream->call,
      [from = stream->next, from_now = stream->from_now](EngineView& e) {
        const Journal& journal = e.runtime.cache().journal();
        Batch batch{
            .first = journal.first(), .next = from_now ? journal.next() : from, .now = e.now};
        batch.next = std::max(batch.next, batch.first);
        for (; batch.next < journal.next() && batch.items.size() < kRecordsMax; ++batch.next) {
          const JournalRecord& r = journal.at(batch.next);
          const RequestRecord* request = r.request ? e.log.find(r.request) : nullptr;
          batch.items.push_back({batch.next, r, request ? request->id : std::string()});
        }
        return batch;
      },
      [this, stream](const Batch& batch) {
        stream->fetching = false;
        std::string text;
        if (!stream->from_now && batch.first > stream->next) {
          dropped_ += batch.first - stream->next;
          text += sse(dump({{"from", stream->next}, {"to", batch.first}}), "gap");
        }
        for (const Batch::Item& item : batch.items)
          if (stream->types.empty() || stream->types.contains(event_type(item.record.reason)))
            text += event_text(item, batch.now);
        stream->next = batch.next;
        stream->from_now = false;
        if (!text.empty()) stream->paused = !stream->call->exchange->write(text);
      });
}

void get_kv_events(Server& server, std::shared_ptr<Call> call) {
  auto stream = std::make_shared<EventStream>();
  stream->call = call;
  std::string types = call->request().parameter("types").value_or("");
  while (!types.empty()) {
    const std::size_t comma = types.find(',');
    std::string name = types.substr(0, comma);
    if (name == "evicted") name = "removed";
    if (!name.empty()) stream->types.insert(name);
    types.erase(0, comma == std::string::npos ? types.size() : comma + 1);
  }
  std::string since = call->request().parameter("since").value_or("");
  const std::string last(call->request().header("last-event-id"));
  const std::string& from = last.empty() ? since : last;
  if (!from.empty()) {
    const auto [end, error] = std::from_chars(from.data(), from.data() + from.size(), stream->next);
    if (error != std::errc() || end != from.data() + from.size())
      return call->refuse(bad_value("since", "must be the number of an event"));
    if (!last.empty()) ++stream->next;  // it has that one
    stream->from_now = false;
  }
  server.events().add(std::move(stream));
}

void get_kv_event_sources(Server& server, std::shared_ptr<Call> call) {
  Json sources = Json::array();
  if (server.publisher()) sources.push_back(server.publisher()->sources());
  call->respond({{"sources", std::move(sources)}});
}

}  // namespace quire
