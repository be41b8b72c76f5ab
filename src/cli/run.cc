// cli/run.cc - `quire run`: one prompt, one answer, no server.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <iterator>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/sampling_options.h"
#include "cli/template_option.h"
#include "engine/chat.h"
#include "engine/generate.h"

namespace quire::cli {
namespace {

struct RunOptions {
  TemplateOption chat_template;
  ModelOptionsCli model;
  SamplingOptionsCli sampling;
  std::string prompt, tokens, system;
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

Result<std::vector<TokenId>> prompt_tokens(RunOptions& o, const Runtime& runtime) {
  if (!o.tokens.empty()) return parse_tokens(o.tokens);
  std::string text = o.prompt;
  if (text.empty()) {
    if (isatty(STDIN_FILENO))
      return Error{Code::invalid, "no prompt; write it behind MODEL, pipe it in, or give --tokens"};
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  TRY(const ChatTemplate* chat, o.chat_template.find(runtime));
  if (o.raw || chat == nullptr) return runtime.tokenizer().encode(text, {.add_special = true});
  Json messages = Json::array();
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return render_chat(runtime, messages, {.chat_template = chat});
}

// `quire run "Why is the sky blue?"`: words that name no file are for the default model to answer,
// unless they look like a path to one.
void tell_prompt_from_model(RunOptions& o) {
  const std::string& words = o.model.path;
  if (!o.prompt.empty() || !o.tokens.empty() || words.find(' ') == words.npos) return;
  if (words.starts_with('/') || words.starts_with('.') || words.ends_with(".gguf")) return;
  if (!find_model(words).ok()) std::swap(o.prompt, o.model.path);
}

int answer_prompt(RunOptions& o) {
  tell_prompt_from_model(o);
  const auto started = std::chrono::steady_clock::now();
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  const double load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  const auto prompt = prompt_tokens(o, *runtime.value());
  if (!prompt.ok()) return fail(prompt.error());
  auto options = o.sampling.generate_options();
  if (!options.ok()) return fail(options.error());

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
  events.text = [&](std::uint32_t, std::string_view text) {
    if (stream) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    return !interrupted;
  };
  auto result = generate(*runtime.value(), prompt.value(), options.value(), events);
  if (!result.ok()) return fail(result.error());
  const GenerateResult& r = result.value();
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
    fmt::print("\n");
  } else {
    for (std::size_t i = 0; i < r.answers.size(); ++i)
      fmt::print("[{}] {}\n", i + 1, r.answers[i].text);
  }
  return interrupted ? kInterrupted : kOk;
}

std::function<int()> declare_run(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  add_model_options(app, o->model);
  add_retention_options(app, o->model);
  app.add_option("PROMPT", o->prompt, "what to answer; stdin when it is a pipe");
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
    "  quire run model.gguf \"Why is the sky blue?\"\n"
    "  echo \"Once upon a time\" | quire run model.gguf --raw -n 64\n"
    "  quire run model.gguf --tokens 1,2,3 -n 16 --temperature 0 --ignore-eos --json",
    declare_run};

}  // namespace quire::cli
