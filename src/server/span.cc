#include "server/span.h"

#include <algorithm>

#include "server/api_error.h"

namespace quire {
namespace {

bool is_lower_hex(std::string_view s) {
  return std::ranges::all_of(
      s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view s) { return s.find_first_not_of('0') == s.npos; }

// 64-bit numbers are strings in the JSON form of protocol buffers.
Json otlp_value(const Json& v) {
  if (v.is_boolean()) return {{"boolValue", v}};
  if (v.is_number_integer()) return {{"intValue", v.dump()}};
  if (v.is_number()) return {{"doubleValue", v}};
  if (!v.is_array()) return {{"stringValue", v.is_string() ? v : Json(dump(v))}};
  Json values = Json::array();
  for (const Json& one : v) values.push_back(otlp_value(one));
  return {{"arrayValue", {{"values", std::move(values)}}}};
}

Json otlp_attribute(std::string_view key, const Json& value) {
  return {{"key", key}, {"value", otlp_value(value)}};
}

Json otlp_span(const Span& s) {
  Json attributes = Json::array();
  for (const auto& [key, value] : s.attributes) attributes.push_back(otlp_attribute(key, value));
  Json out{{"traceId", s.trace_id},
           {"spanId", s.span_id},
           {"name", s.name},
           {"kind", static_cast<int>(s.kind)},
           {"startTimeUnixNano", std::to_string(s.start_unix_ns)},
           {"endTimeUnixNano", std::to_string(s.end_unix_ns)},
           {"attributes", std::move(attributes)}};
  if (!s.parent_id.empty()) out["parentSpanId"] = s.parent_id;
  if (!s.state.empty()) out["traceState"] = s.state;
  if (s.failed) out["status"] = {{"code", 2}};
  return out;
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header, std::string_view state) {
  // 00-<trace>-<parent>-<flags>; a later version may add to the end.
  constexpr std::size_t kLength = 55;
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-')
    return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         parent = header.substr(36, 16), flags = header.substr(53, 2);
  for (const std::string_view part : {version, trace, parent, flags})
    if (!is_lower_hex(part)) return std::nullopt;
  if (version == "ff" || is_zero(trace) || is_zero(parent)) return std::nullopt;
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return std::nullopt;
  const bool sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos;
  return TraceContext{.trace_id = std::string(trace),
                      .parent_id = std::string(parent),
                      .state = std::string(state.substr(0, 512)),
                      .sampled = sampled};
}

Json otlp_attributes(const Json& object) {
  Json out = Json::array();
  for (const auto& [key, value] : object.items()) out.push_back(otlp_attribute(key, value));
  return out;
}

std::string otlp_json(const Json& resource, std::span<const Span> spans) {
  Json list = Json::array();
  for (const Span& s : spans) list.push_back(otlp_span(s));
  return dump(
      {{"resourceSpans",
        {{{"resource", {{"attributes", otlp_attributes(resource)}}},
          {"scopeSpans", {{{"scope", {{"name", "quire"}}}, {"spans", std::move(list)}}}}}}}});
}

}  // namespace quire
