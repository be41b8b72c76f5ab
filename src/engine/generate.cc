#include "engine/generate.h"

#include <algorithm>
#include <cmath>

#include "text/detokenizer.h"
#include "text/stop.h"

namespace quire {
namespace {

double seconds_since(Nanoseconds start) {
  return static_cast<double>(SteadyClock().now() - start) * 1e-9;
}

// One answer in the making: its blocks, its text and what it has seen.
struct Stream {
  Sequence sequence;
  Generated answer;
  Detokenizer detokenizer;
  StopMatcher stop;
  TokenCounts counts;
  TokenId next = kNoToken;  // sampled, not yet in the cache
  bool done = false;
};

class Generator {
 public:
  Generator(Runtime& runtime, std::span<const TokenId> prompt, const GenerateOptions& options,
            const GenerateEvents& events)
      : runtime_(runtime), prompt_(prompt), options_(options), events_(events) {}

  Result<GenerateResult> run() {
    TRY_STATUS(check());
    TRY(stops_, StopStrings::create(options_.stop));
    TRY_STATUS(read_prompt());
    const Nanoseconds started = SteadyClock().now();
    TRY_STATUS(options_.beams > 0 ? beam_search() : sample());
    result_.timings.decode_seconds = seconds_since(started);
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
    if (prompt_.size() + options_.tokens_max > runtime_.context())
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
    TRY(root_, runtime_.open_sequence(length + options_.tokens_max));
    result_.timings.prompt_tokens = length;
    result_.timings.cached_tokens = runtime_.cache().attach(root_, prompt_).tokens;
    TRY_STATUS(runtime_.prefill(root_, length - 1, options_.chunk, [&](std::uint32_t done) {
      return !events_.prefill || events_.prefill(done, length);
    }));
    const StepItem last{&root_, prompt_.subspan(root_.length(), 1), Logits::last};
    TRY(logits_, runtime_.step({&last, 1}));
    result_.timings.prefill_seconds = seconds_since(started);
    return {};
  }

  bool may_step() const { return !events_.step || events_.step(); }

  Stream new_stream() const {
    Stream s{
        .sequence = {},
        .answer = {},
        .detokenizer = Detokenizer(runtime_.tokenizer(), {.skip_special = options_.skip_special}),
        .stop = StopMatcher(stops_),
        .counts = {},
        .next = kNoToken,
        .done = false};
    s.counts.add_prompt(prompt_);
    return s;
  }

  Status sample() {
    const std::uint32_t vocabulary = runtime_.config().vocabulary;
    std::vector<Stream> streams;
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
        items.push_back({&streams[c].sequence, {&streams[c].next, 1}, Logits::last});
        live.push_back(c);
      }
      if (items.empty()) break;
      if (!may_step()) {
        running = false;
        break;
      }
      TRY(const std::span<float> logits, runtime_.step(items));
      for (std::size_t i = 0; i < live.size() && running; ++i)
        running = accept(streams[live[i]], live[i], logits.subspan(i * vocabulary, vocabulary));
    }
    for (Stream& s : streams) {
      if (!s.done)
        s.answer.finish = running || options_.tokens_max == 0 ? Finish::length : Finish::cancelled;
      result_.answers.push_back(std::move(s.answer));
    }
    return {};
  }

  // Samples the next token of a stream and sees to its text. False when the caller wants no more.
  bool accept(Stream& s, std::uint32_t index, std::span<float> logits) {
    const auto position = static_cast<std::uint32_t>(prompt_.size() + s.answer.tokens.size());
    Choice choice = runtime_.sampler().sample(logits, options_.sampling, s.counts, index, position);
    s.next = choice.token;
    s.counts.add_generated(choice.token);
    s.answer.tokens.push_back(choice.token);
    s.answer.score += choice.logprob;
    s.answer.choices.push_back(std::move(choice));
    ++result_.timings.decoded_tokens;

    const bool end = !options_.ignore_end && runtime_.tokenizer().is_end_of_generation(s.next);
    std::string text;
    std::optional<std::size_t> stopped;
    if (!end) stopped = s.stop.add(s.detokenizer.add(s.next), text);
    if (stopped) {
      s.answer.stopped_by = options_.stop[*stopped];
      finish(s, Finish::stop_string);
    } else if (end || s.answer.tokens.size() >= options_.tokens_max) {
      if (!s.stop.add(s.detokenizer.finish(), text)) s.stop.finish(text);
      finish(s, end ? Finish::end_token : Finish::length);
    }
    s.answer.text += text;
    return text.empty() || !events_.text || events_.text(index, text);
  }

  void finish(Stream& s, Finish how) {
    s.answer.finish = how;
    s.done = true;
    s.sequence.close();
  }

  // A hypothesis of the beam: a forked sequence and the token it has yet to read.
  struct Beam {
    Sequence sequence;
    std::vector<TokenId> tokens;
    std::vector<Choice> choices;
    double score = 0;
  };

  double final_score(const Beam& b) const {
    return b.score / std::pow(static_cast<double>(std::max<std::size_t>(b.tokens.size(), 1)),
                              options_.length_penalty);
  }

  // The best final score that a beam can still reach.
  double attainable(const Beam& b) const {
    const std::size_t length = options_.length_penalty > 0 ? options_.tokens_max : b.tokens.size();
    return b.score /
           std::pow(static_cast<double>(std::max<std::size_t>(length, 1)), options_.length_penalty);
  }

  Status beam_search() {
    const std::uint32_t vocabulary = runtime_.config().vocabulary, width = options_.beams;
    std::vector<Beam> beams, finished;
    beams.push_back({std::move(root_), {}, {}, 0});
    std::span<float> logits = logits_;
    for (std::uint32_t step = 0; step < options_.tokens_max; ++step) {
      struct Extension {
        std::size_t beam;
        TokenLogprob token;
        double score;
      };
      std::vector<Extension> extensions;
      std::vector<std::vector<TokenLogprob>> best(beams.size());  // next tokens of each beam
      for (std::size_t b = 0; b < beams.size(); ++b) {
        best[b] = runtime_.sampler().top(logits.subspan(b * vocabulary, vocabulary),
                                         std::max(2 * width, options_.sampling.logprobs));
        for (std::size_t i = 0; i < std::min<std::size_t>(2 * width, best[b].size()); ++i)
          extensions.push_back({b, best[b][i], beams[b].score + best[b][i].logprob});
      }
      // Twice the width per beam, so that `width` remain even when half of them end here. Ties:
      // earlier beam, lower id.
      std::stable_sort(extensions.begin(), extensions.end(),
                       [](const Extension& a, const Extension& b) { return a.score > b.score; });
      std::vector<Beam> next;
      for (const Extension& e : extensions) {
        if (next.size() == width) break;
        Beam grown{{}, beams[e.beam].tokens, beams[e.beam].choices, e.score};
        grown.tokens.push_back(e.token.token);
        std::vector<TokenLogprob>& top = best[e.beam];
        top.resize(std::min<std::size_t>(top.size(), options_.sampling.logprobs));
        grown.choices.push_back({e.token.token, e.token.logprob, top});
        ++result_.timings.decoded_tokens;
        if (!options_.ignore_end && runtime_.tokenizer().is_end_of_generation(e.token.token)) {
          finished.push_back(std::move(grown));
          continue;
        }
        TRY(grown.sequence, runtime_.cache().fork(beams[e.beam].sequence));
        next.push_back(std::move(grown));
      }
      beams = std::move(next);
      // Enough ended ones that no open beam can still beat: sums only fall as tokens are added, and
      // a positive penalty makes most of them at the full length.
      std::stable_sort(finished.begin(), finished.end(), [&](const Beam& a, const Beam& b) {
        return final_score(a) > final_score(b);
      });
      if (beams.empty() ||
          (finished.size() >= width && final_score(finished[width - 1]) >= attainable(beams[0])))
        break;
      if (step + 1 == options_.tokens_max) break;
      if (!may_step()) return Error{Code::cancelled, "stopped during beam search"};
      std::vector<StepItem> items;
      for (Beam& b : beams) items.push_back({&b.sequence, {&b.tokens.back(), 1}, Logits::last});
      TRY(logits, runtime_.step(items));
    }
    for (Beam& b : beams) finished.push_back(std::move(b));
    std::stable_sort(finished.begin(), finished.end(),
                     [&](const Beam& a, const Beam& b) { return final_score(a) > final_score(b); });
    for (std::size_t i = 0; i < std::min<std::size_t>(options_.choices, finished.size()); ++i) {
      Beam& b = finished[i];
      const bool ended = !options_.ignore_end && !b.tokens.empty() &&
                         runtime_.tokenizer().is_end_of_generation(b.tokens.back());
      Generated answer{.tokens = b.tokens,
                       .text = {},
                       .choices = std::move(b.choices),
                       .finish = ended ? Finish::end_token : Finish::length,
                       .stopped_by = {},
                       .score = final_score(b)};
      Detokenizer detokenizer(runtime_.tokenizer(), {.skip_special = options_.skip_special});
      for (const TokenId t : std::span(b.tokens).first(b.tokens.size() - (ended ? 1 : 0)))
        answer.text += detokenizer.add(t);
      answer.text += detokenizer.finish();
      if (events_.text) events_.text(static_cast<std::uint32_t>(i), answer.text);
      result_.answers.push_back(std::move(answer));
    }
    return {};
  }

  Runtime& runtime_;
  std::span<const TokenId> prompt_;
  const GenerateOptions& options_;
  const GenerateEvents& events_;
  StopStrings stops_;
  Sequence root_;
  std::span<float> logits_;
  GenerateResult result_;
};

}  // namespace

Result<GenerateResult> generate(Runtime& runtime, std::span<const TokenId> prompt,
                                const GenerateOptions& options, const GenerateEvents& events) {
  return Generator(runtime, prompt, options, events).run();
}

}  // namespace quire
