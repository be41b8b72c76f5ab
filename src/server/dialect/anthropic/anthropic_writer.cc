#include "server/dialect/anthropic/anthropic_writer.h"

#include <fmt/core.h>

#include <algorithm>

#include "net/http.h"
#include "server/cache_diagnostics.h"
#include "server/ids.h"

namespace quire::anthropic {
namespace {

constexpr std::size_t kLookBack =
    20;  // blocks before a breakpoint in which the vendor finds entries
constexpr Nanoseconds kHour = 3'600'000'000'000;
constexpr std::string_view kPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

std::string event(std::string_view name, Json data) { return sse(dump(data), name); }

// The arguments of a call that was cut short are no JSON.
Json call_input(const std::string& arguments) {
  auto parsed = parse_json(arguments, kRequestJson);
  return parsed.ok() && parsed.value().is_object() ? std::move(parsed.value()) : Json::object();
}

std::string tool_use_id() { return "toolu_" + random_hex(24); }

// The vendor finds what is cached only at the end of a block, at most 20 before a breakpoint.
std::uint64_t found_through_breakpoints(const Usage& u, const CacheReporting& r) {
  std::uint64_t found = 0;
  for (const KeptPrefix& mark : u.kept) {
    const auto end = std::ranges::upper_bound(r.parts, mark.tokens);
    const auto first = end - std::min<std::ptrdiff_t>(kLookBack + 1, end - r.parts.begin());
    for (auto part = first; part != end; ++part)
      if (*part >= r.tokens_min && *part / r.tokens_per_block * r.tokens_per_block <= u.cached)
        found = std::max(found, std::min<std::uint64_t>(*part, u.cached));
  }
  return found;
}

struct ErrorKind {
  int status;
  std::string_view type;
};

ErrorKind kind_of(const ApiError& e) {
  if (e.code == "queue_full") return {529, "overloaded_error"};
  switch (e.status) {
    case 401:
      return {401, "authentication_error"};
    case 403:
      return {403, "permission_error"};
    case 404:
      return {404, "not_found_error"};
    case 408:
    case 504:
      return {504, "timeout_error"};
    case 413:
      return {413, "request_too_large"};
    case 429:
      return {429, "rate_limit_error"};
    case 503:
    case 529:
      return {529, "overloaded_error"};
    default:
      return {e.status, e.status < 500 ? "invalid_request_error" : "api_error"};
  }
}

std::string words_of(const ApiError& e) {
  if (e.code == "model_not_found" && e.details.is_object())
    return "model: " + e.details["model"].get<std::string>();
  if (e.code == "context_length_exceeded" && e.details.is_object())
    return fmt::format("prompt is too long: {} tokens > {} maximum",
                       e.details["tokens"].get<std::uint64_t>(),
                       e.details["tokens_max"].get<std::uint64_t>());
  if (e.code == "missing_required_parameter") return e.param + ": Field required";
  return e.message;
}

Json error_json(const ApiError& e) {
  return {{"type", kind_of(e).type},
          {"message", words_of(e)},
          {"details", e.code.empty() ? Json() : Json{{"error_code", e.code}}}};
}

}  // namespace

PromptUsage prompt_usage(const Usage& u, const CacheReporting& reporting) {
  PromptUsage p;
  p.read = reporting.vendor ? found_through_breakpoints(u, reporting) : u.cached;
  std::uint64_t hour = p.read, all = p.read;  // what was there is not made again
  for (const KeptPrefix& k : u.kept) {
    if (!k.held) continue;
    if (k.ttl >= kHour) hour = std::max<std::uint64_t>(hour, k.whole);
    all = std::max<std::uint64_t>(all, k.whole);
  }
  all = std::max(all, hour);
  p.created_1h = hour - p.read;
  p.created_5m = all - hour;
  p.input = u.prompt - all;
  return p;
}

AnthropicWriter::AnthropicWriter(const GenerationRequest& asked, AnswerHead head)
    : head_(std::move(head)),
      id_(std::string(kMessageIdPrefix) + head_.id),
      tokens_max_(asked.tokens_max.value_or(0)) {
  // As long as the engine has not said more.
  if (!asked.compare_to.empty())
    diagnostics_ = anthropic_diagnostics({.change = CacheChange::unavailable});
}

void AnthropicWriter::explained(const Explanation& e) {
  if (!diagnostics_.is_null()) diagnostics_ = anthropic_diagnostics(diagnose_cache(e));
}

std::vector<HttpHeader> AnthropicWriter::headers(Nanoseconds) const {
  return {{"anthropic-organization-id", "local"}};
}

HttpResponse AnthropicWriter::stream_head() const { return sse_head(std::string(kPing)); }

Json AnthropicWriter::usage_json(const Usage& u) const {
  const PromptUsage p = prompt_usage(u, head_.cache);
  return {
      {"input_tokens", p.input},
      {"cache_creation_input_tokens", p.created_5m + p.created_1h},
      {"cache_read_input_tokens", p.read},
      {"cache_creation",
       {{"ephemeral_5m_input_tokens", p.created_5m}, {"ephemeral_1h_input_tokens", p.created_1h}}},
      {"output_tokens", u.completion},
      {"output_tokens_details", {{"thinking_tokens", u.reasoning}}},
      {"service_tier", "standard"},
      {"server_tool_use", nullptr},
      {"inference_geo", "local"}};
}

Json AnthropicWriter::message(Json content, const Usage& usage) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", head_.model},
          {"content", std::move(content)},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"stop_details", nullptr},
          {"container", nullptr},
          {"diagnostics", diagnostics_},
          {"usage", usage_json(usage)}};
}

std::string AnthropicWriter::stop_reason(FinishReason finish, const std::string& stop,
                                         const Usage& usage) const {
  if (!stop.empty()) return "stop_sequence";
  switch (finish) {
    case FinishReason::stop:
      return "end_turn";
    case FinishReason::tool_calls:
      return "tool_use";
    case FinishReason::length:
      return usage.completion < tokens_max_ ? "model_context_window_exceeded" : "max_tokens";
  }
  return "end_turn";
}

std::string AnthropicWriter::begin(const Usage& so_far) {
  return event("message_start",
               {{"type", "message_start"}, {"message", message(Json::array(), so_far)}});
}

std::string AnthropicWriter::start_block(Block kind, Json block) {
  std::string out = close_block();
  open_ = kind;
  out += event(
      "content_block_start",
      {{"type", "content_block_start"}, {"index", blocks_}, {"content_block", std::move(block)}});
  if (blocks_++ == 0) out += kPing;
  return out;
}

std::string AnthropicWriter::close_block() {
  if (open_ == Block::none) return {};
  std::string out;
  if (open_ == Block::thinking) out += delta({{"type", "signature_delta"}, {"signature", id_}});
  open_ = Block::none;
  return out +
         event("content_block_stop", {{"type", "content_block_stop"}, {"index", blocks_ - 1}});
}

std::string AnthropicWriter::delta(Json what) const {
  return event(
      "content_block_delta",
      {{"type", "content_block_delta"}, {"index", blocks_ - 1}, {"delta", std::move(what)}});
}

std::string AnthropicWriter::piece(const AnswerPiece& piece, const std::vector<PromptInfo>&,
                                   const Usage&) {
  std::string out;
  if (!piece.reasoning.empty()) {
    if (open_ != Block::thinking)
      out +=
          start_block(Block::thinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    out += delta({{"type", "thinking_delta"}, {"thinking", piece.reasoning}});
  }
  if (!piece.text.empty()) {
    if (open_ != Block::text) out += start_block(Block::text, {{"type", "text"}, {"text", ""}});
    out += delta({{"type", "text_delta"}, {"text", piece.text}});
  }
  for (const ToolPiece& t : piece.tools) {
    if (t.kind == ToolPiece::Kind::call)
      out += start_block(Block::tool, {{"type", "tool_use"},
                                       {"id", tool_use_id()},
                                       {"name", t.text},
                                       {"input", Json::object()}});
    else if (t.kind == ToolPiece::Kind::arguments)
      out += delta({{"type", "input_json_delta"}, {"partial_json", t.text}});
  }
  if (piece.finish) {
    out += close_block();
    finish_ = *piece.finish;
    stop_ = piece.stop;
  }
  return out;
}

std::string AnthropicWriter::end(const Usage& usage, const Json& kv) {
  Json last{{"type", "message_delta"},
            {"delta",
             {{"stop_reason", stop_reason(finish_, stop_, usage)},
              {"stop_sequence", stop_.empty() ? Json() : Json(stop_)},
              {"stop_details", nullptr},
              {"container", nullptr}}},
            {"usage", usage_json(usage)}};
  if (!kv.is_null()) last["kv"] = kv;
  return event("message_delta", std::move(last)) +
         event("message_stop", {{"type", "message_stop"}});
}

std::string AnthropicWriter::failure(const ApiError& error) {
  return event("error", {{"type", "error"}, {"error", error_json(error)}});
}

Json AnthropicWriter::whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>&,
                            const Usage& usage, const Json& kv) {
  const WholeAnswer& a = answers.front();
  Json content = Json::array();
  if (!a.reasoning.empty())
    content.push_back({{"type", "thinking"}, {"thinking", a.reasoning}, {"signature", id_}});
  if (!a.text.empty()) content.push_back({{"type", "text"}, {"text", a.text}});
  for (const WholeAnswer::Call& c : a.calls)
    content.push_back({{"type", "tool_use"},
                       {"id", tool_use_id()},
                       {"name", c.name},
                       {"input", call_input(c.arguments)}});
  Json out = message(std::move(content), usage);
  out["stop_reason"] = stop_reason(a.finish, a.stop, usage);
  if (!a.stop.empty()) out["stop_sequence"] = a.stop;
  if (!kv.is_null()) out["kv"] = kv;
  return out;
}

HttpResponse error_response(const ApiError& error, std::string_view request_id) {
  HttpResponse r =
      json_response({{"type", "error"},
                     {"error", error_json(error)},
                     {"request_id", request_id.empty() ? Json() : Json(std::string(request_id))}},
                    kind_of(error).status);
  r.headers.push_back({"anthropic-organization-id", "local"});
  if (error.retry_after_s > 0)
    r.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  if (error.status == 501) r.headers.push_back({"x-should-retry", "false"});
  return r;
}

}  // namespace quire::anthropic
