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

}  // namespace

std::span<const SelectMethod> select_methods() { return kSelectMethods; }

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
    return Error{Code::invalid, fmt::format("{}: give {}, and nothing else", p.name, wants)};
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

}  // namespace quire
