// cli/calibrate.cc - `quire calibrate`: learns from a text what kvquant-3 and cq-N must know about a
// model, and keeps it where they will look.
#include <fmt/core.h>

#include <filesystem>
#include <optional>

#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/progress_line.h"
#include "lab/formats/calibrate.h"

namespace quire::cli {
namespace {

struct CalibrateOptions {
  ModelOptionsCli model;
  std::string text_file, out, format = "kvquant-3";
  std::uint32_t window = 2048, tokens = 8192;
};

int run_calibrate(CalibrateOptions o) {
  const auto codec = find_codec(o.format);
  if (!codec.ok()) return fail(kUsage, "--format: " + codec.error().message);
  const auto text = read_file(o.text_file);
  if (!text.ok()) return fail(kUsage, "--text-file " + text.error().message);
  const auto path = find_model(o.model);
  if (!path.ok()) return fail(path.error());
  o.model.kv_format = "f16";
  auto opened = open_runtime(o.model);
  if (!opened.ok()) return fail(opened.error());
  Runtime& r = *opened.value();
  std::vector<TokenId> tokens = r.tokenizer().encode(text.value());
  if (tokens.size() < o.tokens || o.window > r.context() || o.window == 0)
    return fail(kUsage,
                fmt::format("the text has {} tokens, --tokens asks for {}, in windows of at "
                            "most {}",
                            tokens.size(), o.tokens, r.context()));
  tokens.resize(o.tokens);
  CalibrationQuestion question{.codec = codec.value(), .window = o.window};
  std::optional<ProgressLine> line(std::in_place, "fitted", "lanes");
  question.progress = [&](std::size_t done, std::size_t all) { line->at(done, all); };
  const auto made = calibrate(r, question, tokens);
  const double seconds = line->seconds();
  line.reset();
  if (!made.ok()) return fail(made.error());
  const std::string file = o.out.empty() ? calibration_path(path.value(), o.format) : o.out;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
  const std::string bytes = serialize_calibration(made.value());
  if (const Status ok = write_file(file, bytes); !ok.ok()) return fail(ok.error());
  fmt::print("{} calibrated on {} tokens in {}: {} lanes, {} bytes, kept in {}\n", o.format,
             tokens.size(), in_words(seconds), made.value().lanes.size(), bytes.size(), file);
  return kOk;
}

std::function<int()> declare_calibrate(CLI::App& app) {
  auto o = std::make_shared<CalibrateOptions>();
  add_model_options(app, o->model);
  app.add_option("--text-file", o->text_file, "the text to read")->required();
  app.add_option("--format", o->format, "kvquant-3, cq-4, cq-3, cq-2 or cq-1 (kvquant-3)");
  app.add_option("--tokens", o->tokens, "tokens of the text to read (8192)")
      ->check(CLI::Range(256, 1 << 20));
  app.add_option("--window", o->window, "tokens read from an empty cache (2048)");
  app.add_option("--out", o->out, "file to write, instead of where --kv-format looks");
  return [o] { return run_calibrate(*o); };
}

}  // namespace

extern const Command kCalibrate = {
    "calibrate", "learn from a text what calibrated cache formats need",
    "examples:\n"
    "  quire calibrate --text-file \"$(scripts/fetch-text policy)\"\n"
    "  quire calibrate model.gguf --text-file book.txt --format cq-2",
    declare_calibrate};

}  // namespace quire::cli
