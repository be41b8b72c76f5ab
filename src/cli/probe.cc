// cli/probe.cc - `quire probe`: measures what each layer's keys and values lose in a few formats, and
// keeps the best mixture for a budget of bytes as the format `planned`.
#include <fmt/core.h>

#include <filesystem>
#include <optional>

#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/progress_line.h"
#include "lab/formats/probe.h"

namespace quire::cli {
namespace {

struct ProbeOptions {
  ModelOptionsCli model;
  std::string text_file, like = "hadamard-int4";
  std::vector<std::string> keys{"int8", "hadamard-int4"}, values{"hadamard-int4", "hadamard-int3"};
  double bytes = 0;
  std::uint32_t window = 512, tokens = 1024;
  bool json = false, dry_run = false;
};

Result<std::vector<const Codec*>> find_codecs(const std::vector<std::string>& names) {
  std::vector<const Codec*> codecs;
  for (const std::string& name : names) {
    TRY(const Codec* codec, find_codec(name));
    if (codec->rows != RowType::f16)
      return Error{Code::invalid, name + " does not mix with other formats"};
    codecs.push_back(codec);
  }
  return codecs;
}

void print_costs(const char* side, const std::vector<const Codec*>& codecs,
                 const std::vector<std::vector<double>>& costs) {
  fmt::print("  layer  {} in", side);
  for (const Codec* c : codecs) fmt::print("{:>16}", c->name);
  fmt::print("\n");
  for (std::size_t l = 0; l < costs.size(); ++l) {
    fmt::print("  {:>5}{:>{}}", l, "", std::char_traits<char>::length(side) + 5);
    for (const double cost : costs[l]) fmt::print("{:>16.3g}", cost);
    fmt::print("\n");
  }
}

int run_probe(ProbeOptions o) {
  const auto keys = find_codecs(o.keys), values = find_codecs(o.values);
  if (!keys.ok()) return fail(keys.error());
  if (!values.ok()) return fail(values.error());
  const auto like = find_format(o.like);
  if (!like.ok()) return fail(like.error());
  const auto path = find_model(o.model);
  if (!path.ok()) return fail(path.error());
  const auto text = read_file(o.text_file);
  if (!text.ok()) return fail(kUsage, "--text-file " + text.error().message);
  auto opened = open_runtime(o.model);
  if (!opened.ok()) return fail(opened.error());
  Runtime& r = *opened.value();
  std::vector<TokenId> tokens = r.tokenizer().encode(text.value());
  if (tokens.size() < o.tokens)
    return fail(kUsage, fmt::format("the text has {} tokens, --tokens asks for {}", tokens.size(),
                                    o.tokens));
  tokens.resize(o.tokens);

  ProbeQuestion question{.keys = keys.value(), .values = values.value(), .window = o.window};
  std::optional<ProgressLine> line(std::in_place, "measured", "formats of layers");
  question.progress = [&](std::size_t done, std::size_t all) { line->at(done, all); };
  const auto probe = probe_storage(r, question, tokens);
  const double seconds = line->seconds();
  line.reset();
  if (!probe.ok()) return fail(probe.error());
  const StoragePolicy uniform = like.value();
  const Geometry g = r.geometry(&uniform);
  double budget = o.bytes;
  if (budget == 0)
    for (const LayerGroup& group : g.groups)
      if (group.kind != GroupKind::recent) budget += g.bytes_per_token(group);
  StoragePolicy plan = r.storage().format;
  plan.by_layer = choose_plan(probe.value(), budget);
  if (const Status ok = r.check_storage(plan); !ok.ok()) return fail(ok.error());
  double bytes = 0;
  const Geometry planned = r.geometry(&plan);
  for (const LayerGroup& group : planned.groups)
    if (group.kind != GroupKind::recent) bytes += planned.bytes_per_token(group);

  const std::string file = plan_path(path.value());
  if (!o.dry_run) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
    if (const Status ok = write_file(file, plan_json(plan.by_layer).dump(1)); !ok.ok())
      return fail(ok.error());
  }
  if (o.json) {
    print_json({{"keys", {{"codecs", o.keys}, {"kl", probe.value().key_cost}}},
                {"values", {{"codecs", o.values}, {"kl", probe.value().value_cost}}},
                {"budget_bytes_per_token", budget},
                {"bytes_per_token", bytes},
                {"plan", plan_json(plan.by_layer)},
                {"seconds", seconds},
                {"file", o.dry_run ? Json() : Json(file)}});
    return kOk;
  }
  print_costs("keys", probe.value().keys, probe.value().key_cost);
  print_costs("values", probe.value().values, probe.value().value_cost);
  fmt::print("\n  plan of {:.0f} bytes per token (budget {:.0f}), measured in {}:\n", bytes, budget,
             in_words(seconds));
  for (std::size_t l = 0; l < plan.by_layer.size(); ++l)
    fmt::print("  {:>5}  {}\n", l, plan.by_layer[l]->name);
  if (!o.dry_run) fmt::print("\n  kept in {}: --kv-format planned --allow-lossy uses it\n", file);
  return kOk;
}

std::function<int()> declare_probe(CLI::App& app) {
  auto o = std::make_shared<ProbeOptions>();
  add_model_options(app, o->model);
  app.add_option("--text-file", o->text_file, "the text to read")->required();
  app.add_option("--keys", o->keys, "formats keys may have, wide to narrow")->delimiter(',');
  app.add_option("--values", o->values, "formats values may have, wide to narrow")->delimiter(',');
  app.add_option("--like", o->like, "as many bytes as this format takes (hadamard-int4)");
  app.add_option("--bytes", o->bytes, "or this many bytes per token");
  app.add_option("--tokens", o->tokens, "tokens of the text to read (1024)");
  app.add_option("--window", o->window, "tokens read from an empty cache (512)");
  app.add_flag("--dry-run", o->dry_run, "keep no plan");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_probe(*o); };
}

}  // namespace

extern const Command kProbe = {
    "probe", "measure what formats cost by layer, and plan a mixture",
    "examples:\n"
    "  quire probe --text-file \"$(scripts/fetch-text policy)\"\n"
    "  quire probe model.gguf --text-file book.txt --bytes 6000 --keys int8,q5_1,hadamard-int4",
    declare_probe};

}  // namespace quire::cli
