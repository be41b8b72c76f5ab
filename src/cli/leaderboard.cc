// cli/leaderboard.cc - `quire leaderboard`: methods that make the cache smaller, compared on the same
// model, samples and bytes.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/script.h"
#include "lab/board/model_subject.h"
#include "lab/board/report.h"

namespace quire::cli {
namespace {

struct LeaderboardOptions {
  ModelOptionsCli model;
  std::string what, file, tier = "standard", out = "leaderboard", text_file;
  std::vector<std::string> methods;
  std::vector<double> shares;
  std::uint64_t seed = 1;
  bool json = false;
};

// The text that was named, or the default text, which is fetched on first use.
Result<std::string> board_text(const LeaderboardOptions& o) {
  if (!o.text_file.empty()) return read_file(o.text_file);
  const std::string kept = std::filesystem::path(model_cache_folder()).parent_path() / "text" /
                           "developers-reference.txt";
  if (std::filesystem::exists(kept)) return read_file(kept);
  TRY(const std::string fetched, run_script("fetch-text", {}));
  return read_file(fetched);
}

// Results, and the pages made of them.
Status publish(const LeaderboardOptions& o, const Json& result) {
  std::filesystem::create_directories(o.out);
  TRY_STATUS(write_file(o.out + "/results.json", result.dump(1) + '\n'));
  TRY_STATUS(write_file(o.out + "/leaderboard.md", board_markdown(result)));
  return write_file(o.out + "/leaderboard.html", board_html(result));
}

bool wanted(const LeaderboardOptions& o, const RowSpec& row) {
  if (o.methods.empty()) return true;
  for (const char* anchor : {"full", "none", "random", "oracle"})
    if (row.method == anchor && (row.share == 0.5 || row.share == 1 || row.share == 0)) return true;
  return std::ranges::find(o.methods, row.method) != o.methods.end();
}

int run_all(LeaderboardOptions& o) {
  const auto text = board_text(o);
  if (!text.ok())
    return fail(kFailed, text.error().message, "give a natural text with --text-file");
  if (o.tier == "smoke" && o.methods.empty())
    o.methods = {"streaming", "snapkv", "expected", "hadamard-int4"};
  if (o.shares.empty() && o.tier == "smoke")
    o.shares = {0.5, 0.19};
  else if (o.shares.empty())
    o.shares = {0.5, 0.375, 0.28, 0.19, 0.125};
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  auto vocabulary = read_vocabulary(*runtime.value(), text.value());
  if (!vocabulary.ok()) return fail(vocabulary.error());
  ModelSubject subject(*runtime.value());
  std::vector<RowSpec> rows = model_rows(*runtime.value(), o.shares);
  std::erase_if(rows, [&](const RowSpec& r) { return !wanted(o, r); });
  const auto began = std::chrono::steady_clock::now();
  const auto progress = [&](std::size_t done, std::size_t all) {
    const double s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    fmt::print(stderr, "{}{}/{} samples, {:.0f} s{}", isatty(STDERR_FILENO) ? "\r" : "", done, all,
               s, isatty(STDERR_FILENO) && done < all ? "" : "\n");
  };
  const auto result =
      run_board(subject, vocabulary.value(), rows,
                {.tier = o.tier, .seed = o.seed, .out = o.out, .progress = progress});
  if (!result.ok()) return fail(result.error());
  if (const Status s = publish(o, result.value()); !s.ok()) return fail(s.error());
  if (o.json)
    print_json(result.value());
  else
    fmt::print("{}\n{}/leaderboard.html has plots\n", board_markdown(result.value()), o.out);
  return kOk;
}

Result<Json> read_results(const std::string& path) {
  TRY(const std::string text, read_file(path));
  auto json = parse_json(text);
  if (!json.ok()) return Error{Code::corrupt, path + ": " + json.error().message};
  return json;
}

int add(const LeaderboardOptions& o) {
  auto base = read_results(o.out + "/results.json");
  if (!base.ok()) return fail(base.error());
  const auto more = read_results(o.file);
  if (!more.ok()) return fail(more.error());
  auto sum = add_results(std::move(base.value()), more.value());
  if (!sum.ok()) return fail(kUnverified, sum.error().message);
  if (const Status s = publish(o, sum.value()); !s.ok()) return fail(s.error());
  fmt::print("{}", board_markdown(sum.value()));
  return kOk;
}

int run_leaderboard(LeaderboardOptions& o) {
  if (o.what == "add") {
    o.file = o.model.path;
    if (o.file.empty())
      return fail(kUsage, "add which results?", "quire leaderboard add results.json --out board");
    return add(o);
  }
  if (o.what == "ls") {
    const auto known = read_results(o.out + "/results.json");
    if (!known.ok()) return fail(known.error());
    if (o.json)
      print_json(known.value());
    else
      fmt::print("{}", board_markdown(known.value()));
    return kOk;
  }
  return run_all(o);
}

std::function<int()> declare_leaderboard(CLI::App& app) {
  auto o = std::make_shared<LeaderboardOptions>();
  app.add_option("WHAT", o->what, "run, ls, or add: then FILE in place of MODEL")
      ->required()
      ->check(CLI::IsMember({"run", "ls", "add"}));
  add_model_options(app, o->model);
  o->model.block_size = 16;  // what stays is then closer to what was asked for
  app.add_option("--tier", o->tier, "smoke, standard or full (standard)")
      ->check(CLI::IsMember({"smoke", "standard", "full"}));
  app.add_option("--out", o->out, "folder for results, pages and progress (leaderboard)");
  app.add_option("--methods", o->methods, "these rows only, besides the anchors")->delimiter(',');
  app.add_option("--shares", o->shares, "shares that stay (0.5,0.375,0.28,0.19,0.125)")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 1.0));
  app.add_option("--text-file", o->text_file,
                 "natural text (Debian's Developer's Reference, fetched)");
  app.add_option("--seed", o->seed, "of the samples (1)");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_leaderboard(*o); };
}

}  // namespace

extern const Command kLeaderboard = {
    "leaderboard", "compare methods that make the cache smaller",
    "A run that was stopped continues when it is started again.\n"
    "examples:\n"
    "  quire leaderboard run model.gguf --tier smoke --out board\n"
    "  quire leaderboard run model.gguf --methods snapkv,int8 --shares 0.5,0.2\n"
    "  quire leaderboard add results.json --out board",
    declare_leaderboard};

}  // namespace quire::cli
