// server/generation.h - one generation request from submit to its last byte.
//
// Lives on the connection's thread. The engine reaches it only through sinks, which enqueue events
// and ring the Doorbell. Text, stop strings and tool calls are found here, away from the engine
// thread, and the dialect's AnswerWriter turns them into bytes.
//
//   auto g = std::make_shared<Generation>(context, exchange, std::move(start));
//   g->submit();              // worker thread: computes keys, enters the engine's queue
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "engine/answer_text.h"
#include "engine/service.h"
#include "net/http.h"
#include "server/answer_format/answer_format.h"
#include "server/dialect/dialect.h"
#include "server/generation_request.h"
#include "server/grammar.h"
#include "server/prompt.h"

namespace quire {

class Generation;

// Collects generations that have news and wakes the I/O thread once for all of them.
class Doorbell {
 public:
  explicit Doorbell(std::function<void(std::function<void()>)> post) : post_(std::move(post)) {}
  void ring(std::shared_ptr<Generation> who);  // any thread

 private:
  std::function<void(std::function<void()>)> post_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Generation>> waiting_;
};

// What is known of a request when it is over, for logs and counters.
struct GenerationSummary {
  Usage usage;
  std::uint32_t choices = 0, preemptions = 0;
  std::string response_id = {};
  std::vector<std::string> finishes = {};  // of the choices that ended
  bool timed = false;                      // the engine finished it: the times are there
  Nanoseconds submitted = 0;               // on SteadyClock
  double queue_ms = 0, lookup_ms = 0, load_ms = 0, prefill_ms = 0, ttft_ms = 0, decode_ms = 0;
  double tpot_ms_p50 = 0, tpot_ms_p99 = 0;
  std::string_view outcome = "miss";
  Reason reason = Reason::none;
  int status = 200;
  bool client_closed = false;
  std::string error_code = {};
};

struct GenerationStart {
  GenerationRequest asked;
  std::vector<Prompt> prompts = {};
  std::vector<Request> requests = {};  // one per prompt
  StopStrings stops = {};
  AnswerFormat format = {};  // how answers are read
  const Dialect* dialect = nullptr;
  std::unique_ptr<AnswerWriter> writer = {};
  std::string request_id = {};
  bool show_text = true;                       // of a change that kv.report explains
  std::shared_ptr<const MaskState> mask = {};  // where answers have a grammar
  // Runs what takes long on another thread than the connection's; none: there.
  std::function<void(std::function<void()>)> elsewhere = {};
  std::function<void(const GenerationSummary&)> ended = {};
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, Doorbell& doorbell, std::shared_ptr<Exchange> exchange,
             GenerationStart start);
  ~Generation();

  // Any thread but the engine's and the connection's. Prompts that have no answers enter the engine's
  // queue some at a time.
  void submit();
  void deliver();  // connection's thread: handles what came in

 private:
  struct TokenEvent {
    std::uint32_t choice;
    Choice token;
  };
  struct FinishEvent {
    std::uint32_t choice;
    Finish how;
  };
  struct Event {
    std::uint32_t part;
    std::variant<Admitted, std::vector<PromptLogprob>, TokenEvent, FinishEvent, Done, Failure> what;
  };
  class Sink;
  struct ChoiceState;
  struct Part;  // one prompt

  void enqueue(Event event);  // engine thread
  struct Entered {
    std::size_t first;  // prompt
    std::vector<Ticket> tickets;
    Failure failure;
  };
  Entered enter_queue(std::size_t first, std::size_t end);
  void entered(const Entered& e);
  void started(const Entered& e);
  void submit_more();
  void pump();
  void handle(Event event);
  void handle_token(Part& part, std::uint32_t choice, Choice token);
  void finish_choice(Part& part, std::uint32_t choice, Finish how);
  void admit(Part& part, const Admitted& admitted);
  void emit(Part& part, ChoiceState& choice, std::string text, bool last);
  void flush();
  void begin_stream();
  void fail(const ApiError& error);
  void complete();
  void respond_whole(std::vector<WholeAnswer> answers, Usage total, Json kv);
  void client_gone();
  void over(int status, std::string error_code);
  void cancel_all();

  std::vector<HttpHeader> headers() const;
  Usage usage() const;
  std::vector<KeptPrefix> kept_prefixes(const Part& part) const;
  Json kv_report() const;
  std::vector<WholeAnswer> answers();

  Service& service_;
  Doorbell& doorbell_;
  std::shared_ptr<Exchange> exchange_;
  GenerationStart start_;
  std::vector<PromptInfo> prompts_;
  std::vector<std::unique_ptr<Part>> parts_;
  Nanoseconds began_ = 0;

  std::mutex mutex_;          // of the next two
  std::vector<Event> inbox_;  // from the engine
  bool rung_ = false;

  std::deque<Event> backlog_;  // what a slow client made wait
  std::string pending_;        // bytes to be sent together
  std::size_t parts_submitted_ = 0, parts_admitted_ = 0, parts_done_ = 0;
  std::size_t logprobs_held_ = 0;  // of an answer that is sent whole
  bool submitting_ = false;        // a worker submits more prompts
  bool started_ = false, paused_ = false, streaming_ = false, over_ = false;
};

}  // namespace quire
