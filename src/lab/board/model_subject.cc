#include "lab/board/model_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>
#include <map>

#include "base/check.h"
#include "engine/blend.h"
#include "engine/combine.h"
#include "engine/compaction.h"
#include "engine/observer.h"
#include "engine/plan.h"
#include "engine/retain.h"
#include "kernels/storage.h"
#include "lab/board/asking.h"
#include "lab/board/way.h"

namespace quire {
namespace {

constexpr std::uint32_t kWindow = 64;  // last queries that are kept for all methods
constexpr std::size_t kWords = 2000;
constexpr std::uint32_t kTimed = 15;       // tokens
constexpr double kStreamShare = 0.3;       // rows that keep more are not asked to stream
constexpr std::uint32_t kStreamNone = 32;  // tokens that are seen without context, there

double seconds_since(Nanoseconds start) {
  return static_cast<double>(SteadyClock().now() - start) * 1e-9;
}

struct RowTask {
  std::size_t row;
  Way way;
};

// All rows that store a context in one format.
class Reader {
 public:
  Reader(Runtime& runtime, const Sample& sample, std::span<const RowSpec> rows,
         std::span<const RowTask> tasks, std::vector<std::vector<Distribution>>& full,
         std::vector<Measured>& out)
      : runtime_(runtime),
        stepper_(runtime),
        sample_(sample),
        rows_(rows),
        tasks_(tasks),
        full_(full),
        out_(out),
        asking_(runtime),
        context_(std::span(sample.context).first(sample.context.size() - 1)) {}

  Status run() {
    const Way& way = tasks_.front().way;  // all of them store and read the context alike
    if (way.format != nullptr) storage_.emplace(way.format);
    if (const SparsePrefill prefill = prefill_of(way, rows_[tasks_.front().row].share);
        prefill.way != SparsePrefill::Way::none) {
      if (!storage_) storage_.emplace(runtime_.storage());
      storage_->prefill = prefill;
    }
    TRY(root_, runtime_.tenant_root("", storage_ ? &*storage_ : nullptr));
    for (const RowTask& task : tasks_)
      if (task.way.method) needs_ = needs_ | task.way.method->needs;
    for (const RowTask& task : tasks_)
      if (task.way.merger) needs_ = needs_ | task.way.merger->needs | Signal::keys | Signal::values;
    TRY_STATUS(read_context());
    for (const RowTask& task : tasks_)
      if (!task.way.method || !aware(task)) TRY_STATUS(ask_blind(task));
    for (std::size_t q = 0; q < sample_.questions.size(); ++q) TRY_STATUS(ask_aware(q));
    return asking_.run();
  }

 private:
  bool aware(const RowTask& task) const { return rows_[task.row].aware; }

  // How much of the context its own blocks read.
  SparsePrefill prefill_of(const Way& way, double share) const {
    const auto half = static_cast<std::uint32_t>(share * static_cast<double>(context_.size()) / 2);
    if (way.selects == "xattention")
      return {.way = SparsePrefill::Way::antidiagonals, .threshold = static_cast<float>(share)};
    if (way.selects == "vertical-slash")
      return {.way = SparsePrefill::Way::vertical_slash, .columns = half, .diagonals = half};
    return {};
  }

  Result<Sequence> open(std::span<const TokenId> prompt = {}) {
    std::size_t longest = 0;
    for (const Question& q : sample_.questions)
      longest = std::max(longest, q.prompt.size() + q.candidates[0].size());
    TRY(Sequence s, runtime_.cache().open({.root = root_,
                                           .token_capacity = static_cast<std::uint32_t>(
                                               2 * sample_.context.size() + longest + 64),
                                           .reuse = false,
                                           .publish = false,
                                           .recomputable = false}));
    runtime_.cache().attach(s, prompt);
    return s;
  }

  // The second half of the context is read by itself, and found again behind the first.
  Status read_blended(double recompute) {
    runtime_.cache().clear(true);  // nothing else is there to be found
    const std::size_t half = context_.size() / 2;
    TRY(Sequence alone,
        runtime_.cache().open(
            {.root = root_, .token_capacity = static_cast<std::uint32_t>(context_.size())}));
    runtime_.cache().attach(alone, context_.subspan(half));
    TRY_STATUS(stepper_.prefill(alone, static_cast<std::uint32_t>(context_.size() - half)));
    alone.close();
    const SequenceOptions options{.root = root_, .token_capacity = 1};
    if (auto blend = find_blend(runtime_, base_, recompute, options)) {
      TRY_STATUS(blend->lay(runtime_));
      while (!blend->done()) TRY_STATUS(blend->advance(stepper_, 512));
    }
    return stepper_.prefill(base_, static_cast<std::uint32_t>(context_.size()));
  }

  Status feed(Sequence& s, std::span<const TokenId> tokens, Observer* observer) {
    const std::uint32_t rows_max = runtime_.executor().traits().rows_max;
    for (std::size_t at = 0; at < tokens.size(); at += rows_max) {
      const auto part = tokens.subspan(at, std::min<std::size_t>(rows_max, tokens.size() - at));
      StepItem item{&s, part, Logits::none};
      if (observer)
        item.tap = observer->before_step(s.length(), static_cast<std::uint32_t>(part.size()));
      TRY([[maybe_unused]] const auto none, stepper_.run({&item, 1}));
      if (observer) observer->after_step(runtime_, s);
    }
    return {};
  }

  Status read_context() {
    const Nanoseconds began = SteadyClock().now();
    const Way& way = tasks_.front().way;
    const bool whole =
        way.blends || (storage_ && storage_->prefill.way != SparsePrefill::Way::none);
    TRY(base_, open(whole ? context_ : std::span<const TokenId>()));
    observer_.emplace(runtime_, root_, needs_, kWindow,
                      static_cast<std::uint32_t>(context_.size()));
    const RowSpec& row = rows_[tasks_.front().row];
    TRY_STATUS(way.blends ? read_blended(row.method == "cacheblend" ? 1 - row.share : 0)
                          : feed(base_, context_, &*observer_));
    prefill_s_ = seconds_since(began) - observer_->seconds();
    if (asks(needs_, Signal::peak_mass)) {
      const Nanoseconds again = SteadyClock().now();
      TRY_STATUS(observer_->read_again(stepper_, base_));
      again_s_ = seconds_since(again);
    }
    return {};
  }

  void measure(Measured& m, const Sequence& s, double compress_s) const {
    const auto n = static_cast<double>(s.length());
    const Geometry& g = runtime_.cache().geometry(root_);
    double constant = 0;
    for (const LayerGroup& group : g.groups)
      if (group.window > 0)
        constant +=
            static_cast<double>(resident_blocks(g, group, s.length()) * g.block_bytes(group));
    const auto bytes = static_cast<double>(runtime_.cache().bytes(s));
    m.bytes_constant = constant;
    m.bytes_per_token = (bytes - constant) / n;
    m.bytes_peak = (bytes + static_cast<double>(runtime_.cache().bytes(base_)) - 2 * constant) / n;
    m.prefill_s = prefill_s_;
    m.compress_s = compress_s;
  }

  struct Scored {
    LaneScoring scores;
    double seconds;  // that they took, what was gathered for them included
  };
  using Scores = std::map<std::string, Scored>;

  // Every method's scores once, whatever the budgets.
  Result<const Scored*> scores(const Way& way, Observer& observer, const Sequence& s,
                               Scores& known) {
    // A wrapped method has the name of the method inside; the entry's fields tell them apart.
    const std::string name = fmt::format(
        "{} {} {}", way.method->name, static_cast<int>(way.method->rule), way.method->first_stage);
    const auto found = known.find(name);
    if (found != known.end()) return &found->second;
    const Nanoseconds began = SteadyClock().now();
    TRY(std::vector<LaneScoring> made, observer.score(runtime_, s, {&*way.method, 1}));
    double seconds = seconds_since(began);
    if (asks(way.method->needs, Signal::total_mass)) seconds += observer.seconds();
    if (asks(way.method->needs, Signal::peak_mass)) seconds += again_s_;
    return &known.emplace(name, Scored{std::move(made[0]), seconds}).first->second;
  }

  std::vector<std::uint8_t> marks(std::size_t tokens) const {
    std::vector<std::uint8_t> all =
        token_marks(runtime_.tokenizer(), std::span(sample_.context).first(context_.size()));
    all.resize(tokens);
    for (const Question& q : sample_.questions)
      for (const std::uint32_t slot : q.answer)
        if (slot < all.size()) all[slot] |= kMarkAnswer;
    return all;
  }

  // A fork of `from` that holds what the row keeps.
  Result<Sequence> compressed(const RowTask& task, Observer& observer, const Sequence& from,
                              Scores& known, double& seconds) {
    TRY(Sequence s, runtime_.cache().fork(from));
    if (!task.way.method || rows_[task.row].share >= 1) return s;  // everything stays
    TRY(const Scored* const scored, scores(task.way, observer, from, known));
    const Nanoseconds began = SteadyClock().now();
    const std::uint32_t budget =
        budget_slots(static_cast<std::uint32_t>(context_.size()), rows_[task.row].share);
    Compaction compaction(runtime_, s, observer.layers(), *task.way.method, scored->scores, budget);
    std::vector<MergeState> states(compaction.lanes());
    double operations = std::numeric_limits<double>::infinity();
    if (task.way.merger)
      compaction.merge_some(runtime_, s, *task.way.merger, observer, states, operations);
    TRY_STATUS(compaction.carry_out(runtime_, s));
    seconds = scored->seconds + seconds_since(began);
    return s;
  }

  Status ask_blind(const RowTask& task) {
    Measured& m = out_[task.row];
    Sequence s;
    double seconds = 0;
    if (task.way.no_context) {
      TRY(s, open());
    } else {
      observer_->set_marks(marks(context_.size()));
      observer_->finish(runtime_, base_);
      TRY(s, compressed(task, *observer_, base_, scores_, seconds));
      measure(m, s, seconds);
    }
    std::optional<Selecting> select;
    if (task.way.selects == "quest")
      select.emplace(runtime_, SelectPolicy{.name = "quest", .share = rows_[task.row].share},
                     s.length(), root_);
    if (sample_.timed) TRY_STATUS(time_decode(m, s, select));
    for (std::size_t q = 0; q < sample_.questions.size(); ++q) {
      TRY(Sequence fork, runtime_.cache().fork(s));
      TRY_STATUS(asking_.add(std::move(fork), {sample_.context.back()}, sample_.questions[q],
                             &full_[q], rows_[task.row].method == "full", &m.replies[q], select));
    }
    return {};
  }

  // The median over some tokens of an answer by itself.
  Status time_decode(Measured& m, const Sequence& s, std::optional<Selecting> select) {
    if (s.length() == 0) return {};
    TRY(Sequence fork, runtime_.cache().fork(s));
    std::vector<double> seconds;
    for (std::uint32_t i = 0; i < kTimed + 2; ++i) {
      const StepItem item{
          &fork, {&sample_.context.back(), 1}, Logits::last, select ? &*select : nullptr};
      const Nanoseconds began = SteadyClock().now();
      TRY([[maybe_unused]] const auto logits, stepper_.run({&item, 1}));
      if (i >= 2) seconds.push_back(seconds_since(began));  // the first ones fill caches
    }
    std::ranges::nth_element(seconds, seconds.begin() + kTimed / 2);
    m.decode_s = seconds[kTimed / 2];
    return {};
  }

  // The question is read, all but its last token, before anything is compressed.
  Status ask_aware(std::size_t index) {
    const Question& q = sample_.questions[index];
    if (std::ranges::none_of(tasks_,
                             [&](const RowTask& task) { return task.way.method && aware(task); }))
      return {};
    TRY(Sequence seen, runtime_.cache().fork(base_));
    Observer observer = *observer_;
    std::vector<TokenId> lead = {sample_.context.back()};
    Question rest = q;
    if (!q.prompt.empty()) {
      lead.insert(lead.end(), q.prompt.begin(), q.prompt.end() - 1);
      TRY_STATUS(feed(seen, lead, &observer));
      lead = {q.prompt.back()};
    }
    rest.prompt = {};
    questions_.push_back(std::move(rest));
    observer.set_marks(marks(seen.length()));
    observer.finish(runtime_, seen);
    Scores known;
    for (const RowTask& task : tasks_) {
      if (!task.way.method || !aware(task)) continue;
      double seconds = 0;
      TRY(Sequence s, compressed(task, observer, seen, known, seconds));
      if (index == 0) measure(out_[task.row], s, seconds);
      if (index == 0 && sample_.timed) TRY_STATUS(time_decode(out_[task.row], s, {}));
      TRY_STATUS(asking_.add(std::move(s), lead, questions_.back(), &full_[index], false,
                             &out_[task.row].replies[index]));
    }
    return {};
  }

  Runtime& runtime_;
  Stepper stepper_;
  const Sample& sample_;
  const std::span<const RowSpec> rows_;
  const std::span<const RowTask> tasks_;
  std::vector<std::vector<Distribution>>& full_;
  std::vector<Measured>& out_;
  Asking asking_;
  const std::span<const TokenId> context_;
  std::optional<StoragePolicy> storage_;
  RootId root_{};
  Signal needs_ = Signal::none;
  Sequence base_;
  std::optional<Observer> observer_;
  Scores scores_;
  std::deque<Question> questions_;  // what is left to ask after compression; outlives the asking
  double prefill_s_ = 0, again_s_ = 0;
};

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

Json ModelSubject::identity() const {
  const auto digest = runtime_.source().weights_digest();
  std::string hex;
  if (digest.ok())
    for (const std::byte b : digest.value())
      hex += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return {{"model", runtime_.config().name},
          {"weights_sha256", hex},
          {"kv_format", runtime_.kv_format()},
          {"block_size", runtime_.geometry().tokens_per_block},
          {"numerics", std::to_string(runtime_.executor().traits().numerics)}};
}

Json ModelSubject::machine() const {
  return {{"processor", processor_name()},
          {"threads", runtime_.threads()},
          {"build", std::string("quire, ") + __VERSION__}};
}

// Reads the scored text a block at a time and compacts between blocks. The result is the same as
// reading token by token.
Result<std::vector<Measured>> ModelSubject::stream(const Sample& sample,
                                                   std::span<const RowSpec> rows) {
  const std::uint32_t per_block = runtime_.geometry().tokens_per_block;
  const std::vector<TokenId>& text = sample.questions[0].candidates[0];
  const auto all = static_cast<double>(sample.context.size() + text.size());
  std::vector<Measured> out(rows.size());
  std::vector<Distribution> full;
  TRY(const RootId root, runtime_.tenant_root(""));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    TRY(const Way way, parse_way(rows[r].method));
    const bool anchor = rows[r].method == "full" || rows[r].method == "none" ||
                        (rows[r].method == "random" && rows[r].share == 0.5);
    const bool decodes = way.method && way.method->when != RetainWhen::prompt_end && !way.merger;
    if (way.format || (!anchor && (!decodes || rows[r].share > kStreamShare))) continue;
    std::optional<Retaining> retain;
    if (rows[r].method != "full") {
      const std::uint32_t cap =
          way.no_context ? kStreamNone : static_cast<std::uint32_t>(rows[r].share * all);
      TRY(RetainPolicy policy, parse_retain_policy(fmt::format(
                                   "{}:{}", way.no_context ? "window" : rows[r].method, cap)));
      retain.emplace(runtime_, std::make_shared<RetainPolicy>(std::move(policy)),
                     static_cast<std::uint32_t>(sample.context.size()), root);
    }
    TRY(Sequence s, runtime_.cache().open({.root = root,
                                           .token_capacity = static_cast<std::uint32_t>(all) + 1,
                                           .reuse = false,
                                           .publish = false,
                                           .recomputable = false}));
    runtime_.cache().attach(s, {});
    Asking asking(runtime_);
    out[r].replies.resize(1);
    TRY(const double most, asking.stream(s, retain ? &*retain : nullptr, sample, per_block, full,
                                         rows[r].method == "full", out[r].replies[0]));
    out[r].bytes_per_token = static_cast<double>(runtime_.cache().bytes(s)) / all;
    out[r].bytes_peak = most / all;
  }
  return out;
}

Result<std::vector<Measured>> ModelSubject::answer(const Sample& sample,
                                                   std::span<const RowSpec> rows) {
  if (sample.stream) return stream(sample, rows);
  std::vector<Measured> out(rows.size());
  std::vector<std::vector<Distribution>> full(sample.questions.size());
  // By how the context is stored and read; "" is what the model is opened with.
  std::map<std::string, std::vector<RowTask>> by_format;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    out[r].replies.resize(sample.questions.size());
    TRY(Way way, parse_way(rows[r].method));
    std::string name(way.format ? way.format->name : "");
    if (way.blends || (!way.selects.empty() && way.selects != "quest"))
      name += ' ' + rows[r].name();
    std::vector<RowTask>& list = by_format[name];
    // All rows are compared with the answers of the whole cache.
    const bool first = rows[r].method == "full";
    list.insert(first ? list.begin() : list.end(), {r, std::move(way)});
  }
  for (const auto& [name, tasks] : by_format) {  // "" comes first
    Reader reader(runtime_, sample, rows, tasks, full, out);
    TRY_STATUS(reader.run());
  }
  return out;
}

Result<Vocabulary> read_vocabulary(const Runtime& runtime, const std::string& text) {
  const Tokenizer& tokenizer = runtime.tokenizer();
  std::map<std::string, std::uint32_t> counts;
  std::string word;
  for (const char c : text + ' ') {
    if (std::islower(static_cast<unsigned char>(c))) {
      word += c;
      continue;
    }
    if (word.size() >= 3 && word.size() <= 9) ++counts[word];
    word.clear();
  }
  std::vector<std::pair<std::uint32_t, std::string>> order;
  for (const auto& [w, n] : counts) order.emplace_back(n, w);
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  Vocabulary v;
  for (const auto& [n, w] : order) {
    const std::vector<TokenId> ids = tokenizer.encode(" " + w, {});
    if (ids.size() == 1) v.words.push_back(ids[0]);
    if (v.words.size() == kWords) break;
  }
  v.text = tokenizer.encode(text, {});
  v.encode = [&tokenizer](std::string_view piece) { return tokenizer.encode(piece, {}); };
  if (v.words.size() < 400 || v.text.size() < 8192)
    return Error{Code::invalid,
                 fmt::format("the text has {} tokens and {} words of one token; 8192 and 400 are "
                             "needed: scripts/fetch-text gets one that is long enough",
                             v.text.size(), v.words.size())};
  return v;
}

std::vector<RowSpec> model_rows(const Runtime& runtime, std::span<const double> shares) {
  std::vector<RowSpec> rows = default_rows(shares);
  const auto every_share = [&](const char* method, bool aware) {
    for (const double share : shares) rows.push_back({method, share, aware});
  };
  every_share("ada-snapkv", true);
  every_share("critical-snapkv", true);
  every_share("ada-expected", false);
  for (const char* merged : {"h2o+value", "h2o+d2o", "h2o+cam"})
    rows.push_back({merged, 0.5, true});
  for (const Format* f : formats()) {
    if (f->exact) continue;
    const StoragePolicy storage(f);
    if (runtime.check_storage(storage).ok()) rows.push_back({std::string(f->name)});
  }
  for (const double share : shares) rows.push_back({"quest", share});
  for (const double share : {0.95, 0.9, 0.8}) rows.push_back({"xattention", share});
  for (const double share : {0.5, 0.28}) rows.push_back({"vertical-slash", share});
  const Geometry geometry = runtime.geometry();
  if (check_combination({.geometry = &geometry, .blends = true}).ok()) {
    for (const double share : {0.85, 0.7}) rows.push_back({"cacheblend", share});
    rows.push_back({"key-rotation"});
  }
  for (const char* both : {"snapkv+hadamard-int4", "snapkv+int8"})
    rows.push_back({both, 0.5, true});
  for (const char* both : {"expected+hadamard-int4", "kvzip+hadamard-int4", "streaming+int8"})
    rows.push_back({both, 0.5, false});
  return rows;
}

}  // namespace quire
