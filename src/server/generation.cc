#include "server/generation.h"

#include <fmt/core.h>

#include <algorithm>

#include "server/tools.h"

namespace quire {
namespace {

Json format_json(const StoragePolicy& s) {
  if (!s.by_layer.empty()) return s.name();
  Json format{{"k", s.format->keys->name}, {"v", s.format->values->name}};
  if (s.recent_exact > 0) format["recent_exact"] = s.recent_exact;
  if (s.sinks > 0) format["sinks"] = s.sinks;
  if (!s.skip_layers.empty()) format["skip_layers"] = s.skip_layers;
  return format;
}

constexpr std::size_t kFlushBytes = 16 << 10;
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
              AnswerTextOptions options)
      : index(number), answer(tokenizer, stops, std::move(options)) {}

  std::uint32_t index;  // over all prompts
  AnswerText answer;
  std::vector<Choice> unshown;  // tokens whose text is not out yet
  std::vector<TokenId> ids;
  ToolCallReader tools;
  std::optional<FinishReason> finish;
  bool piece_sent = false;
  // Of an answer that is sent whole.
  std::string text;
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
                            .include_stop = asked.include_stop,
                            .tokens_min = asked.tokens_min,
                            .stop = asked.stop,
                            .end_tokens = asked.stop_tokens};
  if (!asked.ignore_eos)
    options.end_tokens.insert(options.end_tokens.end(), tokenizer.end_of_generation().begin(),
                              tokenizer.end_of_generation().end());
  const std::uint32_t choices = std::max(asked.n, asked.best_of);
  for (std::uint32_t p = 0; p < start_.requests.size(); ++p) {
    prompts_.push_back({start_.prompts[p].tokens, {}});
    auto part = std::make_unique<Part>();
    part->number = p;
    part->admitted.prompt_tokens = static_cast<std::uint32_t>(start_.prompts[p].tokens.size());
    for (std::uint32_t c = 0; c < choices; ++c)
      part->choices.emplace_back(p * choices + c, tokenizer, start_.stops, options);
    parts_.push_back(std::move(part));
  }
}

Generation::~Generation() = default;

void Generation::submit() {
  Failure failure;
  for (std::uint32_t p = 0; p < parts_.size(); ++p) {
    const Submitted s = service_.submit(std::move(start_.requests[p]),
                                        std::make_shared<Sink>(shared_from_this(), p));
    if (!s.ok()) {
      failure = s.failure;
      break;
    }
    parts_[p]->ticket = s.ticket;
  }
  exchange_->post([self = shared_from_this(), failure = std::move(failure)]() mutable {
    self->started(std::move(failure));
  });
}

void Generation::enqueue(Event event) {
  {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(event));
    if (std::exchange(rung_, true)) return;
  }
  doorbell_.ring(shared_from_this());
}

void Generation::started(Failure failure) {
  started_ = true;
  if (failure.kind != FailureKind::none) {
    ApiError error = from_failure(failure);
    if (failure.kind == FailureKind::context_length) error.param = start_.asked.prompt_field;
    cancel_all();
    return fail(error);
  }
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
    prompts_[event.part].logprobs = std::move(*logprobs);
  } else if (auto* token = std::get_if<TokenEvent>(&event.what)) {
    handle_token(part, token->choice, std::move(token->token));
  } else if (auto* finish = std::get_if<FinishEvent>(&event.what)) {
    finish_choice(part, finish->choice, finish->how);
  } else if (auto* done = std::get_if<Done>(&event.what)) {
    part.done = std::move(*done);
    part.admitted.cached_tokens = part.done->cached_tokens;
    part.admitted.loaded_tokens = part.done->loaded_tokens;
    for (std::uint32_t c = 0; c < part.choices.size() && !over_; ++c)
      finish_choice(part, c, Finish::length);  // those that only scored their prompt
    if (++parts_done_ == parts_.size() && !over_) complete();
  } else if (auto* failure = std::get_if<Failure>(&event.what)) {
    if (failure->kind != FailureKind::cancelled) fail(from_failure(*failure));
  }
}

void Generation::admit(Part& part, const Admitted& admitted) {
  part.admitted = admitted;
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
  if (!asked.stream && asked.logprobs)
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
  // Where another shape was asked for, an object with a name is no call.
  const bool calls = asked.grammar.kind == AnswerGrammar::Kind::none ||
                     asked.grammar.kind == AnswerGrammar::Kind::tool_calls;
  if (asked.chat && calls && !asked.tools.is_null() &&
      asked.tool_choice.kind != ToolChoice::Kind::none) {
    piece.tools = c.tools.add(text);
    if (last) std::ranges::move(c.tools.finish(), std::back_inserter(piece.tools));
    std::erase_if(piece.tools, [&](ToolPiece& t) {
      if (t.kind == ToolPiece::Kind::content) piece.text += t.text;
      return t.kind == ToolPiece::Kind::content;
    });
    if (last && c.tools.calls() > 0 && c.finish == FinishReason::stop)
      c.finish = FinishReason::tool_calls;
  } else {
    piece.text = std::move(text);
  }
  if (!c.unshown.empty()) {
    const std::size_t shown_before = c.shown.size();
    const std::size_t now = c.answer.tokens_shown() - shown_before;
    const auto end =
        c.unshown.begin() + static_cast<std::ptrdiff_t>(std::min(now, c.unshown.size()));
    piece.tokens.assign(c.unshown.begin(), end);
    c.shown.insert(c.shown.end(), std::make_move_iterator(c.unshown.begin()),
                   std::make_move_iterator(end));
    c.unshown.erase(c.unshown.begin(), end);
  }
  if (last) piece.finish = c.finish;
  if (!asked.stream) {
    c.text += piece.text;
    for (ToolPiece& t : piece.tools) {
      if (t.kind == ToolPiece::Kind::call)
        c.calls.push_back({std::move(t.text), ""});
      else
        c.calls[t.index].arguments += t.text;
    }
    return;
  }
  const bool news = !c.piece_sent || last || !piece.text.empty() || !piece.tools.empty() ||
                    (asked.logprobs && !piece.tokens.empty());
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
    if (start_.asked.kv.policy.write != KvWrite::none) {
      const auto& mark = start_.prompts[part->number].breakpoint;
      const std::uint64_t kept = (mark ? *mark : prompt) / p * p;
      u.written += kept > cached ? kept - cached : 0;
    }
    for (const ChoiceState& c : part->choices) u.completion += c.answer.tokens();
    if (part->done) {
      u.predicted += part->done->predicted_accepted;
      u.mispredicted += part->done->predicted_wrong;
    }
  }
  return u;
}

Json Generation::kv_report() const {
  const KvRequest& asked = start_.asked.kv;
  if (!asked.given) return nullptr;
  const Runtime& runtime = service_.runtime();
  const Usage u = usage();
  Done sum;
  for (const auto& part : parts_) {
    const Done& d = *part->done;
    sum.computed_tokens += d.computed_tokens;
    sum.written_tokens += d.written_tokens;
    sum.approximate_tokens += d.approximate_tokens;
    sum.converted |= d.converted;
    sum.kv_bytes += d.kv_bytes;
    sum.preemptions += d.preemptions;
    sum.saved_prefill_seconds += d.saved_prefill_seconds;
  }
  const Done& first = *parts_.front()->done;
  const StoragePolicy& storage = asked.policy.storage ? *asked.policy.storage : runtime.storage();
  Json kv{{"request_id", start_.request_id},
          {"node", first.node == BlockKey{} ? Json() : Json(first.node.hex())},
          {"prompt_tokens", u.prompt},
          {"cached_tokens", u.cached},
          {"cached_by_tier", cached_by_tier(u)},
          {"computed_tokens", sum.computed_tokens},
          {"written_tokens", sum.written_tokens},
          {"format", format_json(storage)},
          {"bytes", sum.kv_bytes},
          {"lossy", storage.lossy() || storage.window > 0 || asked.policy.retain ||
                        asked.policy.select || asked.policy.blend ||
                        storage.prefill.way != SparsePrefill::Way::none},
          {"preemptions", sum.preemptions}};
  if (asked.policy.retain) {
    std::uint64_t whole = 0;
    for (const auto& part : parts_) whole += part->done->kv_bytes_whole;
    kv["budget"] = {{"policy", asked.policy.retain->text()}, {"bytes_whole", whole}};
  }
  if (asked.policy.blend) kv["approximate_tokens"] = sum.approximate_tokens;
  // The answer depends on what was cached: it may be another one next time.
  if (asked.policy.blend || asked.policy.convert)
    kv["approximate"] = sum.converted || sum.approximate_tokens > 0;
  if (asked.policy.select) {
    std::uint64_t read = 0, readable = 0;
    for (const auto& part : parts_) {
      read += part->done->kv_bytes_read;
      readable += part->done->kv_bytes_readable;
    }
    kv["select"] = {
        {"policy", asked.policy.select->text()}, {"bytes_read", read}, {"bytes_whole", readable}};
  }
  if (asked.report_seed) kv["seed"] = start_.asked.sampling.seed;
  if (asked.report_blocks)
    kv["blocks"] = {{"size", runtime.geometry().tokens_per_block},
                    {"cached", u.cached / runtime.geometry().tokens_per_block}};
  if (asked.report_timing)
    kv["timing"] = {{"queue_ms", ms(first.queue_seconds)},
                    {"load_ms", ms(first.load_seconds)},
                    {"prefill_ms", ms(first.prefill_seconds)},
                    {"ttft_ms", ms(first.first_token_seconds)},
                    {"decode_ms", ms(first.decode_seconds)},
                    {"saved_prefill_ms_est", ms(sum.saved_prefill_seconds)}};
  if (asked.report_explain)
    kv["explain"] = {{"outcome", outcome(asked.policy.reuse, u.prompt, u.cached,
                                         runtime.geometry().tokens_per_block)},
                     {"reason", reason_name(first.reason)},
                     {"at_token", u.cached}};
  if (!first.leases.empty()) {
    kv["leases"] = Json::array();
    for (const LeaseId id : first.leases)
      kv["leases"].push_back("pin_" + std::to_string(static_cast<std::uint64_t>(id)));
  }
  if (!first.lease_problem.empty()) kv["lease_problem"] = first.lease_problem;
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
                     .text = std::move(c->text),
                     .calls = std::move(c->calls),
                     .tokens = std::move(c->shown),
                     .token_ids = std::move(c->ids),
                     .finish = *c->finish,
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
