#include "replay/mooncake.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "replay/lines.h"

namespace quire {
namespace {

constexpr std::uint64_t kIdsMax = 1u << 28, kRequestsMax = 1u << 24;  // in one file
constexpr std::uint64_t kTokensMax = 1u << 28;                        // of one request

Result<std::uint64_t> trace_count(const Json& line, const char* name, std::uint64_t max) {
  const auto it = line.find(name);
  if (it == line.end() || !it->is_number())
    return Error{Code::corrupt, fmt::format("it has no number '{}'", name)};
  const double value = it->get<double>();
  if (!(value >= 0 && value <= static_cast<double>(max)))
    return Error{Code::corrupt, fmt::format("'{}' is not between 0 and {}", name, max)};
  return static_cast<std::uint64_t>(value);
}

}  // namespace

Result<TraceRequest> parse_mooncake(std::string_view line) {
  TRY(const Json json, parse_json(line, {.depth_max = 8, .object_keys_max = 256}));
  if (!json.is_object()) return Error{Code::corrupt, "it is not a JSON object"};
  TRY(const std::uint64_t ms, trace_count(json, "timestamp", std::uint64_t{1} << 42));
  TRY(const std::uint64_t input, trace_count(json, "input_length", kTokensMax));
  TRY(const std::uint64_t output, trace_count(json, "output_length", kTokensMax));
  TraceRequest request{.arrival = static_cast<Nanoseconds>(ms) * 1'000'000,
                       .input_tokens = static_cast<std::uint32_t>(input),
                       .output_tokens = static_cast<std::uint32_t>(output)};
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array())
    return Error{Code::corrupt, "it has no list 'hash_ids'"};
  request.chain.ids.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) return Error{Code::corrupt, "'hash_ids' holds no whole numbers"};
    request.chain.ids.push_back(id.get<std::uint64_t>());
  }
  return request;
}

Result<std::vector<TraceRequest>> read_mooncake(const std::string& path) {
  TRY(LineReader lines, LineReader::open(path));
  return read_mooncake(std::move(lines));
}

Result<std::vector<TraceRequest>> read_mooncake(LineReader lines) {
  const std::string path = lines.path();
  std::vector<TraceRequest> trace;
  std::uint64_t ids = 0;
  for (;;) {
    TRY(const std::optional<std::string_view> line, lines.next());
    if (!line) break;
    if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<TraceRequest> request = parse_mooncake(*line);
    if (!request.ok())
      return Error{Code::corrupt,
                   fmt::format("{} line {}: {}", path, lines.number(), request.error().message)};
    ids += request.value().chain.ids.size();
    if (ids > kIdsMax || trace.size() == kRequestsMax)
      return Error{Code::exhausted, fmt::format("{}: more than {} blocks or {} requests", path,
                                                kIdsMax, kRequestsMax)};
    trace.push_back(std::move(request.value()));
  }
  if (trace.empty()) return Error{Code::corrupt, fmt::format("{}: holds no request", path)};
  std::stable_sort(trace.begin(), trace.end(),
                   [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  const Nanoseconds first = trace.front().arrival;
  for (TraceRequest& r : trace) r.arrival -= first;
  return trace;
}

}  // namespace quire
