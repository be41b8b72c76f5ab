#include "lab/load/run.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <queue>

namespace quire::load {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Plays a workload: an agenda of turns that are due, and one live record per session.
class Player : HttpClient::Listener {
 public:
  Player(const Plan& plan, const Workload& workload)
      : plan_(plan),
        workload_(workload),
        client_(plan.endpoint, *this, plan.headers),
        path_(plan.endpoint.path(api_route(plan.ask.api))),
        total_(workload.requests()) {
    live_.reserve(workload.sessions.size());
    for (std::size_t i = 0; i < workload.sessions.size(); ++i) live_.emplace_back(plan.ask);
  }

  Measured play() {
    const double cpu = cpu_seconds();
    start_ = clock_.now();
    if (plan_.concurrency == 0) {
      for (std::uint32_t s = 0; s < live_.size(); ++s)
        agenda_.push({workload_.sessions[s].start_s, s});
      next_session_ = static_cast<std::uint32_t>(live_.size());
    } else {
      for (std::uint32_t i = 0; i < plan_.concurrency; ++i) begin_session();
    }
    while (!agenda_.empty() || client_.in_flight() > 0) {
      while (!agenda_.empty() && agenda_.top().at_s <= now()) {
        const Due due = agenda_.top();
        agenda_.pop();
        send(due);
      }
      client_.poll(wait_ms());
      client_.expire(static_cast<Nanoseconds>(plan_.timeout_s * 1e9));
    }
    run_.client_cpu_s = cpu_seconds() - cpu;
    double first = 1e300, last = 0;
    for (const Record& r : run_.requests) {
      first = std::min(first, r.sent_s);
      last = std::max(last, r.end_s);
    }
    run_.seconds = run_.requests.empty() ? 0 : last - first;
    return std::move(run_);
  }

 private:
  struct Due {
    double at_s;
    std::uint32_t session;
    bool operator<(const Due& o) const { return at_s > o.at_s; }  // the earliest on top
  };
  struct Live {
    explicit Live(const AskOptions& options) : dialogue(options) {}
    Dialogue dialogue;
    Record record;
    std::string answer;
    std::uint32_t turn = 0;
  };

  double now() const { return at(clock_.now()); }
  double at(Nanoseconds t) const { return static_cast<double>(t - start_) * 1e-9; }

  int wait_ms() const {
    if (agenda_.empty()) return 1000;
    return static_cast<int>(std::clamp(std::ceil((agenda_.top().at_s - now()) * 1e3), 0.0, 1e3));
  }

  void begin_session() {
    if (next_session_ < live_.size()) agenda_.push({now(), next_session_++});
  }

  void send(const Due& due) {
    Live& live = live_[due.session];
    const SessionPlan& session = workload_.sessions[due.session];
    const TurnPlan& turn = session.turns[live.turn];
    if (live.turn == 0)
      for (const Part& part : session.opening) live.dialogue.say(part);
    live.dialogue.say(turn.adds);
    const std::string body = live.dialogue.body(turn.output_tokens);
    live.answer.clear();
    live.record = {};
    live.record.session = due.session;
    live.record.turn = live.turn;
    live.record.sent_s = now();
    live.record.late_s = live.record.sent_s - due.at_s;
    client_.post(due.session, path_, body);
  }

  void event(std::uint64_t session, Nanoseconds when, std::string_view data) override {
    Live& live = live_[session];
    Record& r = live.record;
    Chunk chunk = read_chunk(data);
    if (!chunk.error.empty()) r.error = chunk.error;
    if (chunk.usage) r.usage = *chunk.usage;
    if (chunk.text.empty()) return;
    const double t = at(when);
    if (r.first_s < 0)
      r.first_s = t;
    else
      r.gaps_s.push_back(static_cast<float>(t - r.last_s));
    r.last_s = t;
    if (live.turn + 1 < workload_.sessions[session].turns.size()) live.answer += chunk.text;
  }

  void end(std::uint64_t session, Nanoseconds when, const HttpEnding& ending) override {
    Live& live = live_[session];
    Record& r = live.record;
    r.end_s = at(when);
    if (r.error.empty() && !ending.error.empty())
      r.error = ending.error + (ending.body.empty() ? "" : ": " + ending.body.substr(0, 300));
    if (r.error.empty() && r.first_s < 0) r.error = "the answer held no text";
    if (r.usage.output == 0 && r.first_s >= 0) r.usage.output = r.gaps_s.size() + 1;
    const std::vector<TurnPlan>& turns = workload_.sessions[session].turns;
    const bool failed = !r.error.empty();
    run_.requests.push_back(std::move(r));
    ended_ += failed ? turns.size() - live.turn : 1;
    if (plan_.progress) plan_.progress(ended_, total_);
    ++live.turn;
    if (!failed && live.turn < turns.size()) {
      live.dialogue.answered(live.answer);
      agenda_.push({now() + turns[live.turn].think_s, static_cast<std::uint32_t>(session)});
    } else if (plan_.concurrency > 0) {
      begin_session();  // a conversation that failed has no later turns
    }
  }

  const Plan& plan_;
  const Workload& workload_;
  SteadyClock clock_;
  Nanoseconds start_ = 0;
  std::priority_queue<Due> agenda_;
  std::vector<Live> live_;
  std::uint32_t next_session_ = 0;
  HttpClient client_;
  std::string path_;
  Measured run_;
  std::size_t ended_ = 0, total_;
};

Result<std::uint64_t> count_words(const Plan& plan, std::uint32_t words) {
  AskOptions ask = plan.ask;
  ask.extra = Json::object();
  Dialogue probe(ask);
  probe.say({"user", 0, 0, make_words(words, words)});
  TRY(const std::string text, http_fetch(plan.endpoint, plan.endpoint.path(api_route(ask.api)),
                                         probe.body(1, false), plan.headers));
  TRY(const Json answer, parse_json(text));
  const auto usage = read_usage(answer);
  if (!usage || usage->prompt == 0)
    return Error{Code::unsupported,
                 "the server does not tell usage.prompt_tokens, so the length "
                 "of text cannot be set; try --api ids"};
  return usage->prompt;
}

}  // namespace

Result<Measured> run_load(const Plan& plan, const Workload& workload) {
  for (const SessionPlan& s : workload.sessions) {
    if (plan.ask.api != Api::token_ids) break;
    const bool words = std::any_of(s.opening.begin(), s.opening.end(),
                                   [](const Part& p) { return !p.text.empty(); });
    if (s.turns.size() > 1 || words || !s.turns[0].adds.text.empty())
      return Error{Code::invalid,
                   fmt::format("workload '{}' needs text: a later turn repeats what the server "
                               "said; use --api chat",
                               workload.name)};
  }
  return Player(plan, workload).play();
}

Result<Calibration> calibrate(const Plan& plan) {
  if (plan.ask.api == Api::token_ids) return Calibration{};
  constexpr std::uint32_t kFew = 32, kMany = 160;
  TRY(const std::uint64_t few, count_words(plan, kFew));
  TRY(const std::uint64_t many, count_words(plan, kMany));
  const double per_word = (static_cast<double>(many) - static_cast<double>(few)) / (kMany - kFew);
  if (per_word < 0.25 || per_word > 16)
    return Error{Code::corrupt, fmt::format("the server counts {} words as {} tokens and {} as {}",
                                            kFew, few, kMany, many)};
  return Calibration{per_word, static_cast<double>(few) - per_word * kFew};
}

Result<std::string> first_model(const Endpoint& endpoint, const std::string& headers) {
  TRY(const std::string text, http_fetch(endpoint, endpoint.path("/models"), "", headers));
  TRY(const Json answer, parse_json(text));
  const Json* data = answer.is_object() && answer.contains("data") ? &answer["data"] : nullptr;
  if (!data || !data->is_array() || data->empty() || !data->front().is_object() ||
      !data->front().contains("id") || !data->front()["id"].is_string())
    return Error{Code::unsupported, "the server lists no models; name one with --model"};
  return data->front()["id"].get<std::string>();
}

}  // namespace quire::load
