#include "kv/select/policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/number.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

constexpr SelectMethod kSelectMethods[] = {
    {"quest", "Quest, 2406.10774",
     "a token of an answer reads the pages whose keys could match its queries best", "decode"},
    {"xattention", "XAttention, 2503.16428",
     "a block of a prompt reads the blocks with most of its attention, guessed by antidiagonals",
     "prompt"},
    {"vertical-slash", "after MInference, 2407.02490",
     "a block of a prompt reads the columns and diagonals that its last queries look at", "prompt"},
};

bool retains_too(const SelectPolicy& p, const SelectUse& use) { return p.answers() && use.retains; }
bool select_beams(const SelectPolicy& p, const SelectUse& use) {
  return p.answers() && use.beams > 0;
}
bool select_on_device(const SelectPolicy&, const SelectUse& use) { return use.device; }
bool select_no_lanes(const SelectPolicy&, const SelectUse& use) {
  return has_no_lanes(*use.geometry);
}
bool select_rows_beside(const SelectPolicy&, const SelectUse& use) {
  return keeps_rows(*use.geometry);
}
bool select_many_groups(const SelectPolicy&, const SelectUse& use) {
  return retained_groups(*use.geometry) > 1;
}
bool select_nothing_grows(const SelectPolicy&, const SelectUse& use) {
  return retained_groups(*use.geometry) == 0;
}

constexpr SelectRule kSelectRules[] = {
    {"formats",
     "any whose keys are stored after RoPE, whole pages are read as they are; kvquant, coupled and "
     "minicache, whose layers share pages, are refused",
     select_no_lanes},
    {"recent_exact and sinks of a format",
     "rows kept beside a lossy format would be read twice: leave recent_exact and sinks out",
     select_rows_beside},
    {"plans and skip_layers of a format", "all layers that see everything must be stored alike",
     select_many_groups},
    {"models with windows", "their window layers are left alone; one layer must see everything",
     select_nothing_grows},
    {"kv.budget", "quest reads what is there, a budget drops it: give one of them", retains_too},
    {"prefix sharing",
     "quest leaves prompts, and what is cached of them, alone; a prompt read by xattention or "
     "vertical-slash shares whole blocks with those that were read alike. Answers are private"},
    {"preemption",
     "an answer by quest is parked; sparse prompts are computed again, block by block"},
    {"n and best_of", "choices share the prompt; each reads what it chooses"},
    {"speculative decoding", "answers are made token by token: there are no drafts"},
    {"beam search", "beams share and part too often: quest is refused", select_beams},
    {"GPU", "pages are chosen on the CPU only: refused", select_on_device},
};

}  // namespace

std::span<const SelectMethod> select_methods() { return kSelectMethods; }
std::span<const SelectRule> select_rules() { return kSelectRules; }

std::uint32_t SelectPolicy::pages(std::uint32_t prompt, std::uint32_t tokens_per_block) const {
  const std::uint32_t wanted = share > 0 ? budget_slots(prompt, share) : tokens;
  return (wanted + tokens_per_block - 1) / tokens_per_block;
}

std::string SelectPolicy::text() const {
  if (prefill.way == SparsePrefill::Way::antidiagonals)
    return fmt::format("{}:{:g}", name, prefill.threshold);
  if (prefill.way == SparsePrefill::Way::vertical_slash)
    return fmt::format("{}:{}+{}", name, prefill.columns, prefill.diagonals);
  return share > 0 ? fmt::format("{}:{:g}%", name, 100 * share)
                   : fmt::format("{}:{}", name, tokens);
}

Result<SelectPolicy> make_select_policy(const SelectAsk& ask) {
  SelectPolicy p{.name = ask.policy};
  const bool counts = ask.tokens || ask.ratio, slashes = ask.columns || ask.diagonals;
  const auto odd = [&](std::string_view wants) {
    return Error{Code::invalid, fmt::format("{}: say {}, and nothing else", p.name, wants)};
  };
  if (p.name == "quest") {
    if (slashes || ask.threshold || ask.tokens.has_value() == ask.ratio.has_value())
      return odd("how much is read, as tokens or as ratio");
    if (ask.ratio && !(*ask.ratio > 0 && *ask.ratio <= 1))
      return Error{Code::invalid, "quest: ratio must be above 0 and at most 1"};
    if (ask.tokens && *ask.tokens == 0)
      return Error{Code::invalid, "quest: at least one token must be read"};
    p.share = ask.ratio.value_or(0);
    p.tokens = ask.tokens.value_or(0);
  } else if (p.name == "xattention") {
    if (counts || slashes) return odd("threshold");
    p.prefill.way = SparsePrefill::Way::antidiagonals;
    p.prefill.threshold = static_cast<float>(ask.threshold.value_or(0.9));
    if (!(p.prefill.threshold > 0 && p.prefill.threshold <= 1))
      return Error{Code::invalid, "xattention: threshold must be above 0 and at most 1"};
  } else if (p.name == "vertical-slash") {
    if (counts || ask.threshold) return odd("columns and diagonals");
    p.prefill.way = SparsePrefill::Way::vertical_slash;
    p.prefill.columns = ask.columns.value_or(256);
    p.prefill.diagonals = ask.diagonals.value_or(512);
    if (p.prefill.columns == 0 || p.prefill.diagonals == 0)
      return Error{Code::invalid, "vertical-slash: at least one column and one diagonal"};
  } else {
    std::string known;
    for (const SelectMethod& m : kSelectMethods) known += ' ' + std::string(m.name);
    return Error{Code::not_found, "no way to select '" + p.name + "'; there are:" + known};
  }
  return p;
}

SelectPolicy select_policy(const SparsePrefill& prefill) {
  const bool slashes = prefill.way == SparsePrefill::Way::vertical_slash;
  return {.name = slashes ? "vertical-slash" : "xattention", .prefill = prefill};
}

Result<SelectPolicy> parse_select_policy(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  SelectAsk ask{.policy = std::string(text.substr(0, colon))};
  std::string_view amount = text.substr(std::min(colon + 1, text.size()));
  const Error unreadable{Code::invalid,
                         fmt::format("'{}' is not understood; write quest:512, quest:20%, "
                                     "xattention:0.9 or vertical-slash:256+512",
                                     text)};
  double number = 0;
  std::uint32_t columns = 0, diagonals = 0;
  if (const std::size_t plus = amount.find('+'); plus != amount.npos) {
    if (!parse_number(amount.substr(0, plus), columns) ||
        !parse_number(amount.substr(plus + 1), diagonals))
      return unreadable;
    ask.columns = columns;
    ask.diagonals = diagonals;
  } else if (amount.ends_with('%')) {
    amount.remove_suffix(1);
    if (!parse_number(amount, number)) return unreadable;
    (ask.policy == "xattention" ? ask.threshold : ask.ratio) = number / 100;
  } else if (!amount.empty()) {
    if (!parse_number(amount, number) || number < 0 || number >= 4294967296.0) return unreadable;
    if (ask.policy == "xattention")
      ask.threshold = number;
    else if (number < 1)
      ask.ratio = number;
    else
      ask.tokens = static_cast<std::uint32_t>(number);
  }
  return make_select_policy(ask);
}

Status check_select(const SelectPolicy& policy, const SelectUse& use) {
  return check_rules(std::span<const SelectRule>(kSelectRules), policy, use);
}

}  // namespace quire
