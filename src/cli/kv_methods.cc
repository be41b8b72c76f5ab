// cli/kv_methods.cc - `quire kv methods`: methods that keep some tokens, and what they combine
// with.
#include <fmt/core.h>

#include "cli/command.h"
#include "cli/model_options.h"
#include "engine/combine.h"
#include "kv/retain/policy.h"
#include "kv/select/policy.h"
#include "model/model.h"

namespace quire::cli {
namespace {

std::string signal_names(Signal needs) {
  constexpr std::pair<Signal, const char*> kNames[] = {{Signal::keys, "keys"},
                                                       {Signal::values, "values"},
                                                       {Signal::window_mass, "window_mass"},
                                                       {Signal::total_mass, "total_mass"},
                                                       {Signal::peak_mass, "peak_mass"},
                                                       {Signal::below_counts, "below_counts"},
                                                       {Signal::query_moments, "query_moments"},
                                                       {Signal::output_norms, "output_norms"},
                                                       {Signal::marks, "marks"}};
  std::string text;
  for (const auto& [signal, name] : kNames)
    if (asks(needs, signal)) text += (text.empty() ? "" : " ") + std::string(name);
  return text;
}

std::string_view when_name(RetainWhen when) {
  return when == RetainWhen::prompt_end   ? "prompt"
         : when == RetainWhen::block_seal ? "decode"
                                          : "prompt, decode";
}

std::string_view pages_name(RetainPages pages) {
  return pages == RetainPages::same_slots   ? "same tokens per layer"
         : pages == RetainPages::same_count ? "same count per head"
                                            : "ragged";
}

Json method_json(const RetainMethod& m) {
  const RetainPolicy p{.name = std::string(m.name), .method = m, .share = 0.5};
  const std::uint32_t queries = p.prompt_queries();
  Json hits = queries == 0 ? Json("all")
              : queries == RetainPolicy::kAllQueries
                  ? Json("none")
                  : Json(fmt::format("before the last {}", queries));
  return {{"method", m.name},
          {"source", m.source},
          {"summary", m.summary},
          {"when", when_name(m.when)},
          {"needs", signal_names(m.needs)},
          {"pages", pages_name(m.pages)},
          {"depends_on", m.shares == RetainClass::snapshot ? "prefix" : "question"},
          {"cached_tokens_served", hits}};
}

// Every way of storing this model, and whether single tokens of it can be kept.
Json formats_json(const ModelConfig& config, std::uint32_t block_size) {
  const RetainPolicy plain = parse_retain_policy("snapkv:20%").value();
  const RetainPolicy merging = parse_retain_policy("snapkv:20%,merge=value").value();
  Json out = Json::object();
  for (const Format* f : formats()) {
    const Geometry g = make_geometry(config, block_size, f);
    if (!check_geometry(g).ok()) continue;
    out[std::string(f->name)] = {
        {"retain", check_combination({.geometry = &g, .retain = &plain}).ok()},
        {"merge", check_combination({.geometry = &g, .retain = &merging}).ok()}};
  }
  return out;
}

Json rule_json(std::string_view with, bool refuses, std::string_view says) {
  return {{"with", with}, {"legal", refuses ? "not always" : "always"}, {"says", says}};
}

void print_rules(const Json& rules) {
  for (const Json& r : rules)
    fmt::print("  {}: {}\n", r["with"].get<std::string>(), r["says"].get<std::string>());
}

int run_kv_methods(const DescribeCli& o) {
  const auto path = find_model(o.model);
  if (!path.ok()) return fail(path.error());
  const auto source = ModelSource::open(path.value());
  if (!source.ok()) return fail(source.error());
  Json methods = Json::array(), merging = Json::array(), rules = Json::array();
  for (const RetainMethod* m : retain_methods()) methods.push_back(method_json(*m));
  for (const Merger* m : mergers())
    merging.push_back({{"merge", m->name}, {"source", m->source}, {"summary", m->summary}});
  Json selecting = Json::array();
  for (const SelectMethod& m : select_methods())
    selecting.push_back(
        {{"select", m.name}, {"source", m.source}, {"summary", m.summary}, {"when", m.when}});
  Json select_with = Json::array(), blend_with = Json::array(), convert_with = Json::array(),
       draft_with = Json::array(), pool_with = Json::array(), spill_with = Json::array();
  for (const CombineRule& r : combine_rules()) {
    Json* const lists[] = {&rules,      &select_with, &blend_with, &convert_with,
                           &draft_with, &pool_with,   &spill_with};
    lists[static_cast<std::size_t>(r.part)]->push_back(rule_json(r.with, r.refuses, r.says));
  }
  const Json by_format = formats_json(source.value().config(), o.block_size);
  if (o.json) {
    print_json({{"model", path.value()},
                {"methods", methods},
                {"wrappers", {"ada-", "critical-"}},
                {"mergers", merging},
                {"selectors", selecting},
                {"formats", by_format},
                {"composition", rules},
                {"select_composition", select_with},
                {"blend_composition", blend_with},
                {"convert_composition", convert_with},
                {"draft_composition", draft_with},
                {"pooling_composition", pool_with},
                {"resident_composition", spill_with}});
    return kOk;
  }
  fmt::print("  {:<15}{:<16}{}\n", "method", "acts at", "keeps");
  for (const Json& m : methods)
    fmt::print("  {:<15}{:<16}{}\n", m["method"].get<std::string>(), m["when"].get<std::string>(),
               m["summary"].get<std::string>());
  fmt::print(
      "\n  Before a name: ada- (heads of a layer share a budget), critical- (half by what "
      "values add).\n\n  {:<15}what happens to tokens that leave\n",
      "merge=");
  for (const Json& m : merging)
    fmt::print("  {:<15}{}\n", m["merge"].get<std::string>(), m["summary"].get<std::string>());
  fmt::print("\n  {:<15}{:<16}what is read; everything stays\n", "select", "acts at");
  for (const Json& m : selecting)
    fmt::print("  {:<15}{:<16}{}\n", m["select"].get<std::string>(), m["when"].get<std::string>(),
               m["summary"].get<std::string>());
  fmt::print("\n  What can be combined with keeping:\n");
  print_rules(rules);
  fmt::print("\n  and with selecting:\n");
  print_rules(select_with);
  fmt::print("\n  and with texts that are cached behind other prefixes (reuse: approximate):\n");
  print_rules(blend_with);
  fmt::print("\n  and with exact blocks that are encoded instead of computed (convert):\n");
  print_rules(convert_with);
  fmt::print("\n  and with drafts (speculative decoding):\n");
  print_rules(draft_with);
  fmt::print("\n  and with embeddings (pooling):\n");
  print_rules(pool_with);
  fmt::print("\n  and with contexts larger than memory (kv.resident):\n");
  print_rules(spill_with);
  std::string can, cannot;
  for (const auto& [name, legal] : by_format.items())
    (legal["retain"].get<bool>() ? can : cannot) += ' ' + name;
  fmt::print("\n  Formats of this model whose tokens can be kept singly:{}\n  and not:{}\n", can,
             cannot);
  return kOk;
}

std::function<int()> declare_kv_methods(CLI::App& app) {
  auto o = std::make_shared<DescribeCli>();
  add_describe_options(app, *o);
  return [o] { return run_kv_methods(*o); };
}

}  // namespace

extern const Command kKvMethods = {
    "kv methods", "the methods that keep, merge or drop tokens",
    "examples:\n"
    "  quire kv methods\n"
    "  quire run model.gguf \"...\" --kv-budget snapkv:20% --allow-lossy\n"
    "  quire run model.gguf \"...\" --kv-select quest:512 --allow-lossy\n"
    "  quire kv methods --json",
    declare_kv_methods};

}  // namespace quire::cli
