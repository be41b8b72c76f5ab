// server/report.h - the record of a finished generation: a line of the access log, and the spans of
// a trace. Neither contains prompts, answers, salts or keys.
#pragma once

#include <string>
#include <vector>

#include "server/generation.h"
#include "server/generation_request.h"
#include "server/span.h"

namespace quire {

// Where a request came in, and as whose.
struct Origin {
  std::string request_id, tenant, key_id, method;
  std::string_view route;      // its pattern
  std::string_view operation;  // of the route; empty: it generates nothing
  std::string_view dialect;
  Nanoseconds began = 0;       // on SteadyClock
  std::uint64_t bytes_in = 0;  // of the body
  TraceContext trace = {};     // empty trace_id: it is not traced
  std::string span_id = {};    // of the request's own span
};

struct ServedBy {
  std::string model, kv_format, host;
  std::uint16_t port = 0;
};

Json plain_line(const Origin& origin, int status, Nanoseconds now);
Json generation_line(const Origin& origin, const GenerationRequest& asked,
                     const GenerationSummary& summary, const ServedBy& by, std::uint64_t bytes_out,
                     Nanoseconds now);

// A request that was refused before anything was generated.
Span refused_span(const Origin& origin, const ServedBy& by, int status, Nanoseconds now);
// The request's span, then its parts: queue, kv.lookup, prefill, kv.write, decode.
std::vector<Span> generation_spans(const Origin& origin, const GenerationRequest& asked,
                                   const GenerationSummary& summary, const ServedBy& by,
                                   Nanoseconds now);

}  // namespace quire
