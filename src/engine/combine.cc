#include "engine/combine.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {
namespace {

bool any_group(const Combination& c, bool (*is)(const LayerGroup&)) {
  return std::ranges::any_of(c.geometry->groups, is);
}

bool no_lanes(const Combination& c) { return has_no_lanes(*c.geometry); }
bool rows_beside(const Combination& c) { return keeps_rows(*c.geometry); }
bool many_groups(const Combination& c) { return retained_groups(*c.geometry) > 1; }
bool nothing_grows(const Combination& c) { return retained_groups(*c.geometry) == 0; }
bool no_page_work(const Combination& c) { return !c.page_work; }
bool has_beams(const Combination& c) { return c.beams > 0; }
bool drops(const Combination& c) { return c.retain != nullptr; }
bool scores(const Combination& c) { return c.scores; }

bool merges_codes(const Combination& c) {
  return c.retain->merger &&
         any_group(c, [](const LayerGroup& g) { return retains(g) && !g.format->exact; });
}
bool cuts_sparse(const Combination& c) { return c.geometry->sparse() && c.retain->cut > 0; }
bool outgrows(const Combination& c) {
  return c.retain->endless() &&
         std::uint64_t{c.retain->tokens} + c.retain->every + 4 * c.geometry->tokens_per_block >
             c.context;
}

bool blends_texts(const Combination& c) { return c.blends; }
bool converts_blocks(const Combination& c) { return c.converts; }

bool answers_drop(const Combination& c) { return c.select->answers() && c.retain; }
bool answers_have_beams(const Combination& c) { return c.select->answers() && c.beams > 0; }

bool not_exact(const Combination& c) { return !c.geometry->exact(); }
bool reads_some(const Combination& c) {
  return c.geometry->sparse() || (c.select && c.select->answers());
}
bool forgets(const Combination& c) {
  return any_group(c,
                   [](const LayerGroup& g) { return g.kind != GroupKind::full || g.window != 0; });
}

bool watches_answers(const Combination& c) {
  return c.retain && c.retain->every > 0 &&
         asks(c.retain->needs(), Signal::window_mass | Signal::below_counts);
}
bool answers_select(const Combination& c) { return c.select && c.select->answers(); }
bool has_state(const Combination& c) {
  return any_group(c, [](const LayerGroup& g) { return g.kind == GroupKind::state; });
}

bool selects(const Combination& c) { return c.select != nullptr; }
bool is_sparse(const Combination& c) { return c.geometry->sparse(); }
bool is_wide(const Combination& c) { return c.choices > 1 || c.beams > 0; }
bool no_tiers(const Combination& c) { return !c.tiers; }
bool not_stored(const Combination& c) { return !c.stored; }
bool in_session(const Combination& c) { return c.session; }
bool pools_states(const Combination& c) { return c.pools; }
bool no_cold(const Combination& c) { return !c.cold; }
bool spilled(const Combination& c) { return c.spills; }

constexpr std::string_view kAlike = "all layers that see everything must be stored alike";
constexpr std::string_view kWindows =
    "their window layers are left alone; one layer must see everything";
constexpr std::string_view kDrafts = "see the rules of drafts";

constexpr CombineRule kRules[] = {
    {Part::budget, "formats",
     "any whose keys are stored after RoPE; kivi and others with groups over tokens keep or drop "
     "whole blocks; kvquant, coupled and minicache, whose layers share pages, are refused",
     no_lanes},
    {Part::budget, "merging", "rows that stay are changed: needs an exact format (f16, bf16, f32)",
     merges_codes},
    {Part::budget, "recent_exact and sinks of a format",
     "rows kept beside a lossy format are not compacted: leave recent_exact and sinks of the "
     "format out, the method has its own",
     rows_beside},
    {Part::budget, "plans and skip_layers of a format", kAlike, many_groups},
    {Part::budget, "models with windows", kWindows, nothing_grows},
    {Part::budget, "sparse prompts",
     "tokens are chosen when the whole prompt has been read: a cut would drop blocks that it reads",
     cuts_sparse},
    {Part::budget, "prefix sharing",
     "the prompt reads and leaves cached blocks, up to the queries that the method must see; a "
     "copy "
     "is compacted, and what follows is private"},
    {Part::budget, "preemption",
     "a compacted sequence is parked; if its memory is needed, it is computed again from the "
     "start, "
     "with the same bits"},
    {Part::budget, "n and best_of",
     "choices share the tokens that stay of the prompt; then each drops its own"},
    {Part::budget, "endless text",
     "streaming and window start positions over, so a text may outgrow the model's context; what "
     "stays must be smaller than the context",
     outgrows},
    {Part::budget, "speculative decoding", kDrafts},
    {Part::budget, "beam search", "beams share and part too often: refused", has_beams},
    {Part::budget, "GPU", "lanes are read on the CPU only: refused", no_page_work},

    {Part::select, "formats",
     "any whose keys are stored after RoPE, whole pages are read as they are; kvquant, coupled and "
     "minicache, whose layers share pages, are refused",
     no_lanes},
    {Part::select, "recent_exact and sinks of a format",
     "rows kept beside a lossy format would be read twice: leave recent_exact and sinks out",
     rows_beside},
    {Part::select, "plans and skip_layers of a format", kAlike, many_groups},
    {Part::select, "models with windows", kWindows, nothing_grows},
    {Part::select, "kv.budget", "quest may read any token, a budget drops some: give one of them",
     answers_drop},
    {Part::select, "prefix sharing",
     "quest leaves prompts, and what is cached of them, alone; a prompt read by xattention or "
     "vertical-slash shares whole blocks with those that were read alike. Answers are private"},
    {Part::select, "preemption",
     "an answer by quest is parked, or computed again token by token; sparse prompts are computed "
     "again block by block"},
    {Part::select, "n and best_of", "choices share the prompt; each reads what it chooses"},
    {Part::select, "speculative decoding", kDrafts},
    {Part::select, "beam search", "beams share and part too often: quest is refused",
     answers_have_beams},
    {Part::select, "GPU", "pages are chosen on the CPU only: refused", no_page_work},

    {Part::approximate, "formats",
     "keys are rotated and some tokens are computed again, which codes do not allow: needs an "
     "exact "
     "format (f16, bf16, f32)",
     not_exact},
    {Part::approximate, "models with windows",
     "window layers do not keep every row of a text: refused", forgets},
    {Part::approximate, "kv.budget",
     "methods look at queries of the whole prompt, which is not computed: give one of them", drops},
    {Part::approximate, "kv.select", "copied texts were read as a whole: give one of them",
     reads_some},
    {Part::approximate, "prompt_logprobs", "not every token of the prompt is computed: refused",
     scores},
    {Part::approximate, "prefix sharing",
     "equal prefixes are shared; copied texts, and what follows them, are private"},
    {Part::approximate, "preemption",
     "such a sequence is parked; if its memory is needed, the prompt is read without reuse"},
    {Part::approximate, "n, best_of and beam search", "they share the copied texts"},
    {Part::approximate, "GPU", "rows are copied on the CPU only: refused", no_page_work},

    {Part::convert, "formats", "in an exact format there is nothing to convert: ignored"},
    {Part::convert, "n, best_of and beam search", "only a single answer converts; others compute"},
    {Part::convert, "the same answer",
     "what is converted depends on what is cached, and so does the answer: kv.approximate says so"},

    {Part::draft, "formats",
     "any: rows of a block that a draft would fill are kept until the draft is accepted"},
    {Part::draft, "sampling, penalties, grammars, log-probabilities and n",
     "the model's own draw decides, so tokens are those of an answer without drafts"},
    {Part::draft, "kv.budget",
     "a draft ends where the method drops tokens; methods that look at the last queries of answers "
     "have no drafts",
     watches_answers},
    {Part::draft, "kv.select", "answers that choose what they read have no drafts", answers_select},
    {Part::draft, "beam search", "beams have no drafts", has_beams},
    {Part::draft, "kv.resident", "a sequence with cold blocks has no drafts", spilled},
    {Part::draft, "models with recurrent state",
     "a state holds all tokens of a step or none: no drafts", has_state},
    {Part::draft, "preemption",
     "no sequence is preempted for a draft: without room there is no draft"},
    {Part::draft, "prefix sharing", "only tokens that were accepted are left for others"},

    {Part::pooling, "formats", "any: states are those of the prompt as it was stored"},
    {Part::pooling, "prefix sharing",
     "the last token's state reads cached blocks; mean and cls read the whole prompt, because a "
     "hit "
     "computes no states"},
    {Part::pooling, "preemption", "states that were pooled stay; tokens are computed again"},
    {Part::pooling, "kv.budget", "an embedding has no answer that could read less: refused", drops},
    {Part::pooling, "kv.select", "an embedding has no answer that could choose: refused",
     answers_select},
    {Part::pooling, "approximate reuse", "not every token of the prompt is computed: refused",
     blends_texts},
    {Part::pooling, "kv.convert", "encoding blocks computes no states: refused", converts_blocks},
    {Part::pooling, "GPU", "states are kept on the CPU only: refused", no_page_work},

    {Part::resident, "tiers",
     "cold blocks need a place: start the server with --kv-dir FOLDER or --kv-store URL", no_tiers},
    {Part::resident, "kv.tiers and kv.write",
     "blocks go to every tier of the server: leave out kv.tiers and kv.write", not_stored},
    {Part::resident, "formats",
     "any whose keys are stored after RoPE; kvquant, coupled and minicache, whose layers share "
     "pages, are refused",
     no_lanes},
    {Part::resident, "recent_exact and sinks of a format",
     "rows kept beside a lossy format stay in memory as its blocks leave: leave them out",
     rows_beside},
    {Part::resident, "plans and skip_layers of a format", kAlike, many_groups},
    {Part::resident, "models with windows",
     "window layers stay in memory, so that what is stored of a prompt is computed again; one "
     "layer "
     "must see everything",
     nothing_grows},
    {Part::resident, "kv.budget", "a method drops blocks that are not in memory: give one of them",
     drops},
    {Part::resident, "kv.select", "chooses among blocks in memory: give one of them", selects},
    {Part::resident, "sparse prompts", "choose among blocks in memory: refused", is_sparse},
    {Part::resident, "approximate reuse", "texts are copied within memory: refused", blends_texts},
    {Part::resident, "kv.convert", "blocks are encoded in memory: refused", converts_blocks},
    {Part::resident, "n, best_of and beam search",
     "each answer would read all cold blocks by itself: refused", is_wide},
    {Part::resident, "kv.session",
     "a session's blocks stay in memory; send the whole conversation instead, its beginning is "
     "found in the tier",
     in_session},
    {Part::resident, "embeddings", "states would be pooled twice after a loss: refused",
     pools_states},
    {Part::resident, "speculative decoding", kDrafts},
    {Part::resident, "prefix sharing",
     "what is cached or stored of the prompt is used; its own blocks are left in tiers, not in "
     "memory"},
    {Part::resident, "preemption", "it is computed again from what tiers have"},
    {Part::resident, "GPU", "there are no tiers on a GPU yet: refused", no_cold},
};

std::string text_of(const Combination& c, Part part) {
  switch (part) {
    case Part::budget:
      return c.retain->text();
    case Part::select:
      return c.select->text();
    case Part::approximate:
      return "approximate reuse";
    case Part::convert:
      return "convert";
    case Part::draft:
      return "drafts";
    case Part::pooling:
      return "an embedding";
    case Part::resident:
      return "kv.resident";
  }
  return {};
}

}  // namespace

std::span<const CombineRule> combine_rules() { return kRules; }

bool asks_for(const Combination& c, Part part) {
  switch (part) {
    case Part::budget:
      return c.retain != nullptr;
    case Part::select:
      return c.select != nullptr;
    case Part::approximate:
      return c.blends;
    case Part::convert:
      return c.converts;
    case Part::draft:
      return false;
    case Part::pooling:
      return c.pools;
    case Part::resident:
      return c.spills;
  }
  return false;
}

std::string_view field_of(Part part) {
  constexpr std::string_view kFields[] = {"kv.budget",  "kv.select",          "kv.reuse",
                                          "kv.convert", "speculative_config", "pooling",
                                          "kv.resident"};
  return kFields[static_cast<std::size_t>(part)];
}

std::optional<Refusal> refusal(const Combination& c) {
  for (const CombineRule& rule : kRules)
    if (asks_for(c, rule.part) && rule.refuses && rule.refuses(c))
      return Refusal{rule.part,
                     fmt::format("{} with {}: {}", text_of(c, rule.part), rule.with, rule.says)};
  return {};
}

bool may_draft(const Combination& c) {
  return std::ranges::none_of(kRules, [&](const CombineRule& rule) {
    return rule.part == Part::draft && rule.refuses && rule.refuses(c);
  });
}

Status check_combination(const Combination& c) {
  const std::optional<Refusal> refused = refusal(c);
  if (refused) return Error{Code::unsupported, refused->message};
  return {};
}

}  // namespace quire
