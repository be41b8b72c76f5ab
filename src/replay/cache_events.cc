#include "replay/cache_events.h"

#include <fmt/format.h>

#include <charconv>

#include "base/json.h"
#include "replay/lines.h"

namespace quire {
namespace {

constexpr std::uint64_t kLongest = 1u << 22;  // tokens of one request

// Reads fields of one line; the first that is wrong stays in `problem`.
class EventFields {
 public:
  explicit EventFields(const Json& line) : line_(line) {}

  std::uint64_t number(const char* name, std::uint64_t max, std::uint64_t fallback = 0) {
    const Json* v = find(name);
    if (v == nullptr) return fallback;
    if (!v->is_number_unsigned() || v->get<std::uint64_t>() > max) {
      problem = fmt::format("'{}' is not a whole number up to {}", name, max);
      return fallback;
    }
    return v->get<std::uint64_t>();
  }
  double seconds(const char* name) {
    const Json* v = find(name);
    if (v == nullptr) return 0;
    const double s = v->is_number() ? v->get<double>() : -1;
    if (!(s >= 0 && s < 1e9)) problem = fmt::format("'{}' is not a time in seconds", name);
    return s;
  }
  std::string text(const char* name) {
    const Json* v = find(name);
    if (v == nullptr) return {};
    if (!v->is_string() || v->get_ref<const std::string&>().size() > 256) {
      problem = fmt::format("'{}' is not a short text", name);
      return {};
    }
    return v->get<std::string>();
  }
  std::uint64_t key(const Json& v) {
    std::uint64_t key = 0;
    if (v.is_string() && v.get_ref<const std::string&>().size() == 16) {
      const std::string& digits = v.get_ref<const std::string&>();
      const auto read = std::from_chars(digits.data(), digits.data() + 16, key, 16);
      if (read.ec == std::errc() && read.ptr == digits.data() + 16) return key;
    }
    problem = "a key is not 16 hexadecimal digits";
    return 0;
  }
  const Json* find(const char* name) const {
    const auto it = line_.find(name);
    return it == line_.end() ? nullptr : &*it;
  }

  std::string problem;

 private:
  const Json& line_;
};

Result<Json> parse_object(std::string_view line) {
  TRY(Json json, parse_json(line, {.depth_max = 8, .object_keys_max = 256}));
  if (!json.is_object()) return Error{Code::corrupt, "it is not a JSON object"};
  return json;
}

CacheEvent::Kind kind_of(const std::string& name, const std::string& reason) {
  if (name == "attach") return CacheEvent::Kind::attach;
  if (name == "store") return CacheEvent::Kind::store;
  if (name == "evict") return CacheEvent::Kind::evict;
  if (name == "end") return CacheEvent::Kind::end;
  if (name == "costs") return CacheEvent::Kind::costs;
  if (name == "note" && reason.starts_with("preempted_")) return CacheEvent::Kind::preempt;
  return CacheEvent::Kind::other;
}

// The layers of the recorded model, in groups of equal ones.
Result<std::vector<LayerShape>> parse_layers(const Json& json) {
  if (!json.is_array()) return Error{Code::corrupt, "'layers' is not a list"};
  constexpr std::size_t kLayersMax = 1024;
  std::vector<LayerShape> all;
  for (const Json& group : json) {
    if (!group.is_object()) return Error{Code::corrupt, "'layers' holds what is no object"};
    EventFields f(group);
    const auto latent = group.find("latent");
    LayerShape shape{.kind = GroupKind::full,
                     .kv_heads = static_cast<std::uint32_t>(f.number("kv_heads", 1024)),
                     .key_dim = static_cast<std::uint32_t>(f.number("key_dim", 4096)),
                     .value_dim = static_cast<std::uint32_t>(f.number("value_dim", 4096)),
                     .window = static_cast<std::uint32_t>(f.number("window", kLongest))};
    if (shape.window > 0) shape.kind = GroupKind::window;
    if (latent != group.end() && *latent == Json(true)) shape.kind = GroupKind::latent;
    all.insert(all.end(), f.number("layers", kLayersMax), shape);
    if (shape.kv_heads == 0 || shape.key_dim == 0) f.problem = "'layers' holds one without heads";
    if (all.size() > kLayersMax) f.problem = "'layers' holds too many";
    if (!f.problem.empty()) return Error{Code::corrupt, f.problem};
  }
  return all;
}

}  // namespace

Result<TracedCache> parse_traced_cache(std::string_view line) {
  TRY(const Json json, parse_object(line));
  EventFields f(json);
  if (f.number("quire_trace", 1000) != 1)
    return Error{Code::corrupt, "it does not begin with {\"quire_trace\":1, ...}"};
  TracedCache cache{.block_size = static_cast<std::uint32_t>(f.number("block_size", 4096)),
                    .block_bytes = f.number("block_bytes", std::uint64_t{1} << 40),
                    .cache_bytes = f.number("cache_bytes", std::uint64_t{1} << 56),
                    .capacity_blocks = f.number("capacity_blocks", std::uint64_t{1} << 40),
                    .format = f.text("format"),
                    .evictor = f.text("evictor")};
  constexpr std::uint64_t kRowsMax = 1u << 20;
  cache.step_tokens = static_cast<std::uint32_t>(f.number("step_tokens", kRowsMax));
  cache.prompt_tokens = static_cast<std::uint32_t>(f.number("prompt_tokens", kRowsMax));
  cache.sequences_max = static_cast<std::uint32_t>(f.number("sequences_max", kRowsMax));
  cache.context = static_cast<std::uint32_t>(f.number("context", UINT32_MAX));
  if (const Json* layers = f.find("layers")) {
    TRY(cache.layers, parse_layers(*layers));
  }
  if (cache.block_size == 0) f.problem = "'block_size' is missing";
  if (!f.problem.empty()) return Error{Code::corrupt, f.problem};
  return cache;
}

Result<CacheEvent> parse_cache_event(std::string_view line) {
  TRY(const Json json, parse_object(line));
  EventFields f(json);
  constexpr std::uint64_t kTimeMax = INT64_MAX / 2;
  CacheEvent e{.time = static_cast<Nanoseconds>(f.number("t", kTimeMax)),
               .request = f.number("r", UINT64_MAX),
               .block = static_cast<std::uint32_t>(f.number("b", kLongest)),
               .reason = f.text("reason"),
               .arrived = static_cast<Nanoseconds>(f.number("arrived", kTimeMax)),
               .prompt_tokens = static_cast<std::uint32_t>(f.number("prompt", kLongest)),
               .hit_tokens = static_cast<std::uint32_t>(f.number("hit", kLongest)),
               .tenant = f.text("tenant"),
               .salt = f.text("salt"),
               .write = f.text("write"),
               .priority = static_cast<std::uint8_t>(f.number("priority", 100, 50)),
               .ttl_s = f.seconds("ttl_s"),
               .generated_tokens = static_cast<std::uint32_t>(f.number("generated", kLongest)),
               .choices = static_cast<std::uint32_t>(f.number("choices", 4096, 1)),
               .loaded_tokens = static_cast<std::uint32_t>(f.number("loaded", kLongest)),
               .queue_s = f.seconds("queue_s"),
               .first_token_s = f.seconds("first_token_s"),
               .decode_s = f.seconds("decode_s")};
  e.kind = kind_of(f.text("e"), e.reason);
  if (const Json* k = f.find("k")) e.key = f.key(*k);
  if (const Json* reuse = f.find("reuse")) e.reuse = *reuse != Json(false);
  if (const Json* keys = f.find("keys")) {
    if (!keys->is_array()) return Error{Code::corrupt, "'keys' is not a list"};
    for (const Json& k : *keys) e.keys.push_back(f.key(k));
  }
  if (e.kind == CacheEvent::Kind::costs) {
    TRY(e.costs, parse_step_costs(json));
  }
  if (!f.problem.empty()) return Error{Code::corrupt, f.problem};
  return e;
}

Result<CacheEvents> read_cache_events(const std::string& path) {
  TRY(LineReader lines, LineReader::open(path));
  return read_cache_events(std::move(lines));
}

Result<CacheEvents> read_cache_events(LineReader lines, std::uint64_t events_max) {
  const std::string path = lines.path();
  CacheEvents trace;
  std::uint64_t keys = 0;
  bool first = true;
  for (;;) {
    TRY(const std::optional<std::string_view> line, lines.next());
    if (!line) break;
    if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto bad = [&](const Error& why) {
      return Error{Code::corrupt, fmt::format("{} line {}: {}", path, lines.number(), why.message)};
    };
    if (first) {
      auto cache = parse_traced_cache(*line);
      if (!cache.ok()) return bad(cache.error());
      trace.cache = std::move(cache.value());
      first = false;
      continue;
    }
    auto event = parse_cache_event(*line);
    if (!event.ok()) return bad(event.error());
    keys += event.value().keys.size();
    if (trace.events.size() == events_max || keys > kTraceKeysMax)
      return Error{Code::exhausted, fmt::format("{}: more than {} events", path, events_max)};
    if (event.value().costs.known()) trace.costs = event.value().costs;
    if (line->find("\"e\":\"full\"") != std::string_view::npos ||
        line->find("\"e\":\"gap\"") != std::string_view::npos)
      trace.whole = false;
    const CacheEvent::Kind kind = event.value().kind;
    if (kind == CacheEvent::Kind::evict || kind == CacheEvent::Kind::other) continue;
    trace.events.push_back(std::move(event.value()));
  }
  if (first) return Error{Code::corrupt, fmt::format("{}: is empty", path)};
  return trace;
}

}  // namespace quire
