// cli/eval_formats.cc - `quire eval formats`: what each cache format does to the answers, on given
// text.
#include <fmt/core.h>

#include <optional>

#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/progress_line.h"
#include "engine/plan.h"
#include "lab/formats/quality.h"

namespace quire::cli {
namespace {

struct EvalFormatsOptions {
  ModelOptionsCli model;
  std::string text_file, reference = "f16";
  std::vector<std::string> formats;
  std::uint32_t window = 2048, windows = 4, together = 3;
  bool json = false;
};

Result<StoragePolicy> named_way(const std::string& name, const StoragePolicy* plan) {
  if (name == "planned" && plan == nullptr)
    return Error{Code::not_found, "planned: this model has no plan; `quire probe` makes one"};
  if (name == "planned") return *plan;
  TRY(const Format* format, find_format(name));
  return StoragePolicy(format);
}

// "kivi-2+sinks=4+recent=64": a format, and what stays exact in it.
Result<StoragePolicy> parse_way(const std::string& text, const StoragePolicy* plan = nullptr) {
  const std::size_t plus = text.find('+');
  TRY(StoragePolicy way, named_way(text.substr(0, plus), plan));
  for (std::size_t at = plus; at != std::string::npos;) {
    const std::size_t next = text.find('+', at + 1);
    const std::string part = text.substr(at + 1, next - at - 1);
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    std::uint32_t number = 0;
    if (equals == std::string::npos || !CLI::detail::lexical_cast(part.substr(equals + 1), number))
      return Error{Code::invalid, "'" + part + "': write sinks=N, recent=N or layer=N"};
    if (name == "sinks")
      way.sinks = number;
    else if (name == "recent")
      way.recent_exact = number;
    else if (name == "layer")
      way.skip_layers.push_back(number);
    else
      return Error{Code::invalid, "'" + name + "': sinks, recent and layer can stay exact"};
    at = next;
  }
  return way;
}

int run_eval_formats(EvalFormatsOptions o) {
  const auto reference = parse_way(o.reference);
  if (!reference.ok()) return fail(reference.error());
  o.model.kv_format = o.reference;
  const auto text = read_file(o.text_file);
  if (!text.ok()) return fail(kUsage, "--text-file " + text.error().message);
  auto opened = open_runtime(o.model);
  if (!opened.ok()) return fail(opened.error());
  Runtime& r = *opened.value();
  std::vector<TokenId> tokens = r.tokenizer().encode(text.value());
  const std::size_t wanted = std::size_t{o.window} * o.windows;
  if (tokens.size() < wanted || o.window > r.context() || o.window < 2)
    return fail(kUsage, fmt::format("the text has {} tokens, {} windows of {} (at most {}) need {}",
                                    tokens.size(), o.windows, o.window, r.context(), wanted));
  tokens.resize(wanted);

  std::vector<StoragePolicy> ways;
  if (o.formats.empty()) {
    for (const Format* f : formats())
      if (f->rows == RowType::f16 && f != reference.value().format && r.check_storage(f).ok())
        ways.emplace_back(f);
  }
  for (const std::string& name : o.formats) {
    const auto way = parse_way(name, r.plan());
    if (!way.ok()) return fail(way.error());
    ways.push_back(way.value());
  }
  const auto bytes_per_token = [&](const StoragePolicy& way) {
    return static_cast<double>(sequence_bytes(r.geometry(&way), o.window)) / o.window;
  };
  if (!o.json)
    fmt::print("{:<28}{:>12}{:>12}{:>10}{:>9}{:>12}{:>9}\n", "format", "bytes/token", "KL mean",
               "KL 99%", "top-1", "perplexity", "change");
  Json rows = Json::array();
  double seconds = 0;
  for (std::size_t first = 0; first < ways.size(); first += o.together) {
    QualityQuestion question{.reference = reference.value(),
                             .ways = {ways.begin() + static_cast<std::ptrdiff_t>(first),
                                      ways.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                         ways.size(), first + o.together))},
                             .window = o.window};
    std::optional<ProgressLine> line(std::in_place,
                                     fmt::format("formats {} to {} of {}: read", first + 1,
                                                 first + question.ways.size(), ways.size()),
                                     "tokens");
    question.progress = [&](std::uint64_t done) { line->at(done, tokens.size()); };
    const auto scores = compare_storage(r, question, tokens);
    seconds += line->seconds();
    line.reset();
    if (!scores.ok()) return fail(scores.error());
    for (std::size_t i = 0; i < scores.value().size(); ++i) {
      const Quality& q = scores.value()[i];
      const StoragePolicy& way = question.ways[i];
      const double change = q.perplexity / q.perplexity_reference - 1;
      rows.push_back({{"format", way.name()},
                      {"bytes_per_token", bytes_per_token(way)},
                      {"kl_mean", q.kl_mean},
                      {"kl_99", q.kl_99},
                      {"top_1", q.same_top},
                      {"perplexity", q.perplexity},
                      {"perplexity_change", change}});
      if (!o.json)
        fmt::print("{:<28}{:>12.0f}{:>12.3g}{:>10.3g}{:>8.2f}%{:>12.3f}{:>+8.2f}%\n", way.name(),
                   bytes_per_token(way), q.kl_mean, q.kl_99, 100 * q.same_top, q.perplexity,
                   100 * change);
      std::fflush(stdout);
      if (i + 1 == scores.value().size() && first + o.together >= ways.size() && !o.json)
        fmt::print("{:<28}{:>12.0f}{:>12}{:>10}{:>9}{:>12.3f}\n", reference.value().name(),
                   bytes_per_token(reference.value()), 0, 0, "", q.perplexity_reference);
    }
  }
  if (o.json)
    print_json({{"reference", reference.value().name()},
                {"tokens", tokens.size()},
                {"window", o.window},
                {"seconds", seconds},
                {"formats", rows}});
  else
    fmt::print("{} tokens in {}\n", tokens.size(), in_words(seconds));
  return kOk;
}

std::function<int()> declare_eval_formats(CLI::App& app) {
  auto o = std::make_shared<EvalFormatsOptions>();
  add_model_options(app, o->model);
  app.add_option("--text-file", o->text_file, "the text to read")->required();
  app.add_option("--formats", o->formats,
                 "formats to compare, e.g. int8,kivi-2+sinks=4+recent=64,q4_0+layer=0 (all)")
      ->delimiter(',');
  app.add_option("--reference", o->reference, "what they are compared with (f16)");
  app.add_option("--window", o->window, "tokens read from an empty cache (2048)");
  app.add_option("--windows", o->windows, "how many such windows (4)")->check(CLI::Range(1, 1024));
  app.add_option("--together", o->together, "formats per pass over the text (3)")
      ->check(CLI::Range(1, 16));
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_eval_formats(*o); };
}

}  // namespace

extern const Command kEvalFormats = {
    "eval formats", "compare cache formats: divergence and perplexity on a text",
    "examples:\n"
    "  quire eval formats --text-file book.txt\n"
    "  quire eval formats --text-file book.txt --formats int8,hadamard-int4,int8/hadamard-int4",
    declare_eval_formats};

}  // namespace quire::cli
