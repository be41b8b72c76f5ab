// cli/run.cc - `quire run`: one prompt, one answer, no server.
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <iterator>

#include "cli/answer_printer.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/model_options.h"
#include "cli/sampling_options.h"
#include "cli/template_option.h"
#include "engine/chat.h"
#include "engine/client.h"
#include "engine/sampling_defaults.h"

namespace quire::cli {
namespace {

struct RunOptions {
  TemplateOption chat_template;
  ModelOptionsCli model;
  SamplingOptionsCli sampling;
  std::string prompt, prompt_option, tokens, system;
  bool json = false, raw = false;
};

volatile std::sig_atomic_t interrupted = 0;

Json to_json(const Generated& answer, const Tokenizer& tokenizer, bool with_logprobs) {
  Json j{{"token_ids", answer.tokens},
         {"text", answer.text},
         {"finish_reason", finish_name(answer.finish)},
         {"score", answer.score}};
  if (!answer.stopped_by.empty()) j["stop"] = answer.stopped_by;
  if (!with_logprobs) return j;
  Json logprobs = Json::array();
  for (const Choice& c : answer.choices) {
    Json top = Json::array();
    for (const TokenLogprob& t : c.alternatives)
      top.push_back({{"id", t.token}, {"token", tokenizer.piece(t.token)}, {"logprob", t.logprob}});
    logprobs.push_back({{"id", c.token},
                        {"token", tokenizer.piece(c.token)},
                        {"logprob", c.logprob},
                        {"top", top}});
  }
  j["logprobs"] = std::move(logprobs);
  return j;
}

Json timings_json(const GenerateTimings& t, double load_seconds) {
  const auto rate = [](double n, double seconds) { return seconds > 0 ? n / seconds : 0; };
  return {{"load_ms", load_seconds * 1e3},
          {"prefill_ms", t.prefill_seconds * 1e3},
          {"decode_ms", t.decode_seconds * 1e3},
          {"prompt_tokens", t.prompt_tokens},
          {"cached_tokens", t.cached_tokens},
          {"generated_tokens", t.decoded_tokens},
          {"kv_bytes", t.kv_bytes},
          {"kv_bytes_read", t.kv_bytes_read},
          {"kv_bytes_readable", t.kv_bytes_readable},
          {"prefill_tokens_per_second", rate(t.prompt_tokens - t.cached_tokens, t.prefill_seconds)},
          {"decode_tokens_per_second", rate(t.decoded_tokens, t.decode_seconds)}};
}

// The prompt: the text of the command line, followed by standard input if it is piped.
Result<std::string> prompt_text(const std::string& given) {
  if (isatty(STDIN_FILENO)) {
    if (given.empty())
      return Error{Code::invalid, "no prompt; write it behind MODEL, pipe it in, or give --tokens"};
    return given;
  }
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::poll(&input, 1, 2000) == 0)
    fmt::print(stderr, "waiting for the end of standard input; use </dev/null if there is none\n");
  std::string piped(std::istreambuf_iterator<char>(std::cin), {});
  const bool blank = piped.find_first_not_of(" \t\r\n") == piped.npos;
  if (given.empty() && blank) return Error{Code::invalid, "the prompt is empty"};
  if (given.empty()) return piped;
  return blank ? given : given + "\n\n" + piped;
}

Result<std::vector<TokenId>> prompt_tokens(RunOptions& o, const std::string& text,
                                           const Runtime& runtime) {
  if (!o.tokens.empty()) return parse_tokens(o.tokens);
  TRY(const ChatTemplate* chat, o.chat_template.find(runtime));
  if (o.raw || chat == nullptr) return runtime.tokenizer().encode(text, {.add_special = true});
  Json messages = Json::array();
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return render_chat(runtime, messages, {.chat_template = chat});
}

// Finds the model and the prompt among MODEL, PROMPT, -m and -p, in any order.
Result<std::string> read_prompt(RunOptions& o) {
  if (!o.prompt_option.empty() && !o.prompt.empty())
    return Error{Code::invalid, "two prompts: -p '" + o.prompt_option + "' and '" + o.prompt + "'"};
  if (o.prompt.empty()) o.prompt = o.prompt_option;
  if (o.tokens.empty()) {
    TRY(ModelAndText told, tell_text_from_model(o.model.path, o.prompt, o.model.named));
    o.model.path = std::move(told.model);
    o.model.named.clear();
    o.prompt = std::move(told.text);
  }
  if (o.model.random_weights.empty()) {  // a model that is not there is told before stdin is read
    TRY([[maybe_unused]] const std::string path, find_model(o.model));
  }
  if (!o.tokens.empty()) return std::string();
  return prompt_text(o.prompt);
}

int answer_prompt(RunOptions& o) {
  const auto text = read_prompt(o);
  if (!text.ok()) return fail(text.error());
  const auto started = std::chrono::steady_clock::now();
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  const double load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  const auto prompt = prompt_tokens(o, text.value(), *runtime.value());
  if (!prompt.ok()) return fail(prompt.error());
  auto options = o.sampling.generate_options(sampling_defaults(runtime.value()->source()).options);
  if (!options.ok()) return fail(options.error());
  const auto adapters = given_adapters(*runtime.value());
  if (!adapters.ok()) return fail(adapters.error());
  options.value().adapters = adapters.value();
  options.value().tokens_max =
      answer_room(options.value().tokens_max, *runtime.value(), prompt.value().size());

  std::signal(SIGINT, [](int) { interrupted = 1; });
  GenerateEvents events;
  const bool stream = !o.json && options.value().choices == 1;
  // A long prompt takes a while: say how far it is, where somebody is looking.
  const bool progress = isatty(STDERR_FILENO) && prompt.value().size() > 1024;
  events.prefill = [progress](std::uint32_t done, std::uint32_t total) {
    if (progress)
      fmt::print(stderr, "\rreading {}/{} tokens{}", done, total,
                 done + 1 >= total ? "\r\033[K" : "");
    return !interrupted;
  };
  events.step = [] { return !interrupted; };
  AnswerPrinter printer;
  events.text = [&](std::uint32_t, std::string_view piece) {
    if (stream) printer.print(piece);
    return !interrupted;
  };
  auto result = Client(*runtime.value()).generate(prompt.value(), options.value(), events);
  if (!result.ok()) return fail(result.error());
  const GenerateResult& r = result.value();
  const bool cut = r.answers.front().finish == Finish::length && !interrupted;
  const Tokenizer& tokenizer = runtime.value()->tokenizer();
  if (o.json) {
    Json out = to_json(r.answers.front(), tokenizer, o.sampling.logprobs_wanted());
    if (r.answers.size() > 1) {
      out["choices"] = Json::array();
      for (const Generated& a : r.answers)
        out["choices"].push_back(to_json(a, tokenizer, o.sampling.logprobs_wanted()));
    }
    out["prompt_token_ids"] = prompt.value();
    out["timings"] = timings_json(r.timings, load_seconds);
    print_json(out);
  } else if (stream) {
    printer.end(cut || interrupted);
    fmt::print("\n");
  } else {
    for (std::size_t i = 0; i < r.answers.size(); ++i)
      fmt::print("[{}] {}\n", i + 1, r.answers[i].text);
  }
  std::fflush(stdout);
  if (cut && !o.json)
    fmt::print(stderr, "{}\n", why_cut(r.answers.front().tokens.size(), o.sampling));
  return interrupted ? kInterrupted : kOk;
}

std::function<int()> declare_run(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  add_model_options(app, o->model);
  add_tier_options(app, o->model.tier);
  add_retention_options(app, o->model);
  add_adapter_options(app, o->model);
  app.add_option("PROMPT", o->prompt, "what to answer; piped input is put below it");
  app.add_option("-p,--prompt", o->prompt_option, "the same as PROMPT")->group(kRare);
  app.add_option("--tokens", o->tokens, "prompt as token numbers: 1,2,3 or @FILE (JSON)");
  app.add_option("--system", o->system, "system message");
  o->chat_template.add(app);
  app.add_flag("--raw", o->raw, "do not use the chat template: continue the text");
  app.add_flag("--json", o->json, "print one JSON object");
  o->sampling.add(app);
  return [o] { return answer_prompt(*o); };
}

}  // namespace

extern const Command kRun = {
    "run", "answer one prompt",
    "examples:\n"
    "  quire run \"Why is the sky blue?\"                    the default model\n"
    "  quire run model.gguf \"Summarise this:\" < letter.txt\n"
    "  quire run model.gguf --tokens 1,2,3 -n 16 --temperature 0 --ignore-eos --json",
    declare_run};

}  // namespace quire::cli
