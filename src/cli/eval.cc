// cli/eval.cc - `quire eval`: scores given tokens: log-probabilities, perplexity, top alternatives.
#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/progress_line.h"
#include "engine/stepper.h"

namespace quire::cli {
namespace {

struct EvalOptions {
  ModelOptionsCli model;
  std::string tokens, text_file, logits_file;
  std::uint32_t window = 0, chunk = 0, top = 0, every = 1;
  bool per_token = false, json = false;
};

// Scores one window from an empty context; positions count from the window's first token.
struct Totals {
  double nll = 0;
  std::uint64_t scored = 0, rows_written = 0;
  Json positions = Json::array(), nlls = Json::array(), best = Json::array();
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> rows{nullptr, std::fclose};  // of --logits
};

Status score(Runtime& r, std::span<const TokenId> tokens, std::uint32_t first, const EvalOptions& o,
             Totals& totals) {
  const std::uint32_t vocabulary = r.config().vocabulary;
  Stepper stepper(r);
  const std::uint32_t rows = std::min(o.chunk ? o.chunk : 128u, r.executor().traits().rows_max);
  TRY(Sequence s, r.empty_sequence(static_cast<std::uint32_t>(tokens.size())));
  for (std::uint32_t at = 0; at < tokens.size();) {
    const auto count =
        std::min<std::uint32_t>(rows, static_cast<std::uint32_t>(tokens.size()) - at);
    const StepItem item{&s, tokens.subspan(at, count), Logits::all};
    TRY(const std::span<float> logits, stepper.run({&item, 1}));
    for (std::uint32_t i = 0; i < count; ++i, ++at) {
      const auto row = logits.subspan(std::size_t{i} * vocabulary, vocabulary);
      const double sum = r.sampler().log_sum_exp(row);
      const bool has_next = at + 1 < tokens.size();
      if (has_next) {
        totals.nll += sum - row[tokens[at + 1]];
        ++totals.scored;
      }
      if (o.per_token) {
        totals.best.push_back(r.sampler().top(row, 1).front().token);
        totals.nlls.push_back(has_next ? Json(sum - row[tokens[at + 1]]) : Json(nullptr));
      }
      if ((first + at) % o.every != 0) continue;
      if (totals.rows) {
        if (std::fwrite(row.data(), sizeof(float), row.size(), totals.rows.get()) != row.size())
          return Error{Code::unavailable,
                       o.logits_file + ": could not be written; is the disk full?"};
        ++totals.rows_written;
      }
      if (o.top == 0) continue;
      Json ids = Json::array(), logprobs = Json::array();
      for (const TokenLogprob& t : r.sampler().top(row, o.top)) {
        ids.push_back(t.token);
        logprobs.push_back(t.logprob);
      }
      Json entry{
          {"position", first + at}, {"ids", ids}, {"logprobs", logprobs}, {"log_sum_exp", sum}};
      if (has_next) entry["next_logprob"] = row[tokens[at + 1]] - sum;
      totals.positions.push_back(std::move(entry));
    }
  }
  return {};
}

int run_eval(const EvalOptions& o) {
  if (o.tokens.empty() == o.text_file.empty())
    return fail(kUsage, "nothing to score; give --tokens or --text-file",
                "quire eval --text-file book.txt");
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  Runtime& r = *runtime.value();
  std::vector<TokenId> tokens;
  if (!o.tokens.empty()) {
    auto parsed = parse_tokens(o.tokens);
    if (!parsed.ok()) return fail(parsed.error());
    tokens = std::move(parsed.value());
  } else {
    const auto text = read_file(o.text_file);
    if (!text.ok()) return fail(kFailed, "--text-file " + text.error().message);
    tokens = r.tokenizer().encode(text.value());
  }
  for (const TokenId t : tokens)
    if (t >= r.config().vocabulary)
      return fail(kUsage, fmt::format("token {} is outside the vocabulary", t));
  const std::uint32_t window = o.window ? o.window : r.context();
  if (tokens.size() < 2 || window < 2 || window > r.context())
    return fail(kUsage,
                fmt::format("need two tokens or more, and a window of 2 to {}", r.context()));
  Totals totals;
  if (!o.logits_file.empty()) {
    totals.rows.reset(std::fopen(o.logits_file.c_str(), "wb"));
    if (!totals.rows) return fail(kFailed, o.logits_file + ": cannot be opened for writing");
  }
  std::optional<ProgressLine> line(std::in_place, "scored", "tokens");
  for (std::size_t first = 0; first + 1 < tokens.size(); first += window) {
    line->at(first, tokens.size());
    const auto part =
        std::span(tokens).subspan(first, std::min<std::size_t>(window, tokens.size() - first));
    const auto done = score(r, part, static_cast<std::uint32_t>(first), o, totals);
    if (!done.ok()) return fail(done.error());
  }
  if (totals.rows && std::fflush(totals.rows.get()) != 0)
    return fail(kFailed, o.logits_file + ": could not be written; is the disk full?");
  const double seconds = line->seconds();
  line.reset();
  const double mean = totals.nll / static_cast<double>(totals.scored);
  if (o.json) {
    Json out{{"tokens", tokens.size()},    {"scored", totals.scored},
             {"nll_per_token", mean},      {"perplexity", std::exp(mean)},
             {"kv_format", r.kv_format()}, {"activations", o.model.activations}};
    if (o.top > 0) out["positions"] = std::move(totals.positions);
    if (o.per_token) out["nll"] = std::move(totals.nlls), out["best"] = std::move(totals.best);
    if (totals.rows)
      out["logits"] = {{"rows", totals.rows_written}, {"vocabulary", r.config().vocabulary}};
    print_json(out);
  } else {
    fmt::print("perplexity {:.4f} ({:.5f} nats per token over {} tokens, windows of {}, in {})\n",
               std::exp(mean), mean, totals.scored, window, in_words(seconds));
  }
  return kOk;
}

std::function<int()> declare_eval(CLI::App& app) {
  auto o = std::make_shared<EvalOptions>();
  add_model_options(app, o->model);
  app.add_option("--tokens", o->tokens, "token numbers: 1,2,3 or @FILE (JSON array)");
  app.add_option("--text-file", o->text_file, "a text to tokenize and score");
  app.add_option("--window", o->window, "score in windows of this many tokens (the context)");
  app.add_option("--chunk", o->chunk, "rows per step (128)");
  app.add_option("--top", o->top, "report the k likeliest tokens of each position")
      ->check(CLI::Range(0, 1024));
  app.add_option("--every", o->every, "report only every Nth position (1)")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--logits", o->logits_file,
                 "write whole rows of logits of these positions (f32) to a file");
  app.add_flag("--per-token", o->per_token,
               "report the score and the likeliest token of every position");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_eval(*o); };
}

}  // namespace

extern const Command kEval = {
    "eval", "score a text: log-probabilities and perplexity",
    "examples:\n"
    "  quire eval model.gguf --text-file book.txt --window 1024\n"
    "  quire eval model.gguf --tokens @ids.json --top 128 --every 16 --json",
    declare_eval};

}  // namespace quire::cli
