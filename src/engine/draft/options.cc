#include "engine/draft/options.h"

#include <fmt/format.h>

#include "base/json.h"
#include "engine/draft/source.h"

namespace quire {
namespace {

constexpr std::uint32_t kDraftTokensMax = 63, kLookupMax = 64;

// Which sources a method of vLLM's means.
Result<std::uint32_t> sources_of(const std::string& method) {
  const std::span<const DraftSourceKind> all = draft_sources();
  if (method == "none") return 0u;
  if (method == "auto") return (1u << all.size()) - 1;
  if (method == "suffix") return 1u | 1u << kCachedDrafts;  // this text and others
  std::string names;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == method) return 1u << i;
    names += fmt::format("{}, ", all[i].name);
  }
  return Error{
      Code::unsupported,
      fmt::format("speculative method '{}' is not supported; there are {}suffix, auto and none",
                  method, names)};
}

}  // namespace

Result<DraftOptions> parse_draft_options(std::string_view json) {
  TRY(const Json parsed, parse_json(json));
  if (!parsed.is_object())
    return Error{Code::invalid, R"(--speculative-config is an object: {"method": "ngram"})"};
  DraftOptions o;
  TRY(o.sources, sources_of("auto"));
  for (const auto& [key, value] : parsed.items()) {
    const auto number = [&](std::uint32_t least, std::uint32_t most, std::uint32_t& to) -> Status {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() < least ||
          value.get<std::uint64_t>() > most)
        return Error{Code::invalid, fmt::format("{} must be a number from {} to {}, not {}", key,
                                                least, most, value.dump())};
      to = value.get<std::uint32_t>();
      return {};
    };
    if (key == "method") {
      if (!value.is_string()) return Error{Code::invalid, "method must be a string"};
      TRY(o.sources, sources_of(value.get<std::string>()));
    } else if (key == "num_speculative_tokens") {
      TRY_STATUS(number(1, kDraftTokensMax, o.tokens_max));
    } else if (key == "prompt_lookup_min") {
      TRY_STATUS(number(1, kLookupMax, o.lookup_min));
    } else if (key == "prompt_lookup_max") {
      TRY_STATUS(number(1, kLookupMax, o.lookup_max));
    } else {
      return Error{Code::invalid,
                   fmt::format("'{}' is not a key of --speculative-config; there are method, "
                               "num_speculative_tokens, prompt_lookup_min and prompt_lookup_max",
                               key)};
    }
  }
  if (o.lookup_max < o.lookup_min) {
    if (parsed.contains("prompt_lookup_max") && parsed.contains("prompt_lookup_min"))
      return Error{Code::invalid, fmt::format("prompt_lookup_min {} is above prompt_lookup_max {}",
                                              o.lookup_min, o.lookup_max)};
    (parsed.contains("prompt_lookup_max") ? o.lookup_min : o.lookup_max) =
        parsed.contains("prompt_lookup_max") ? o.lookup_max : o.lookup_min;
  }
  return o;
}

}  // namespace quire
