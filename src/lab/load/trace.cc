// Recorded traces: one JSON object a line becomes a session of one turn.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "base/random.h"
#include "lab/load/workload.h"

namespace quire::load {
namespace {

constexpr std::uint32_t kHashTokens = 512;  // what one id of a published block trace stands for

std::uint32_t trace_number(const Json& line, const char* key, std::uint32_t fallback) {
  const auto it = line.find(key);
  if (it == line.end() || !it->is_number()) return fallback;
  return static_cast<std::uint32_t>(std::clamp(it->get<double>(), 0.0, 1e6));
}

double seconds(const Json& line) {
  if (const auto at = line.find("at"); at != line.end() && at->is_number()) return *at;
  if (const auto ms = line.find("timestamp"); ms != line.end() && ms->is_number())
    return ms->get<double>() / 1000;
  return 0;
}

std::string text_of(const Json& content) {
  if (content.is_string()) return content;
  std::string text;
  if (content.is_array())
    for (const Json& part : content)
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        text += part["text"].get<std::string>();
  return text;
}

Part part_of(const Json& message) {
  if (!message.is_object()) return {};
  const auto role = message.find("role"), content = message.find("content");
  return {role != message.end() && role->is_string() ? role->get<std::string>() : "user", 0, 0,
          content != message.end() ? text_of(*content) : ""};
}

Result<SessionPlan> session_of(const Json& line, std::uint64_t number_in_file) {
  SessionPlan session{.start_s = seconds(line), .opening = {}, .turns = {}};
  TurnPlan turn;
  turn.output_tokens =
      std::max(trace_number(line, "output_tokens", trace_number(line, "output_length", 64)), 1u);
  const std::uint64_t own = mix64(0x7ace ^ mix64(number_in_file));
  if (const auto ids = line.find("hash_ids"); ids != line.end() && ids->is_array()) {
    std::uint32_t left = trace_number(line, "input_length", 0);
    for (const Json& id : *ids) {
      if (!id.is_number_integer()) return Error{Code::corrupt, "hash_ids holds no numbers"};
      const std::uint32_t tokens = std::min(left, kHashTokens);
      if (tokens == 0) break;
      session.opening.push_back({"user", mix64(id.get<std::uint64_t>()), tokens, {}});
      left -= tokens;
    }
    turn.adds = {"user", own, std::max(left, 1u), {}};
  } else if (const auto messages = line.find("messages");
             messages != line.end() && messages->is_array() && !messages->empty()) {
    for (std::size_t i = 0; i + 1 < messages->size(); ++i)
      session.opening.push_back(part_of((*messages)[i]));
    turn.adds = part_of(messages->back());
  } else if (line.contains("prompt") && line["prompt"].is_string()) {
    turn.adds = {"user", 0, 0, line["prompt"]};
  } else {
    turn.adds = {
        "user", own, trace_number(line, "input_tokens", trace_number(line, "input_length", 0)), {}};
  }
  if (turn.adds.text.empty() && turn.adds.tokens == 0)
    return Error{Code::corrupt,
                 "it has no prompt: give messages, prompt, input_tokens or input_length"};
  session.turns.push_back(std::move(turn));
  return session;
}

}  // namespace

Result<Workload> parse_trace(std::string_view lines, std::string_view name) {
  Workload workload{"trace", {}};
  for (std::size_t n = 1; !lines.empty(); ++n) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto bad = [&](const std::string& why) {
      return Error{Code::corrupt, fmt::format("{} line {}: {}", name, n, why)};
    };
    const auto json = parse_json(line);
    if (!json.ok()) return bad(json.error().message);
    if (!json.value().is_object()) return bad("it is not a JSON object");
    auto session = session_of(json.value(), n);
    if (!session.ok()) return bad(session.error().message);
    workload.sessions.push_back(std::move(session.value()));
  }
  if (workload.sessions.empty())
    return Error{Code::corrupt, fmt::format("{}: holds no request", name)};
  std::stable_sort(workload.sessions.begin(), workload.sessions.end(),
                   [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
  const double first = workload.sessions.front().start_s;
  for (SessionPlan& s : workload.sessions) s.start_s -= first;
  return workload;
}

}  // namespace quire::load
