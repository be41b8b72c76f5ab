#include "kv/retain/policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/number.h"

namespace quire {
namespace {

struct Alias {
  std::string_view theirs, ours;
};
constexpr Alias kAliases[] = {{"pyramid", "pyramidkv"},
                              {"adakv", "ada-snapkv"},
                              {"streamingllm", "streaming"},
                              {"expected-attention", "expected"}};

std::string method_name(const RetainAsk& ask) {
  std::string name = ask.policy;
  for (const auto& [theirs, ours] : kAliases)
    if (name == theirs) name = ours;
  return ask.per_head && !name.starts_with("ada-") ? "ada-" + name : name;
}

Error unreadable(std::string_view text, std::string_view part) {
  return {
      Code::invalid,
      fmt::format("'{}': '{}' is not understood; write METHOD:TOKENS or METHOD:SHARE%, then "
                  ",sink=N ,recent=N ,every=N ,cut=N ,merge=NAME as wanted, for example snapkv:20%",
                  text, part)};
}

Status parse_option(std::string_view text, std::string_view part, RetainAsk& ask) {
  const std::size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  const std::string_view value = equals == part.npos ? "" : part.substr(equals + 1);
  struct Number {
    std::string_view name;
    std::optional<std::uint32_t> RetainAsk::*field;
  };
  constexpr Number kNumbers[] = {{"sink", &RetainAsk::sink},
                                 {"recent", &RetainAsk::recent},
                                 {"every", &RetainAsk::every},
                                 {"cut", &RetainAsk::cut}};
  for (const Number& n : kNumbers) {
    if (name != n.name) continue;
    std::uint32_t number = 0;
    if (!parse_number(value, number)) return unreadable(text, part);
    ask.*n.field = number;
    return {};
  }
  if (name != "merge" || value.empty()) return unreadable(text, part);
  ask.merge = value;
  return {};
}

}  // namespace

bool retains(const LayerGroup& group) { return group.kind == GroupKind::full && group.window == 0; }

std::size_t retained_groups(const Geometry& geometry) {
  return static_cast<std::size_t>(std::ranges::count_if(geometry.groups, retains));
}

bool has_no_lanes(const Geometry& geometry) {
  return std::ranges::any_of(geometry.groups, [](const LayerGroup& g) {
    return retains(g) && (g.format->keys->calibrated || g.layers_per_page() > 1);
  });
}

bool keeps_rows(const Geometry& geometry) {
  return std::ranges::any_of(geometry.groups, [](const LayerGroup& g) {
    return g.kind == GroupKind::recent && !g.open_only();
  });
}

std::uint32_t RetainPolicy::budget(std::uint32_t prompt) const {
  return share > 0 ? budget_slots(prompt, share) : tokens;
}

Signal RetainPolicy::needs() const {
  return merger ? method.needs | merger->needs | Signal::keys | Signal::values : method.needs;
}

std::uint32_t RetainPolicy::prompt_queries() const {
  const Signal all = Signal::total_mass | Signal::query_moments;
  if (asks(needs(), all)) return kAllQueries;
  const Signal last = Signal::window_mass | Signal::below_counts;
  return asks(needs(), last) ? method.window : 0;
}

bool RetainPolicy::endless() const {
  return method.pages == RetainPages::same_slots && method.needs == Signal::none && every > 0;
}

std::string RetainPolicy::text() const {
  std::string out =
      share > 0 ? fmt::format("{}:{:g}%", name, 100 * share) : fmt::format("{}:{}", name, tokens);
  const RetainMethod plain = find_retain_method(name).value();
  if (method.sinks != plain.sinks) out += fmt::format(",sink={}", method.sinks);
  if (method.recent != plain.recent) out += fmt::format(",recent={}", method.recent);
  if (every != (plain.when == RetainWhen::prompt_end ? 0 : 1))
    out += fmt::format(",every={}", every);
  if (cut > 0) out += fmt::format(",cut={}", cut);
  if (merger) out += fmt::format(",merge={}", merger->name);
  return out;
}

Result<RetainPolicy> make_retain_policy(const RetainAsk& ask) {
  RetainPolicy p{.name = method_name(ask)};
  TRY(p.method, find_retain_method(p.name));
  if (asks(p.method.needs, Signal::marks) && p.name == "oracle")
    return Error{Code::invalid, "oracle is told where the answer stands: for comparisons only"};
  if (ask.tokens.has_value() == ask.ratio.has_value())
    return Error{Code::invalid, p.name + ": say how much stays, as tokens or as ratio"};
  if (ask.ratio && !(*ask.ratio > 0 && *ask.ratio <= 1))
    return Error{Code::invalid, p.name + ": ratio must be above 0 and at most 1"};
  if (ask.tokens && *ask.tokens == 0)
    return Error{Code::invalid, p.name + ": at least one token must stay"};
  p.share = ask.ratio.value_or(0);
  p.tokens = ask.tokens.value_or(0);
  p.method.sinks = ask.sink.value_or(p.method.sinks);
  p.method.recent = ask.recent.value_or(p.method.recent);
  if (ask.tokens && std::uint64_t{ask.sink.value_or(0)} + ask.recent.value_or(0) > *ask.tokens)
    return Error{Code::invalid, fmt::format("{}: {} first and {} recent tokens are more than {}",
                                            p.name, p.method.sinks, p.method.recent, p.tokens)};
  p.every = ask.every.value_or(p.method.when == RetainWhen::prompt_end ? 0 : 1);
  if (p.every > 0 && asks(p.method.needs, Signal::peak_mass | Signal::query_moments))
    return Error{Code::invalid,
                 p.name + ": reads the whole prompt to decide, so it runs once; leave every out"};
  p.cut = ask.cut.value_or(0);
  if (!ask.merge.empty()) {
    TRY(p.merger, find_merger(ask.merge));
  }
  return p;
}

Result<RetainPolicy> parse_retain_policy(std::string_view text) {
  RetainAsk ask;
  std::string_view rest = text;
  const auto next = [&](char end) {
    const std::size_t at = std::min(rest.find(end), rest.size());
    const std::string_view part = rest.substr(0, at);
    rest.remove_prefix(std::min(at + 1, rest.size()));
    return part;
  };
  ask.policy = next(':');
  std::string_view amount = next(',');
  double number = 0;
  const bool percent = amount.ends_with('%');
  if (percent) amount.remove_suffix(1);
  if (!parse_number(amount, number)) return unreadable(text, amount);
  if (percent)
    ask.ratio = number / 100;
  else if (number > 0 && number < 1)
    ask.ratio = number;
  else if (number >= 0 && number < 4294967296.0 &&
           number == static_cast<double>(static_cast<std::uint32_t>(number)))
    ask.tokens = static_cast<std::uint32_t>(number);
  else
    return unreadable(text, amount);
  while (!rest.empty()) TRY_STATUS(parse_option(text, next(','), ask));
  return make_retain_policy(ask);
}

std::string window_policy(std::uint32_t size, std::uint32_t sink) {
  return fmt::format("streaming:{},sink={}", std::uint64_t{size} + sink, sink);
}

}  // namespace quire
