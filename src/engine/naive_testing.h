// engine/naive_testing.h - the oracle of tests: one request at a time, one loop, no scheduler.
//
// It reads a prompt, then steps all choices together, without preemption, batching with others or steps
// ahead. What the engine answers must be the same bits.
//
//   auto alone = naive_generate(*runtime, prompt, {.tokens_max = 8});
#pragma once

#include <algorithm>
#include <optional>

#include "engine/client.h"

#include "engine/answer_text.h"
#include "engine/beams.h"
#include "engine/job.h"
#include "engine/retain.h"
#include "engine/selecting.h"
#include "engine/stepper.h"
#include "model/adapter/adapter.h"

namespace quire {

inline double naive_seconds_since(Nanoseconds start) {
  return static_cast<double>(SteadyClock().now() - start) * 1e-9;
}

// One answer in the making: its blocks, its text and what it has seen.
struct NaiveStream {
  Sequence sequence;
  std::optional<Retaining> retain;
  std::optional<Selecting> select;
  Generated answer;
  AnswerText text;
  TokenCounts counts;
  TokenId next = kNoToken;  // sampled, not yet in the cache
  bool done = false;

  Program* program() {
    if (retain) return &*retain;
    return select ? &*select : nullptr;
  }
};

class NaiveGenerator {
 public:
  NaiveGenerator(Runtime& runtime, std::span<const TokenId> prompt, const GenerateOptions& options,
                 const GenerateEvents& events)
      : runtime_(runtime),
        stepper_(runtime),
        prompt_(prompt),
        options_(options),
        events_(events),
        policy_(options.retain ? options.retain : runtime.retain()),
        selects_(options.select ? options.select : runtime.select()) {}

  Result<GenerateResult> run() {
    TRY_STATUS(check());
    TRY(stops_, StopStrings::create(options_.stop));
    TRY_STATUS(read_prompt());
    const Nanoseconds started = SteadyClock().now();
    TRY_STATUS(options_.beams > 0 ? beam_search() : sample());
    result_.timings.decode_seconds = naive_seconds_since(started);
    return std::move(result_);
  }

 private:
  Status check() const {
    TRY_STATUS(options_.sampling.check(runtime_.config().vocabulary));
    if (prompt_.empty())
      return Error{Code::invalid, "the prompt is empty; give at least one token"};
    for (const TokenId t : prompt_)
      if (t >= runtime_.config().vocabulary)
        return Error{Code::invalid, "token " + std::to_string(t) +
                                        " is outside the vocabulary of " +
                                        std::to_string(runtime_.config().vocabulary)};
    if (options_.choices == 0 || options_.choices > 64 || options_.beams > 64)
      return Error{Code::invalid, "choices must be 1 to 64, and beams at most 64"};
    if (options_.beams > 0 && options_.choices > options_.beams)
      return Error{Code::invalid, "beam search cannot return more choices than it has beams"};
    const SamplingOptions& s = options_.sampling;
    if (options_.beams > 0 &&
        (s.temperature > 0 || !s.logit_bias.empty() || s.repetition_penalty != 1 ||
         s.presence_penalty != 0 || s.frequency_penalty != 0))
      return Error{Code::invalid,
                   "beam search ranks by the model's own probabilities; leave out temperature, "
                   "logit_bias and penalties, or the beams"};
    if (options_.beams > 0 && !options_.stop.empty())
      return Error{Code::invalid, "beam search knows no stop strings; leave out stop or the beams"};
    if (policy_)
      TRY_STATUS(runtime_.check_retain(*policy_, nullptr, options_.choices, options_.beams));
    if (selects_)
      TRY_STATUS(runtime_.check_select(*selects_, nullptr, policy_.get(), options_.beams));
    const bool endless = policy_ && policy_->endless() && prompt_.size() <= runtime_.context();
    if (prompt_.size() + options_.tokens_max > runtime_.context() && !endless)
      return Error{Code::invalid, "a prompt of " + std::to_string(prompt_.size()) + " tokens and " +
                                      std::to_string(options_.tokens_max) +
                                      " new ones do not fit the context of " +
                                      std::to_string(runtime_.context())};
    return {};
  }

  // Computes the prompt once; its last row's logits serve every choice.
  Status read_prompt() {
    const Nanoseconds started = SteadyClock().now();
    const auto length = static_cast<std::uint32_t>(prompt_.size());
    KvPolicy kv;
    kv.adapters = options_.adapters;
    const std::uint32_t adapted_from = kv.adapters ? kv.adapters->begins_at(prompt_) : 0;
    const std::vector<KeyChange> changes = key_changes(kv, prompt_);
    TRY(const RootId root, runtime_.tenant_root("", nullptr, kv.root_adapter()));
    if (policy_) retain_.emplace(runtime_, policy_, length, root);
    TRY(root_, runtime_.cache().open(
                   {.root = root,
                    .token_capacity =
                        length + options_.tokens_max + (retain_ ? retain_->more_tokens() : 0),
                    .publish_generated = !selects_ && !runtime_.geometry().sparse(),
                    .serve_max = retain_ ? retain_->serve_max() : 0xffffffffu,
                    .recomputable = !retain_ && !selects_,
                    .changes = changes,
                    .adapters = adapted_from == AdapterSet::kNever ? nullptr : kv.adapters,
                    .adapted_from = adapted_from}));
    if (selects_) select_.emplace(runtime_, *selects_, length, root);
    result_.timings.prompt_tokens = length;
    result_.timings.cached_tokens = runtime_.cache().attach(root_, prompt_).tokens;
    TRY(logits_,
        stepper_.read(
            root_, options_.chunk,
            [&](std::uint32_t done) { return !events_.prefill || events_.prefill(done, length); },
            retain_ ? &*retain_ : nullptr));
    if (retain_) TRY_STATUS(retain_->drop_due(stepper_, root_));
    result_.timings.prefill_seconds = naive_seconds_since(started);
    return {};
  }

  bool may_step() const { return !events_.step || events_.step(); }

  std::vector<TokenId> end_tokens() const {
    return options_.ignore_end ? std::vector<TokenId>{} : runtime_.tokenizer().end_of_generation();
  }

  NaiveStream new_stream() const {
    NaiveStream s{.sequence = {},
                  .retain = retain_,
                  .select = select_,
                  .answer = {},
                  .text = AnswerText(runtime_.tokenizer(), stops_,
                                     {.skip_special = options_.skip_special,
                                      .stop = options_.stop,
                                      .end_tokens = end_tokens()}),
                  .counts = {},
                  .next = kNoToken,
                  .done = false};
    s.counts.add_prompt(prompt_);
    return s;
  }

  Status sample() {
    const std::uint32_t vocabulary = runtime_.config().vocabulary;
    std::vector<NaiveStream> streams;
    for (std::uint32_t c = 0; c < options_.choices; ++c) {
      streams.push_back(new_stream());
    }
    // Forks share the whole prompt; the first to write into its last block copies that one.
    for (std::uint32_t c = 1; c < options_.choices; ++c) {
      TRY(streams[c].sequence, runtime_.cache().fork(root_));
    }
    streams[0].sequence = std::move(root_);
    std::vector<float> row(vocabulary);
    bool running = options_.tokens_max > 0;
    for (std::uint32_t c = 0; c < options_.choices && running; ++c) {
      std::copy(logits_.begin(), logits_.begin() + vocabulary, row.begin());
      running = accept(streams[c], c, row);
    }
    std::vector<StepItem> items;
    std::vector<std::uint32_t> live;
    while (running) {
      items.clear();
      live.clear();
      for (std::uint32_t c = 0; c < options_.choices; ++c) {
        if (streams[c].done) continue;
        items.push_back(
            {&streams[c].sequence, {&streams[c].next, 1}, Logits::last, streams[c].program()});
        live.push_back(c);
      }
      if (items.empty()) break;
      if (!may_step()) {
        running = false;
        break;
      }
      TRY(const std::span<float> logits, stepper_.run(items));
      for (std::size_t i = 0; i < live.size() && running; ++i)
        running = accept(streams[live[i]], live[i], logits.subspan(i * vocabulary, vocabulary));
    }
    for (NaiveStream& s : streams) {
      if (!s.done)
        s.answer.finish = running || options_.tokens_max == 0 ? Finish::length : Finish::cancelled;
      result_.answers.push_back(std::move(s.answer));
    }
    return {};
  }

  // Samples the next token of a stream and sees to its text. False when the caller wants no more.
  bool accept(NaiveStream& s, std::uint32_t index, std::span<float> logits) {
    const auto position = static_cast<std::uint32_t>(prompt_.size() + s.answer.tokens.size());
    Choice choice = runtime_.sampler().sample(logits, options_.sampling, s.counts, index, position);
    s.next = choice.token;
    s.counts.add_generated(choice.token);
    s.answer.tokens.push_back(choice.token);
    s.answer.score += choice.logprob;
    ++result_.timings.decoded_tokens;

    std::string text;
    const bool end = !options_.ignore_end && runtime_.tokenizer().is_end_of_generation(s.next);
    if (s.text.add(choice, text)) {
      s.answer.stopped_by = *s.text.stopped_by();
      finish(s, Finish::stop_string);
    } else if (end || s.answer.tokens.size() >= options_.tokens_max) {
      s.text.finish(text);
      finish(s, end ? Finish::end_token : Finish::length);
    }
    s.answer.choices.push_back(std::move(choice));
    s.answer.text += text;
    return text.empty() || !events_.text || events_.text(index, text);
  }

  void finish(NaiveStream& s, Finish how) {
    s.answer.finish = how;
    s.done = true;
    if (result_.timings.kv_bytes == 0)
      result_.timings.kv_bytes =
          runtime_.cache().bytes(s.sequence) + (s.select ? s.select->bytes() : 0);
    if (s.select) {
      result_.timings.kv_bytes_read += s.select->bytes_read();
      result_.timings.kv_bytes_readable += s.select->bytes_whole();
    }
    s.sequence.close();
  }

  Status beam_search() {
    BeamSearch search(
        {.width = options_.beams,
         .choices = options_.choices,
         .tokens_max = options_.tokens_max,
         .length_penalty = options_.length_penalty,
         .logprobs = options_.sampling.logprobs,
         .end_tokens = options_.ignore_end ? std::vector<TokenId>{}
                                           : runtime_.tokenizer().end_of_generation()},
        std::move(root_));
    std::span<float> logits = logits_;
    std::vector<StepItem> items;
    while (options_.tokens_max > 0) {
      TRY(const bool more, search.advance(runtime_.cache(), runtime_.sampler(), logits));
      if (!more) break;
      if (!may_step()) return Error{Code::cancelled, "stopped during beam search"};
      items.clear();
      for (Beam& b : search.open())
        items.push_back({&b.sequence, {&b.tokens.back(), 1}, Logits::last});
      TRY(logits, stepper_.run(items));
    }
    result_.timings.decoded_tokens = static_cast<std::uint32_t>(search.tokens_made());
    std::uint32_t index = 0;
    for (Beam& b : search.best()) {
      Generated answer{.tokens = b.tokens,
                       .text = {},
                       .choices = std::move(b.choices),
                       .finish = b.ended ? Finish::end_token : Finish::length,
                       .stopped_by = {},
                       .score = search.final_score(b)};
      Detokenizer detokenizer(runtime_.tokenizer(), {.skip_special = options_.skip_special});
      for (const TokenId t : std::span(b.tokens).first(b.tokens.size() - (b.ended ? 1 : 0)))
        answer.text += detokenizer.add(t);
      answer.text += detokenizer.finish();
      if (events_.text) events_.text(index, answer.text);
      ++index;
      result_.answers.push_back(std::move(answer));
    }
    return {};
  }

  Runtime& runtime_;
  Stepper stepper_;
  std::span<const TokenId> prompt_;
  const GenerateOptions& options_;
  const GenerateEvents& events_;
  StopStrings stops_;
  const std::shared_ptr<const RetainPolicy> policy_;
  const std::shared_ptr<const SelectPolicy> selects_;
  Sequence root_;
  std::optional<Retaining> retain_;
  std::optional<Selecting> select_;
  std::span<float> logits_;
  GenerateResult result_;
};

inline Result<GenerateResult> naive_generate(Runtime& runtime, std::span<const TokenId> prompt,
                                             const GenerateOptions& options,
                                             const GenerateEvents& events = {}) {
  return NaiveGenerator(runtime, prompt, options, events).run();
}

}  // namespace quire
