#include "server/generation.h"

#include <fmt/core.h>

#include <algorithm>

#include "server/answer_format/answer_reader.h"
#include "server/explain_json.h"
#include "server/kv_report.h"

namespace quire {
namespace {

constexpr std::size_t kFlushBytes = 16 << 10;
constexpr std::size_t kTogether = 64;  // prompts without answers that one request has in the engine
constexpr std::size_t kLogprobsMax = 1 << 18;   // in one answer
constexpr std::size_t kLogprobsMuch = 1 << 11;  // some milliseconds of work

double ms(double seconds) { return seconds * 1e3; }

FinishReason reason_of(Finish how) {
  return how == Finish::length ? FinishReason::length : FinishReason::stop;
}

std::string_view outcome(bool reuse, std::uint64_t prompt, std::uint64_t cached,
                         std::uint32_t tokens_per_block) {
  if (!reuse) return "disabled";
  if (cached == 0) return "miss";
  return cached + tokens_per_block >= prompt ? "hit" : "partial_hit";
}

}  // namespace

void Doorbell::ring(std::shared_ptr<Generation> who) {
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = waiting_.empty();
    waiting_.push_back(std::move(who));
  }
  if (!first) return;
  post_([this] {
    std::vector<std::shared_ptr<Generation>> all;
    {
      std::lock_guard lock(mutex_);
      all.swap(waiting_);
    }
    for (const auto& g : all) g->deliver();
  });
}

struct Generation::ChoiceState {
  ChoiceState(std::uint32_t number, const Tokenizer& tokenizer, const StopStrings& stops,
              AnswerTextOptions options, AnswerReader parts)
      : index(number), answer(tokenizer, stops, std::move(options)), reader(std::move(parts)) {}

  std::uint32_t index;  // over all prompts
  AnswerText answer;
  std::vector<Choice> unshown;  // tokens whose text is not out yet
  std::vector<TokenId> ids;
  AnswerReader reader;
  std::uint64_t tokens_read = 0, reasoning_tokens = 0;
  std::optional<FinishReason> finish;
  bool piece_sent = false, spoke = false;  // spoke: content or calls were told
  // Of an answer that is sent whole.
  std::string thought, text;
  std::vector<WholeAnswer::Call> calls;
  std::vector<Choice> shown;
};

struct Generation::Part {
  std::uint32_t number = 0;
  std::optional<Ticket> ticket;
  Admitted admitted;
  bool was_admitted = false;
  std::optional<Done> done;
  std::vector<ChoiceState> choices;
};

class Generation::Sink final : public RequestSink {
 public:
  Sink(std::shared_ptr<Generation> generation, std::uint32_t part)
      : generation_(std::move(generation)), part_(part) {}
  void admitted(const Admitted& a) override { generation_->enqueue({part_, a}); }
  void prompt_logprobs(std::vector<PromptLogprob> p) override {
    generation_->enqueue({part_, std::move(p)});
  }
  void token(std::uint32_t choice, const Choice& token) override {
    generation_->enqueue({part_, TokenEvent{choice, token}});
  }
  void finished(std::uint32_t choice, Finish how) override {
    generation_->enqueue({part_, FinishEvent{choice, how}});
  }
  void done(const Done& d) override { generation_->enqueue({part_, d}); }
  void failed(const Failure& f) override { generation_->enqueue({part_, f}); }

 private:
  std::shared_ptr<Generation> generation_;
  std::uint32_t part_;
};

Generation::Generation(Service& service, Doorbell& doorbell, std::shared_ptr<Exchange> exchange,
                       GenerationStart start)
    : service_(service),
      doorbell_(doorbell),
      exchange_(std::move(exchange)),
      start_(std::move(start)),
      began_(SteadyClock().now()) {
  const GenerationRequest& asked = start_.asked;
  const Tokenizer& tokenizer = service_.runtime().tokenizer();
  AnswerTextOptions options{.skip_special = asked.skip_special,
                            .visible = visible_tokens(start_.format, tokenizer),
                            .include_stop = asked.include_stop,
                            .tokens_min = asked.tokens_min,
                            .stop = asked.stop,
                            .end_tokens = asked.stop_tokens};
  if (!asked.ignore_eos)
    options.end_tokens.insert(options.end_tokens.end(), tokenizer.end_of_generation().begin(),
                              tokenizer.end_of_generation().end());
  const std::uint32_t choices = std::max(asked.n, asked.best_of);
  for (std::uint32_t p = 0; p < start_.requests.size(); ++p) {
    prompts_.push_back({.tokens = start_.prompts[p].tokens, .logprobs = {}, .pooled = {}});
    auto part = std::make_unique<Part>();
    part->number = p;
    part->admitted.prompt_tokens = static_cast<std::uint32_t>(start_.prompts[p].tokens.size());
    for (std::uint32_t c = 0; c < choices; ++c)
      part->choices.emplace_back(
          p * choices + c, tokenizer, start_.stops, options,
          AnswerReader(start_.format, {asked.tools, start_.prompts[p].tail}));
    parts_.push_back(std::move(part));
  }
}

Generation::~Generation() = default;

void Generation::submit() {
  const bool answers = start_.asked.tokens_max != 0u;
  parts_submitted_ = answers ? parts_.size() : std::min(kTogether, parts_.size());
  exchange_->post(
      [self = shared_from_this(), e = enter_queue(0, parts_submitted_)] { self->started(e); });
}

Generation::Entered Generation::enter_queue(std::size_t first, std::size_t end) {
  Entered e{.first = first, .tickets = {}, .failure = {}};
  for (std::size_t p = first; p < end; ++p) {
    const auto part = static_cast<std::uint32_t>(p);
    const Submitted s = service_.submit(std::move(start_.requests[p]),
                                        std::make_shared<Sink>(shared_from_this(), part));
    if (!s.ok()) {
      e.failure = s.failure;
      break;
    }
    e.tickets.push_back(s.ticket);
  }
  return e;
}

void Generation::entered(const Entered& e) {
  for (std::size_t i = 0; i < e.tickets.size(); ++i) parts_[e.first + i]->ticket = e.tickets[i];
  if (over_) return cancel_all();
  if (e.failure.kind == FailureKind::none) return;
  ApiError error = from_failure(e.failure);
  if (e.failure.kind == FailureKind::context_length) error.param = start_.asked.prompt_field;
  fail(error);
}

// Some prompts were read, and others are not submitted yet.
void Generation::submit_more() {
  const std::size_t first = parts_submitted_;
  parts_submitted_ = std::min(parts_.size(), parts_done_ + kTogether);
  submitting_ = true;
  auto work = [self = shared_from_this(), first, end = parts_submitted_] {
    self->exchange_->post([self, e = self->enter_queue(first, end)] {
      self->submitting_ = false;
      self->entered(e);
    });
  };
  start_.elsewhere ? start_.elsewhere(std::move(work)) : work();
}

void Generation::enqueue(Event event) {
  {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(event));
    if (std::exchange(rung_, true)) return;
  }
  doorbell_.ring(shared_from_this());
}

void Generation::started(const Entered& e) {
  started_ = true;
  entered(e);
  if (over_) return;
  if (exchange_->over()) return client_gone();
  exchange_->gone = [self = shared_from_this()] { self->client_gone(); };
  exchange_->drained = [self = shared_from_this()] {
    self->paused_ = false;
    self->pump();
  };
  deliver();
}

void Generation::deliver() {
  {
    std::lock_guard lock(mutex_);
    for (Event& e : inbox_) backlog_.push_back(std::move(e));
    inbox_.clear();
    rung_ = false;
  }
  if (started_) pump();
}

void Generation::pump() {
  while (!backlog_.empty() && !paused_ && !over_) {
    Event event = std::move(backlog_.front());
    backlog_.pop_front();
    handle(std::move(event));
    if (pending_.size() > kFlushBytes) flush();
  }
  if (over_) backlog_.clear();
  flush();
}

void Generation::flush() {
  if (pending_.empty() || over_) return;
  paused_ = !exchange_->write(pending_);
  pending_.clear();
}

void Generation::handle(Event event) {
  Part& part = *parts_[event.part];
  if (auto* admitted = std::get_if<Admitted>(&event.what)) {
    admit(part, *admitted);
  } else if (auto* logprobs = std::get_if<std::vector<PromptLogprob>>(&event.what)) {
    const auto from = static_cast<std::ptrdiff_t>(start_.prompts[event.part].scored_from);
    prompts_[event.part].logprobs.assign(std::make_move_iterator(logprobs->begin() + from),
                                         std::make_move_iterator(logprobs->end()));
  } else if (auto* token = std::get_if<TokenEvent>(&event.what)) {
    handle_token(part, token->choice, std::move(token->token));
  } else if (auto* finish = std::get_if<FinishEvent>(&event.what)) {
    finish_choice(part, finish->choice, finish->how);
  } else if (auto* done = std::get_if<Done>(&event.what)) {
    part.done = std::move(*done);
    prompts_[event.part].pooled = std::move(part.done->pooled);
    part.admitted.cached_tokens = part.done->cached_tokens;
    part.admitted.loaded_tokens = part.done->loaded_tokens;
    part.admitted.remote_tokens = part.done->remote_tokens;
    for (std::uint32_t c = 0; c < part.choices.size() && !over_; ++c)
      finish_choice(part, c, Finish::length);  // those that only scored their prompt
    if (++parts_done_ == parts_.size() && !over_) complete();
    if (parts_submitted_ < parts_.size() && !over_ && !submitting_ &&
        parts_submitted_ - parts_done_ <= kTogether / 2)
      submit_more();
  } else if (auto* failure = std::get_if<Failure>(&event.what)) {
    fail(failure->kind == FailureKind::cancelled
             ? ApiError{.message = "the request was cancelled", .code = "request_aborted"}
             : from_failure(*failure));
  }
}

void Generation::admit(Part& part, const Admitted& admitted) {
  part.admitted = admitted;
  if (part.number == 0 && !part.was_admitted && admitted.explanation)
    start_.writer->explained(*admitted.explanation);
  if (std::exchange(part.was_admitted, true) || ++parts_admitted_ < parts_.size() ||
      !start_.asked.stream || streaming_)
    return;
  const std::string first = start_.writer->begin(usage());
  if (first.empty()) return;
  begin_stream();
  pending_ += first;
}

void Generation::handle_token(Part& part, std::uint32_t choice, Choice token) {
  ChoiceState& c = part.choices[choice];
  if (c.finish) return;  // came after a stop string
  const GenerationRequest& asked = start_.asked;
  std::string text;
  if (asked.return_token_ids) c.ids.push_back(token.token);
  const bool stopped = c.answer.add(token, text);
  if ((!asked.stream || asked.whole_at_end) && asked.logprobs)
    if ((logprobs_held_ += 1 + token.alternatives.size()) > kLogprobsMax)
      return fail(
          {.message = fmt::format("an answer sent whole holds at most {} log-probabilities; "
                                  "stream it, or ask for fewer",
                                  kLogprobsMax),
           .code = "response_too_large",
           .param = "logprobs"});
  if (asked.logprobs || asked.return_token_ids) c.unshown.push_back(std::move(token));
  if (stopped) {
    c.finish = FinishReason::stop;
    service_.finish(*part.ticket, choice);
  }
  emit(part, c, std::move(text), stopped);
}

void Generation::finish_choice(Part& part, std::uint32_t choice, Finish how) {
  ChoiceState& c = part.choices[choice];
  if (c.finish) return;
  if (how == Finish::mask && start_.mask && start_.mask->too_slow)
    return fail({.message = "the grammar takes too long for each token; nest repetitions less",
                 .code = "grammar_too_expensive",
                 .param = start_.asked.grammar.param});
  std::string text;
  c.answer.finish(text);
  c.finish = c.answer.stopped() ? FinishReason::stop : reason_of(how);
  emit(part, c, std::move(text), true);
}

void Generation::emit(Part& part, ChoiceState& c, std::string text, bool last) {
  const GenerationRequest& asked = start_.asked;
  AnswerPiece piece{.index = c.index, .prompt = part.number};
  const bool reasoned = c.reader.reasoning();
  std::vector<ToolPiece> parts = c.reader.add(text);
  if (last) std::ranges::move(c.reader.finish(), std::back_inserter(parts));
  if (reasoned || c.reader.reasoning()) {
    // What comes before the first reasoning is its mark.
    const bool first = c.reasoning_tokens == 0 && !c.spoke;
    c.reasoning_tokens += c.answer.tokens() - (first ? 0 : c.tokens_read);
  }
  c.tokens_read = c.answer.tokens();
  for (ToolPiece& t : parts) {
    if (t.kind == ToolPiece::Kind::reasoning)
      piece.reasoning += t.text;
    else if (t.kind == ToolPiece::Kind::content)
      piece.text += t.text;
    else
      piece.tools.push_back(std::move(t));
  }
  c.spoke |= !piece.text.empty() || !piece.tools.empty();
  if (last && c.reader.calls() > 0 && c.finish == FinishReason::stop)
    c.finish = FinishReason::tool_calls;
  if (!c.unshown.empty()) {
    const std::size_t shown_before = c.shown.size();
    const std::size_t now = c.answer.tokens_shown() - shown_before;
    const auto end =
        c.unshown.begin() + static_cast<std::ptrdiff_t>(std::min(now, c.unshown.size()));
    piece.tokens.assign(c.unshown.begin(), end);
    c.shown.insert(c.shown.end(), std::make_move_iterator(c.unshown.begin()),
                   std::make_move_iterator(end));
    c.unshown.erase(c.unshown.begin(), end);
    for (const Choice& rest : c.unshown)
      if (last) piece.silent.push_back(rest.token);
  }
  if (last) piece.finish = c.finish;
  if (last && c.answer.stopped()) piece.stop = *c.answer.stopped_by();
  if (!asked.stream) {
    c.thought += piece.reasoning;
    c.text += piece.text;
    for (ToolPiece& t : piece.tools) {
      if (t.kind == ToolPiece::Kind::call)
        c.calls.push_back({std::move(t.text), ""});
      else
        c.calls[t.index].arguments += t.text;
    }
    return;
  }
  const bool news = !c.piece_sent || last || !piece.reasoning.empty() || !piece.text.empty() ||
                    !piece.tools.empty() ||
                    ((asked.logprobs || asked.return_token_ids) && !piece.tokens.empty());
  if (!news) return;
  c.piece_sent = true;
  if (!streaming_) begin_stream();
  pending_ += start_.writer->piece(piece, prompts_, asked.continuous_usage ? usage() : Usage{});
}

void Generation::begin_stream() {
  streaming_ = true;
  HttpResponse head = start_.writer->stream_head();
  const std::vector<HttpHeader> common = headers();
  head.headers.insert(head.headers.begin(), common.begin(), common.end());
  exchange_->begin(std::move(head));
}

std::vector<HttpHeader> Generation::headers() const {
  const Usage u = usage();
  std::vector<HttpHeader> all{{"x-kv-cached-tokens", std::to_string(u.cached)},
                              {"x-kv-prompt-tokens", std::to_string(u.prompt)}};
  std::ranges::move(start_.writer->headers(SteadyClock().now() - began_), std::back_inserter(all));
  return all;
}

Usage Generation::usage() const {
  Usage u;
  const std::uint32_t p = service_.runtime().geometry().tokens_per_block;
  for (const auto& part : parts_) {
    const std::uint64_t prompt = part->admitted.prompt_tokens,
                        cached = part->admitted.cached_tokens;
    u.prompt += prompt;
    u.cached += cached;
    u.loaded += part->admitted.loaded_tokens;
    u.remote += part->admitted.remote_tokens;
    if (start_.asked.kv.policy.write != KvWrite::none) {
      const auto& marks = start_.prompts[part->number].breakpoints;
      const std::uint64_t kept = (marks.empty() ? prompt : marks.back().tokens) / p * p;
      u.written += kept > cached ? kept - cached : 0;
    }
    if (part->number == 0) u.kept = kept_prefixes(*part);
    for (const ChoiceState& c : part->choices) {
      u.completion += c.answer.tokens();
      u.reasoning += c.reasoning_tokens;
    }
    if (part->done) {
      u.prefill_seconds += part->done->prefill_seconds;
      u.decode_seconds += part->done->decode_seconds;
      u.predicted += part->done->predicted_accepted;
      u.mispredicted += part->done->predicted_wrong;
    }
  }
  return u;
}

// Until the prompt was read, all that was asked for counts as held.
std::vector<KeptPrefix> Generation::kept_prefixes(const Part& part) const {
  std::vector<KeptPrefix> kept;
  const std::uint32_t p = service_.runtime().geometry().tokens_per_block;
  std::size_t lease = start_.asked.kv.policy.leases.size();  // those of breakpoints come last
  for (const Prompt::Breakpoint& b : start_.prompts[part.number].breakpoints) {
    if (b.ttl == 0) continue;
    const std::size_t mine = lease++;
    const bool refused =
        part.done && (mine >= part.done->leases.size() || part.done->leases[mine] == LeaseId{});
    kept.push_back({.tokens = b.tokens,
                    .whole = b.tokens / p * p,
                    .ttl = b.ttl,
                    .held = !refused && start_.asked.kv.policy.write != KvWrite::none});
  }
  return kept;
}

Json Generation::kv_report() const {
  if (!start_.asked.kv.given) return nullptr;
  std::vector<const Done*> prompts;
  for (const auto& part : parts_) prompts.push_back(&*part->done);
  Json kv = quire::kv_report(start_.asked, usage(), prompts, service_.runtime());
  kv["request_id"] = start_.request_id;
  if (const auto& told = parts_.front()->admitted.explanation;
      told && start_.asked.kv.report_explain) {
    Explanation e = *told;
    e.prefill_ms = ms(parts_.front()->done->prefill_seconds);
    kv["explain"] = explanation_json(e, service_.runtime().tokenizer(), start_.show_text);
  }
  if (kv.contains("explain") && !start_.asked.kv.session.empty())
    kv["explain"]["session"] = start_.asked.kv.session_how;
  return kv;
}

std::vector<WholeAnswer> Generation::answers() {
  const GenerationRequest& asked = start_.asked;
  std::vector<WholeAnswer> out;
  for (const auto& part : parts_) {
    std::vector<ChoiceState*> best;
    for (ChoiceState& c : part->choices) best.push_back(&c);
    if (asked.best_of > asked.n && !asked.beam_search)  // beams come ranked
      std::ranges::stable_sort(best, std::greater<>(),
                               [](const ChoiceState* c) { return c->answer.mean_logprob(); });
    best.resize(asked.n);
    for (ChoiceState* c : best)
      out.push_back({.index = static_cast<std::uint32_t>(out.size()),
                     .prompt = part->number,
                     .reasoning = std::move(c->thought),
                     .text = std::move(c->text),
                     .calls = std::move(c->calls),
                     .tokens = std::move(c->shown),
                     .token_ids = std::move(c->ids),
                     .finish = *c->finish,
                     .stop = c->answer.stopped() ? *c->answer.stopped_by() : "",
                     .mean_logprob = c->answer.mean_logprob()});
  }
  return out;
}

void Generation::complete() {
  const Usage total = usage();
  const Json kv = kv_report();
  if (streaming_) {
    pending_ += start_.writer->end(total, kv);
    flush();
    exchange_->end();
  } else {
    return respond_whole(answers(), total, kv);
  }
  over(200, "");
}

// A large body is made on a worker, away from the thread that all streams share.
void Generation::respond_whole(std::vector<WholeAnswer> answers, Usage total, Json kv) {
  std::size_t logprobs = logprobs_held_;
  for (const PromptInfo& p : prompts_) logprobs += p.pooled.size() / 16;
  for (const PromptInfo& p : prompts_)
    if (!p.logprobs.empty())
      logprobs += p.logprobs.size() * (1 + p.logprobs.back().alternatives.size()) * answers.size();
  auto make = [self = shared_from_this(), answers = std::move(answers), total, kv = std::move(kv)] {
    auto response = std::make_shared<HttpResponse>(
        json_response(self->start_.writer->whole(answers, self->prompts_, total, kv)));
    self->exchange_->post([self, response] {
      if (self->over_) return;
      std::ranges::copy(self->headers(), std::back_inserter(response->headers));
      self->exchange_->respond(std::move(*response));
      self->over(200, "");
    });
  };
  if (logprobs > kLogprobsMuch && start_.elsewhere)
    start_.elsewhere(std::move(make));
  else
    make();
}

void Generation::fail(const ApiError& error) {
  if (over_) return;
  cancel_all();
  if (streaming_) {
    pending_ += start_.writer->failure(error);
    flush();
    exchange_->end();
  } else {
    exchange_->respond(start_.dialect->error(error, start_.request_id));
  }
  over(error.status, error.code);
}

void Generation::client_gone() {
  if (over_) return;
  cancel_all();
  over(499, "client_closed_request");
}

void Generation::cancel_all() {
  for (const auto& part : parts_)
    if (!part->done && part->ticket) service_.cancel(*part->ticket);
}

void Generation::over(int status, std::string error_code) {
  over_ = true;
  pending_.clear();
  GenerationSummary s{.usage = usage(),
                      .choices = std::max(start_.asked.n, start_.asked.best_of),
                      .response_id = start_.writer->id(),
                      .status = status,
                      .client_closed = status == 499,
                      .error_code = std::move(error_code)};
  s.outcome = outcome(start_.asked.kv.policy.reuse, s.usage.prompt, s.usage.cached,
                      service_.runtime().geometry().tokens_per_block);
  s.reason = parts_.front()->admitted.reason;
  if (const auto& done = parts_.front()->done) {
    s.timed = true;
    s.submitted = done->submitted;
    s.lookup_ms = ms(done->lookup_seconds);
    s.load_ms = ms(done->load_seconds);
    s.tpot_ms_p50 = ms(done->token_gap_median);
    s.tpot_ms_p99 = ms(done->token_gap_99);
    s.queue_ms = ms(done->queue_seconds);
    s.prefill_ms = ms(done->prefill_seconds);
    s.ttft_ms = ms(done->first_token_seconds);
    s.decode_ms = ms(done->decode_seconds);
    s.preemptions = done->preemptions;
  }
  for (const auto& part : parts_)
    for (const ChoiceState& c : part->choices)
      if (c.finish)
        s.finishes.push_back(*c.finish == FinishReason::length       ? "length"
                             : *c.finish == FinishReason::tool_calls ? "tool_calls"
                                                                     : "stop");
  if (start_.ended) std::exchange(start_.ended, nullptr)(s);
}

}  // namespace quire
