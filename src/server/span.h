// server/span.h - one timed piece of work in a distributed trace, who it belongs to, and how OTLP
// writes it.
//
// A client that traces sends `traceparent` (W3C); the request's span becomes a child of its span.
//
//   const TraceContext from = parse_traceparent(request.header("traceparent")).value_or(...);
//   Span s{.name = "chat m", .trace_id = from.trace_id, .span_id = random_hex(16), ...};
//   s.attribute("gen_ai.usage.input_tokens", 1312);
//   post(otlp_json(resource, spans));          // the body of POST /v1/traces
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace quire {

// Identifiers are lower-case hex, as on the wire: 32 digits and 16.
struct TraceContext {
  std::string trace_id = {}, parent_id = {}, state = {};
  bool sampled = false;
};
// Nothing where the header is absent or not what W3C says.
std::optional<TraceContext> parse_traceparent(std::string_view header, std::string_view state = {});

struct Span {
  enum class Kind : std::uint8_t { internal = 1, server = 2 };  // as OTLP numbers them

  std::string name = {}, trace_id = {}, span_id = {}, parent_id = {}, state = {};
  Kind kind = Kind::internal;
  std::int64_t start_unix_ns = 0, end_unix_ns = 0;
  std::vector<std::pair<std::string_view, Json>> attributes = {};  // keys are literals
  bool failed = false;

  void attribute(std::string_view key, Json value) {
    attributes.emplace_back(key, std::move(value));
  }
};

// {"key": "value"} as the list of typed values that OTLP has.
Json otlp_attributes(const Json& object);
// A whole export request. `resource` is what all spans have in common.
std::string otlp_json(const Json& resource, std::span<const Span> spans);

}  // namespace quire
