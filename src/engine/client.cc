#include "engine/client.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "engine/answer_text.h"
#include "engine/engine.h"
#include "engine/explain.h"
#include "engine/job.h"
#include "engine/sessions.h"

namespace quire {
namespace {

Error error_of(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::no_room:
    case FailureKind::kv_capacity:
    case FailureKind::quota:
      return {Code::exhausted, failure.message};
    case FailureKind::cancelled:
      return {Code::cancelled, failure.message};
    case FailureKind::device:
    case FailureKind::model_file:
    case FailureKind::tier:
      return {Code::unavailable, failure.message};
    case FailureKind::numeric:
      return {Code::corrupt, failure.message};
    default:
      return {Code::invalid, failure.message};
  }
}

// Turns tokens into text. It also remembers what to tell the engine, which must not be called from
// within its own callback.
class TextSink final : public RequestSink {
 public:
  TextSink(const Runtime& runtime, const GenerateOptions& options, const GenerateEvents& events,
           const StopStrings& stops)
      : options_(options), events_(events), answers(options.choices) {
    const std::vector<TokenId> end_tokens =
        options.ignore_end ? std::vector<TokenId>{} : runtime.tokenizer().end_of_generation();
    for (std::uint32_t c = 0; c < options.choices; ++c)
      texts_.emplace_back(runtime.tokenizer(), stops,
                          AnswerTextOptions{.skip_special = options.skip_special,
                                            .stop = options.stop,
                                            .end_tokens = end_tokens});
  }

  void admitted(const Admitted& a) override { cached_tokens = a.cached_tokens; }
  void token(std::uint32_t choice, const Choice& token) override {
    Generated& a = answers[choice];
    if (a.finish == Finish::stop_string) return;  // sampled before the engine heard of the stop
    a.tokens.push_back(token.token);
    a.score += token.logprob;
    std::string text;
    if (texts_[choice].add(token, text)) {
      a.stopped_by = *texts_[choice].stopped_by();
      a.finish = Finish::stop_string;
      stopped.push_back(choice);
    }
    a.choices.push_back(token);
    tell(choice, text);
  }
  void finished(std::uint32_t choice, Finish how) override {
    Generated& a = answers[choice];
    if (a.finish == Finish::stop_string) return;
    a.finish = how;
    std::string text;
    texts_[choice].finish(text);
    tell(choice, text);
  }
  void done(const Done& d) override { result = d; }
  void failed(const Failure& f) override { failure = f; }

 private:
  void tell(std::uint32_t choice, const std::string& text) {
    answers[choice].text += text;
    if (text.empty() || !wanted || !events_.text) return;
    wanted = events_.text(choice, text);
  }

  const GenerateOptions& options_;
  const GenerateEvents& events_;
  std::vector<AnswerText> texts_;

 public:
  std::vector<Generated> answers;
  std::vector<std::uint32_t> stopped;  // choices that found a stop string
  std::optional<Done> result;
  std::optional<Failure> failure;
  std::uint32_t cached_tokens = 0;
  bool wanted = true;  // false: the caller wants no more
};

}  // namespace

struct Client::State {
  explicit State(Runtime& r)
      : runtime(r),
        options{.step_tokens = r.executor().traits().rows_max,
                .sequences_max = std::min(64u, r.executor().traits().rows_max)},
        log(16),
        engine(r, options, log, clock) {}

  Runtime& runtime;
  ServiceOptions options;
  SteadyClock clock;
  RequestLog log;
  Engine engine;
  std::uint64_t jobs = 0;
};

Client::Client(Runtime& runtime) : state_(std::make_unique<State>(runtime)) {}
Client::~Client() { state_->engine.save_below(state_->options.save_max); }

Result<GenerateResult> Client::generate(std::span<const TokenId> prompt,
                                        const GenerateOptions& options,
                                        const GenerateEvents& events) {
  State& s = *state_;
  if (options.beams > 0 && !options.stop.empty())
    return Error{Code::invalid, "beam search knows no stop strings; leave out stop or the beams"};
  TRY(const StopStrings stops, StopStrings::create(options.stop));
  Request request{.prompt = {prompt.begin(), prompt.end()},
                  .sampling = options.sampling,
                  .tokens_max = options.tokens_max,
                  .ignore_end = options.ignore_end,
                  .choices = options.choices,
                  .beams = options.beams,
                  .length_penalty = options.length_penalty,
                  .chunk = options.chunk};
  request.kv.retain = options.retain ? options.retain : s.runtime.retain();
  request.kv.select = options.select ? options.select : s.runtime.select();
  request.kv.resident = options.resident;
  request.session = options.session;
  if (options.session) request.kv.producer = options.session->producer();
  auto sink = std::make_shared<TextSink>(s.runtime, options, events, stops);
  PreparedJob prepared = prepare_job(s.runtime, s.options, std::move(request), sink);
  if (!prepared.job) return error_of(prepared.failure);
  const JobId id = prepared.job->id = static_cast<JobId>(++s.jobs);
  prepared.job->submitted = s.clock.now();
  s.engine.submit(std::move(prepared.job));
  const auto length = static_cast<std::uint32_t>(prompt.size());
  bool reading = true, cancelled = false;
  while (s.engine.has_jobs()) {
    if (reading && events.prefill) {
      const std::vector<ActiveRequest> active = s.engine.active();
      if (!active.empty() && active[0].state == ActiveRequest::State::reading)
        cancelled = !events.prefill(active[0].computed_tokens, length);
    }
    if (!reading && events.step) cancelled = !events.step();
    if (cancelled || !sink->wanted) {
      cancelled = true;
      s.engine.cancel(id);
      break;
    }
    if (!s.engine.step() && s.engine.has_jobs())
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    const bool was_reading = reading;
    if (reading) {
      const std::vector<ActiveRequest> active = s.engine.active();
      reading = !active.empty() && active[0].state != ActiveRequest::State::answering;
    }
    if (was_reading && !reading && events.prefill) (void)events.prefill(length, length);
    for (const std::uint32_t choice : std::exchange(sink->stopped, {})) s.engine.finish(id, choice);
  }
  if (cancelled && (reading || options.beams > 0))
    return Error{Code::cancelled,
                 reading ? "stopped while reading the prompt" : "stopped during beam search"};
  if (!cancelled && sink->failure) return error_of(*sink->failure);
  GenerateResult result;
  for (Generated& a : sink->answers) {
    if (!sink->result && a.finish == Finish::length) a.finish = Finish::cancelled;
    if (options.beams > 0 && !a.tokens.empty())
      a.score /= std::pow(static_cast<double>(a.tokens.size()),
                          static_cast<double>(options.length_penalty));
    result.timings.decoded_tokens += static_cast<std::uint32_t>(a.tokens.size());
    result.answers.push_back(std::move(a));
  }
  result.timings.prompt_tokens = length;
  result.timings.cached_tokens = sink->cached_tokens;
  if (const std::optional<Done>& done = sink->result) {
    result.timings.prefill_seconds = done->prefill_seconds;
    result.timings.decode_seconds = done->decode_seconds;
    result.timings.kv_bytes = done->kv_bytes;
    result.timings.kv_bytes_read = done->kv_bytes_read;
    result.timings.kv_bytes_readable = done->kv_bytes_readable;
    result.timings.cold_bytes = done->cold_bytes;
    result.timings.cold_hidden_bytes = done->cold_hidden_bytes;
  }
  return result;
}

}  // namespace quire
