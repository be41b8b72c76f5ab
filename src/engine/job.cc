#include "engine/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/combine.h"
#include "engine/plan.h"
#include "engine/spilling.h"

namespace quire {
namespace {

// The tables of a sequence have room for all the tokens that it may ever hold.
constexpr std::uint32_t kEndlessTokensMax = 1 << 20;

Failure invalid(std::string message) { return {FailureKind::invalid, std::move(message)}; }

Combination combination_of(const Runtime& runtime, const Request& r, const Geometry& geometry) {
  return {.geometry = &geometry,
          .retain = r.kv.retain.get(),
          .select = r.kv.select.get(),
          .blends = r.kv.blend.has_value(),
          .converts = r.kv.convert,
          .choices = r.choices,
          .beams = r.beams,
          .scores = r.prompt_logprobs >= 0,
          .pools = r.pooling != Pooling::none,
          .session = r.session != nullptr,
          .stored = r.kv.write == KvWrite::all && goes_below(runtime, r.kv),
          .page_work = runtime.executor().traits().page_work,
          .cold = runtime.executor().traits().cold_tokens > 0,
          .tiers = runtime.tiers() != nullptr,
          .context = runtime.context()};
}

Failure refused(const Refusal& why) {
  return invalid(fmt::format("{}: {}", field_of(why.part), why.message));
}

Failure check_shape(const Runtime& runtime, const ServiceOptions& options, const Request& r,
                    bool& drafts) {
  const std::uint32_t vocabulary = runtime.config().vocabulary;
  if (const Status s = r.sampling.check(vocabulary); !s.ok()) return invalid(s.error().message);
  if (r.prompt.empty()) return invalid("the prompt is empty; give at least one token");
  for (const std::vector<TokenId>* tokens : {&r.prompt, &r.stop_tokens})
    for (const TokenId t : *tokens)
      if (t >= vocabulary)
        return invalid(fmt::format("token {} is outside the vocabulary of {}", t, vocabulary));
  const std::uint32_t width = std::max(r.choices, r.beams);
  if (r.choices == 0 || width > options.sequences_max)
    return invalid(fmt::format("n, best_of and beams must be 1 to {}", options.sequences_max));
  if (r.tokens_min > r.tokens_max)
    return invalid(fmt::format("min_tokens {} is above max_tokens {}", r.tokens_min, r.tokens_max));
  if (r.sampling.logprobs > vocabulary || r.prompt_logprobs > 1000)
    return invalid("logprobs must be at most 1000");
  if (r.session && width > 1)
    return invalid("kv.session: goes with one answer; leave out n, best_of and beams");
  if (r.prompt_logprobs >= 0 &&
      (r.prompt_logprobs_from == 0 || r.prompt_logprobs_from > r.prompt.size()))
    return invalid("log-probabilities start at one of the prompt's tokens but the first");
  if (r.pooling != Pooling::none && (r.tokens_max > 0 || r.choices > 1 || r.beams > 0))
    return invalid("an embedding has no answer: leave out max_tokens, n and beams");
  if (r.kv.priority > 100) return invalid("kv.priority must be 0 to 100");
  if (r.kv.storage)
    if (const Status ok = runtime.check_storage(*r.kv.storage); !ok.ok())
      return invalid("kv.format: " + ok.error().message);
  const StoragePolicy& stored = r.kv.storage ? *r.kv.storage : runtime.storage();
  const bool sparse = stored.prefill.way != SparsePrefill::Way::none;
  if (sparse && options.step_tokens < runtime.geometry().tokens_per_block)
    return invalid(fmt::format("a sparse prompt is read in blocks of {} tokens, steps have {}",
                               runtime.geometry().tokens_per_block, options.step_tokens));
  const Geometry geometry = runtime.geometry(r.kv.storage.get());
  Combination asked = combination_of(runtime, r, geometry);
  std::optional<Refusal> no = refusal(asked);
  drafts = options.drafts.on() && may_draft(asked);
  if (sparse && !no) {  // the layout selects, too
    const SelectPolicy of_prompt = select_policy(stored.prefill);
    asked.select = &of_prompt;
    no = refusal(asked);
  }
  if (no) return refused(*no);
  if (r.beams > 0) {
    if (r.choices > r.beams)
      return invalid("beam search cannot return more choices than it has beams");
    const SamplingOptions& s = r.sampling;
    if (s.temperature > 0 || !s.logit_bias.empty() || s.repetition_penalty != 1 ||
        s.presence_penalty != 0 || s.frequency_penalty != 0 || r.mask)
      return invalid(
          "beam search ranks by the model's own probabilities; leave out temperature, logit_bias, "
          "penalties and grammars, or the beams");
  }
  return {};
}

// A request that is larger than what it may hold in memory: whether it may be, and with what.
Failure check_spill(const Runtime& runtime, const Request& r, std::uint64_t whole, bool& drafts) {
  const Geometry geometry = runtime.geometry(r.kv.storage.get());
  Combination asked = combination_of(runtime, r, geometry);
  asked.spills = true;
  if (const auto no = refusal(asked)) return refused(*no);
  drafts = drafts && may_draft(asked);
  const Result<SpillShape> shape = spill_shape(geometry, spill_memory(runtime, r.kv));
  if (!shape.ok()) return {FailureKind::kv_capacity, shape.error().message};
  const TierLink& link = *runtime.tiers();
  for (TierPlace p = 0; p < link.tiers(); ++p)
    if (const std::uint64_t room = link.traits(p).capacity_bytes; room == 0 || whole <= room)
      return {};
  return {FailureKind::kv_capacity,
          fmt::format("kv.resident: the blocks of {} tokens take {} bytes, and no tier is that "
                      "large; raise --kv-disk",
                      r.prompt.size() + r.tokens_max, whole)};
}

// Cuts or refuses what context and cache cannot hold.
Failure check_size(const Runtime& runtime, const ServiceOptions& options, Request& r,
                   bool& drafts) {
  const auto prompt = static_cast<std::uint32_t>(r.prompt.size());
  const std::uint32_t context = runtime.context();
  if (prompt > context || (prompt == context && r.tokens_max > 0))
    return {FailureKind::context_length,
            fmt::format("This model's maximum context length is {} tokens. However, your prompt "
                        "has {} tokens; shorten it.",
                        context, prompt)};
  const bool endless = r.kv.retain && r.kv.retain->endless();
  if (endless && r.tokens_max > kEndlessTokensMax) {
    if (!r.cut_tokens_max)
      return invalid(fmt::format("max_tokens is {}; an endless answer has at most {}", r.tokens_max,
                                 kEndlessTokensMax));
    r.tokens_max = kEndlessTokensMax;
  }
  if (r.tokens_max > context - prompt && !endless) {
    if (!r.cut_tokens_max)
      return {FailureKind::context_length,
              fmt::format("This model's maximum context length is {} tokens. However, your prompt "
                          "has {} tokens and you asked for {} more; reduce either.",
                          context, prompt, r.tokens_max)};
    r.tokens_max = context - prompt;
  }
  const std::uint64_t budget = runtime.kv_cache_bytes();
  const Geometry geometry = runtime.geometry(r.kv.storage.get());
  const auto bytes = [&](std::uint32_t answer) {
    return request_bytes(geometry,
                         {.prompt = prompt,
                          .answer = answer,
                          .width = std::max(r.choices, r.beams),
                          .chunk = options.step_tokens,
                          .cache_bytes = runtime.kv_cache_bytes(),
                          .memory_page = runtime.memory_page()},
                         r.kv.retain.get());
  };
  const std::uint64_t all = bytes(r.tokens_max);
  if (r.kv.resident >= all) r.kv.resident = 0;
  if (r.kv.resident == 0 && all <= budget) return {};
  const std::uint32_t least = std::min(r.tokens_max, geometry.tokens_per_block);
  if (r.kv.resident == 0 && (!r.cut_tokens_max || bytes(least) > budget))
    r.kv.resident = runtime.kv_resident_bytes();
  if (r.kv.resident > 0)
    return check_spill(runtime, r, sequence_bytes(geometry, prompt + r.tokens_max), drafts);
  if (!r.cut_tokens_max || bytes(least) > budget) {
    const std::uint32_t asked = r.cut_tokens_max ? least : r.tokens_max;
    return {FailureKind::kv_capacity,
            fmt::format("{} prompt tokens and {} x {} new ones take {} bytes of KV cache; all of "
                        "it is {} bytes. Ask for less, raise --kv-cache-memory, or let cold blocks "
                        "lie on a disk: kv.resident, or --kv-resident.",
                        prompt, std::max(r.choices, r.beams), asked, bytes(asked), budget)};
  }
  std::uint32_t low = least, high = r.tokens_max;  // low fits, high does not
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (bytes(middle) <= budget ? low : high) = middle;
  }
  r.tokens_max = low;
  return {};
}

}  // namespace

std::vector<KeyChange> key_changes(const KvPolicy& policy) {
  std::vector<KeyChange> changes;
  if (!policy.salt.empty()) changes.push_back({.kind = ChangeKind::salt, .value = policy.salt});
  if (!policy.producer.empty())
    changes.push_back({.kind = ChangeKind::producer, .value = policy.producer});
  return changes;
}

bool goes_below(const Runtime& runtime, const KvPolicy& policy) {
  const TierLink* link = runtime.tiers();
  for (TierPlace p = 0; link && p < link->tiers(); ++p)
    if (!policy.may_use(link->traits(p))) return false;
  return true;
}

std::vector<BlockKey> prompt_keys(const Runtime& runtime, std::span<const TokenId> prompt,
                                  const KvPolicy& policy) {
  KeyChain chain(runtime.secret(), runtime.tenant_key(policy.tenant, policy.storage.get()),
                 runtime.geometry().tokens_per_block);
  for (KeyChange& change : key_changes(policy)) chain.change(std::move(change));
  chain.extend(prompt);
  return {chain.keys().begin(), chain.keys().end()};
}

PreparedJob prepare_job(const Runtime& runtime, const ServiceOptions& options, Request request,
                        std::shared_ptr<RequestSink> sink) {
  bool drafts = false;
  if (Failure f = check_shape(runtime, options, request, drafts); f.kind != FailureKind::none)
    return {nullptr, std::move(f)};
  if (Failure f = check_size(runtime, options, request, drafts); f.kind != FailureKind::none)
    return {nullptr, std::move(f)};
  request.tokens_min = std::min(request.tokens_min, request.tokens_max);
  // Logits of the prompt are not cached: it has to be computed.
  // What a budget left of an earlier prompt has no logits of its last token.
  if (request.prompt_logprobs >= 0 && (request.prompt_logprobs_from <= 1 || request.kv.retain))
    request.kv.reuse = false;
  auto job = std::make_unique<Job>();
  job->keys = prompt_keys(runtime, request.prompt, request.kv);
  const KvPolicy& kv = request.kv;
  // Some programs act on what was in memory when the prompt was attached.
  if (runtime.tiers() && kv.reuse && (kv.disk || kv.remote) && !kv.blend && !kv.convert)
    job->records = prompt_records(runtime.secret(), runtime.geometry(kv.storage.get()), job->keys,
                                  request.prompt);
  if (!request.ignore_end) job->end_tokens = runtime.tokenizer().end_of_generation();
  job->end_tokens.insert(job->end_tokens.end(), request.stop_tokens.begin(),
                         request.stop_tokens.end());
  job->drafts = drafts;
  job->record = make_record(request);
  for (const BlockKey& key : job->keys) job->record.keys.push_back(key.prefix());
  job->changes = key_changes(request.kv);
  job->request = std::move(request);
  job->sink = std::move(sink);
  return {std::move(job), {}};
}

}  // namespace quire
