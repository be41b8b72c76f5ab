#include "server/report.h"

#include <fmt/format.h>

#include "server/access_log.h"
#include "server/ids.h"

namespace quire {
namespace {

double to_ms(Nanoseconds t) { return static_cast<double>(t) / 1e6; }

// 0.7 as the client wrote it, not what the nearest float is as a double.
double as_written(float value) { return std::stod(fmt::format("{}", value)); }

Span own_span(const Origin& origin, const ServedBy& by, std::string_view model, int status,
              Nanoseconds now) {
  const std::int64_t offset = unix_now_ns() - now;  // from SteadyClock to the time of day
  Span s{.name = std::string(origin.operation) + " " + std::string(model),
         .trace_id = origin.trace.trace_id,
         .span_id = origin.span_id,
         .parent_id = origin.trace.parent_id,
         .state = origin.trace.state,
         .kind = Span::Kind::server,
         .start_unix_ns = origin.began + offset,
         .end_unix_ns = now + offset,
         .failed = status >= 500};
  s.attribute("gen_ai.operation.name", origin.operation);
  s.attribute("gen_ai.provider.name", "quire");
  s.attribute("gen_ai.request.model", model);
  s.attribute("server.address", by.host);
  s.attribute("server.port", by.port);
  s.attribute("http.request.method", origin.method);
  s.attribute("http.route", origin.route);
  s.attribute("http.response.status_code", status);
  s.attribute("quire.request.id", origin.request_id);
  return s;
}

void add_request(Span& s, const GenerationRequest& a) {
  if (a.tokens_max) s.attribute("gen_ai.request.max_tokens", *a.tokens_max);
  s.attribute("gen_ai.request.temperature", as_written(a.sampling.temperature));
  s.attribute("gen_ai.request.top_p", as_written(a.sampling.top_p));
  if (a.sampling.top_k > 0) s.attribute("gen_ai.request.top_k", a.sampling.top_k);
  if (a.seeded) s.attribute("gen_ai.request.seed", static_cast<std::int64_t>(a.sampling.seed));
  if (a.n != 1) s.attribute("gen_ai.request.choice.count", a.n);
  s.attribute("gen_ai.request.stream", a.stream);
  if (a.sampling.frequency_penalty != 0)
    s.attribute("gen_ai.request.frequency_penalty", as_written(a.sampling.frequency_penalty));
  if (a.sampling.presence_penalty != 0)
    s.attribute("gen_ai.request.presence_penalty", as_written(a.sampling.presence_penalty));
  const bool json = a.grammar.kind == AnswerGrammar::Kind::json_object ||
                    a.grammar.kind == AnswerGrammar::Kind::json_schema;
  s.attribute("gen_ai.output.type", json ? "json" : "text");
}

void add_response(Span& s, const GenerationSummary& g, const ServedBy& by) {
  s.attribute("gen_ai.response.model", by.model);
  s.attribute("gen_ai.response.id", g.response_id);
  if (!g.finishes.empty()) s.attribute("gen_ai.response.finish_reasons", g.finishes);
  s.attribute("gen_ai.usage.input_tokens", g.usage.prompt);
  s.attribute("gen_ai.usage.output_tokens", g.usage.completion);
  s.attribute("gen_ai.usage.cache_read.input_tokens", g.usage.cached);
  s.attribute("gen_ai.usage.cache_write.input_tokens", g.usage.written);
  s.attribute("gen_ai.usage.cache_creation.input_tokens", g.usage.written);  // its older name
  if (g.timed) s.attribute("gen_ai.response.time_to_first_chunk", g.ttft_ms / 1e3);
  if (!g.error_code.empty()) s.attribute("error.type", g.error_code);
  s.attribute("kv.outcome", g.outcome);
  s.attribute("kv.reason", reason_name(g.reason));
  s.attribute("kv.cached.cpu", g.usage.cached - g.usage.loaded);
  s.attribute("kv.cached.disk", g.usage.loaded - g.usage.remote);
  s.attribute("kv.cached.remote", g.usage.remote);
  s.attribute("kv.format", by.kv_format);
  s.attribute("kv.lossy", false);
}

}  // namespace

Json plain_line(const Origin& o, int status, Nanoseconds now) {
  return {{"ts", rfc3339(unix_now_ns())},
          {"level", status >= 500 ? "error" : "info"},
          {"request_id", o.request_id},
          {"trace_id", o.trace.trace_id},
          {"tenant", o.tenant},
          {"key_id", o.key_id},
          {"method", o.method},
          {"route", o.route},
          {"status", status},
          {"bytes_in", o.bytes_in},
          {"total_ms", to_ms(now - o.began)}};
}

Json generation_line(const Origin& o, const GenerationRequest& asked, const GenerationSummary& s,
                     const ServedBy& by, std::uint64_t bytes_out, Nanoseconds now) {
  return {{"ts", rfc3339(unix_now_ns())},
          {"level", s.status >= 500 ? "error" : "info"},
          {"request_id", o.request_id},
          {"trace_id", o.trace.trace_id},
          {"tenant", asked.kv.policy.tenant},
          {"key_id", o.key_id},
          {"dialect", o.dialect},
          {"route", o.route},
          {"status", s.status},
          {"stream", asked.stream},
          {"model", asked.model},
          {"adapter",
           asked.kv.policy.adapter_names.empty() ? Json() : Json(asked.kv.policy.adapter_names)},
          {"prompt_tokens", s.usage.prompt},
          {"cached_tokens", s.usage.cached},
          {"cached_by_tier", cached_by_tier(s.usage)},
          {"written_tokens", s.usage.written},
          {"completion_tokens", s.usage.completion},
          {"n", s.choices},
          {"finish", s.finishes.empty() ? "" : s.finishes.front()},
          {"queue_ms", s.queue_ms},
          {"lookup_ms", s.lookup_ms},
          {"load_ms", s.load_ms},
          {"prefill_ms", s.prefill_ms},
          {"ttft_ms", s.ttft_ms},
          {"decode_ms", s.decode_ms},
          {"tpot_ms_p50", s.tpot_ms_p50},
          {"tpot_ms_p99", s.tpot_ms_p99},
          {"total_ms", to_ms(now - o.began)},
          {"kv_outcome", s.outcome},
          {"kv_reason", reason_name(s.reason)},
          {"kv_format", by.kv_format},
          {"session", asked.kv.session.empty() ? Json() : Json(asked.kv.session)},
          {"preemptions", s.preemptions},
          {"client_closed", s.client_closed},
          {"bytes_in", o.bytes_in},
          {"bytes_out", bytes_out},
          {"error_code", s.error_code}};
}

Span refused_span(const Origin& origin, const ServedBy& by, int status, Nanoseconds now) {
  Span s = own_span(origin, by, by.model, status, now);
  s.attribute("error.type", std::to_string(status));
  return s;
}

std::vector<Span> generation_spans(const Origin& origin, const GenerationRequest& asked,
                                   const GenerationSummary& g, const ServedBy& by,
                                   Nanoseconds now) {
  std::vector<Span> all{own_span(origin, by, asked.model, g.status, now)};
  add_request(all[0], asked);
  add_response(all[0], g, by);
  if (!g.timed) return all;  // it never came to an end in the engine

  const std::int64_t submitted = g.submitted + (all[0].end_unix_ns - now);
  const auto at = [&](double ms) { return submitted + static_cast<std::int64_t>(ms * 1e6); };
  const auto part = [&](const char* name, double from_ms, double to_ms) -> Span& {
    return all.emplace_back(Span{.name = name,
                                 .trace_id = origin.trace.trace_id,
                                 .span_id = random_hex(16),
                                 .parent_id = origin.span_id,
                                 .state = origin.trace.state,
                                 .start_unix_ns = at(from_ms),
                                 .end_unix_ns = at(to_ms)});
  };
  const double admitted = g.queue_ms, read = admitted + g.prefill_ms;
  part("queue", 0, admitted);
  Span& lookup = part("kv.lookup", admitted, std::min(admitted + g.lookup_ms, read));
  lookup.attribute("kv.outcome", g.outcome);
  lookup.attribute("kv.reason", reason_name(g.reason));
  lookup.attribute("kv.cached_tokens", g.usage.cached);
  part("prefill", admitted, read).attribute("kv.computed_tokens", g.usage.prompt - g.usage.cached);
  // Blocks are stored as they fill, while the prompt is read.
  if (g.usage.written > 0)
    part("kv.write", admitted, read).attribute("kv.written_tokens", g.usage.written);
  part("decode", read, read + g.decode_ms)
      .attribute("gen_ai.usage.output_tokens", g.usage.completion);
  return all;
}

}  // namespace quire
