// cli/chat.cc - `quire chat`: a conversation in the terminal. Only what is new in a turn is
// computed.
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "cli/answer_printer.h"
#include "cli/chat_session.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/prompt.h"
#include "cli/sampling_options.h"
#include "cli/template_option.h"
#include "engine/chat.h"
#include "engine/client.h"
#include "engine/sampling_defaults.h"

namespace quire::cli {
namespace {

struct ChatOptions {
  TemplateOption chat_template;
  ModelOptionsCli model;
  SamplingOptionsCli sampling;
  std::string system, session;
};

std::string history_file() {
  const std::string folder = std::filesystem::path(model_cache_folder()).parent_path().string();
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  return folder + "/chat_history";
}

constexpr const char* kHelp =
    "  Enter sends; a line that ends in \\ goes on, and so does text between two lines of \"\"\"\n"
    "  Ctrl-C stops the answer, Ctrl-D ends\n"
    "  /new          start over             /undo         take the last turn back\n"
    "  /system TEXT  set the system message /set NAME V   temperature, top_p, top_k, max_tokens, "
    "seed\n"
    "  /save FILE    /load FILE             /kv           what the cache holds      /quit\n"
    "  /fork NAME    go on in a copy of this session                              /sessions\n";

class Chat {
 public:
  Chat(Runtime& runtime, GenerateOptions options, const ChatOptions& asked,
       const ChatTemplate* chat_template)
      : runtime_(runtime),
        client_(runtime),
        chat_template_(chat_template),
        options_(std::move(options)),
        sampling_(asked.sampling),
        system_(asked.system),
        session_(runtime) {}

  // Goes on where the session of this name was, or begins it.
  Status open_session(const std::string& name) {
    TRY(const Json said, session_.open(name));
    if (!said.is_object() || !said.value("messages", Json()).is_array()) return {};
    turns_ = said["messages"];
    if (system_.empty()) system_ = said.value("system", "");
    fmt::print("session {}: {} messages\n", name, turns_.size());
    return {};
  }

  int run() {
    for (std::string message; prompt_.read(message);) {
      if (message.empty()) continue;
      if (message.starts_with('/')) {
        if (!command(message)) break;
      } else {
        answer(message);
      }
    }
    fmt::print("\n");
    return kOk;
  }

 private:
  Json messages() const {
    Json all = Json::array();
    if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
    for (const Json& m : turns_) all.push_back(m);
    return all;
  }

  void answer(const std::string& message) {
    turns_.push_back({{"role", "user"}, {"content", message}});
    const auto prompt = render_chat(runtime_, messages(), {.chat_template = chat_template_});
    if (!prompt.ok()) {
      turns_.erase(turns_.size() - 1);
      fail(prompt.error());
      return;
    }
    GenerateOptions options = options_;
    const std::size_t left =
        runtime_.context() - std::min<std::size_t>(runtime_.context(), prompt.value().size());
    options.tokens_max =
        static_cast<std::uint32_t>(std::min<std::size_t>(options.tokens_max, left));
    if (left == 0) {
      fmt::print(stderr, "the conversation fills the context of {} tokens; /undo, or /new\n",
                 runtime_.context());
      turns_.erase(turns_.size() - 1);
      return;
    }
    AnswerPrinter printer;
    GenerateEvents events;
    events.prefill = [this](std::uint32_t, std::uint32_t) { return !prompt_.interrupted(); };
    events.step = [this] { return !prompt_.interrupted(); };
    events.text = [&](std::uint32_t, std::string_view piece) {
      printer.print(piece);
      return !prompt_.interrupted();
    };
    auto turn = session_.begin(prompt.value());
    if (!turn.ok()) {
      turns_.erase(turns_.size() - 1);
      fail(turn.error());
      return;
    }
    options.session = std::move(turn.value());
    const auto result = client_.generate(prompt.value(), options, events);
    options.session.reset();
    if (!result.ok()) {
      turns_.erase(turns_.size() - 1);
      fail(result.error());
      return;
    }
    const Generated& answer = result.value().answers.front();
    const bool cut = answer.finish == Finish::length && !prompt_.interrupted();
    printer.end(cut || prompt_.interrupted());
    turns_.push_back({{"role", "assistant"}, {"content", printer.text()}});
    status(result.value(), cut ? why_cut(answer.tokens.size(), sampling_) : "");
    keep_session();
  }

  void keep_session() {
    if (const Status kept = session_.save({{"system", system_}, {"messages", turns_}}); !kept.ok())
      fail(kept.error());
  }

  void status(const GenerateResult& r, const std::string& cut) const {
    const GenerateTimings& t = r.timings;
    const bool color = isatty(STDOUT_FILENO) && std::getenv("NO_COLOR") == nullptr;
    fmt::print("\n{}cached {}/{} · ttft {:.0f} ms · {} tokens at {:.0f}/s{}{}\n",
               color ? "\033[2m" : "", t.cached_tokens, t.prompt_tokens, t.prefill_seconds * 1e3,
               t.decoded_tokens, t.decode_seconds > 0 ? t.decoded_tokens / t.decode_seconds : 0,
               prompt_.interrupted() ? " · stopped"
               : cut.empty()         ? ""
                                     : " · " + cut,
               color ? "\033[0m" : "");
  }

  // False to end.
  bool command(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space),
                      rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/new")
      turns_ = Json::array();
    else if (name == "/undo")
      undo();
    else if (name == "/system")
      system_ = rest;
    else if (name == "/kv" || name == "/stats")
      show_cache();
    else if (name == "/set")
      set(rest);
    else if (name == "/save")
      save(rest);
    else if (name == "/load")
      load(rest);
    else if (name == "/fork")
      fork(rest);
    else if (name == "/sessions")
      session_.print();
    else
      fmt::print("{}", kHelp);
    return true;
  }

  void undo() {
    for (int i = 0; i < 2 && !turns_.empty(); ++i) turns_.erase(turns_.size() - 1);
    session_.undo();
    keep_session();
  }

  void fork(const std::string& name) {
    if (const Status done = session_.fork(name); !done.ok()) {
      fail(done.error());
      return;
    }
    keep_session();
    fmt::print("this is session {} now\n", name);
  }

  void show_cache() const {
    const CacheStats s = runtime_.cache().stats();
    fmt::print("{} blocks cached, {:.1f} MB; {} of {} prompt tokens were served from the cache\n",
               s.cached_blocks + s.referenced_blocks,
               static_cast<double>(s.cached_bytes + s.referenced_bytes) / 1e6, s.tokens_hit,
               s.tokens_queried);
  }

  // "/set temperature 0.5"
  void set(const std::string& rest) {
    const std::size_t space = std::min(rest.find(' '), rest.size());
    const std::string name = rest.substr(0, space);
    GenerateOptions changed = options_;
    SamplingOptionsCli sampling = sampling_;
    SamplingOptions& s = changed.sampling;
    double value = 0;
    const char* const end = rest.data() + rest.size();
    const char* const begin =
        rest.data() + std::min(rest.find_first_not_of(' ', space), rest.size());
    const auto [ptr, error] = std::from_chars(begin, end, value);
    const bool whole = value >= 0 && value < 0x1p32 && std::floor(value) == value;
    const bool counts = name == "top_k" || name == "max_tokens" || name == "seed";
    if (!counts && name != "temperature" && name != "top_p") {
      fmt::print("there is no setting '{}'; there are: temperature top_p top_k max_tokens seed\n",
                 name);
      return;
    }
    if (error != std::errc() || ptr != end || (counts && !whole)) {
      fail(kUsage, fmt::format("/set {}: '{}' is not a {}", name, std::string(begin, end),
                               counts ? "whole number" : "number"));
      return;
    }
    if (name == "temperature")
      s.temperature = static_cast<float>(value);
    else if (name == "top_p")
      s.top_p = static_cast<float>(value);
    else if (name == "top_k")
      s.top_k = static_cast<std::uint32_t>(value);
    else if (name == "max_tokens")
      sampling.tokens_max = changed.tokens_max = static_cast<std::uint32_t>(value);
    else
      s.seed = static_cast<std::uint64_t>(value);
    if (const Status fine = s.check(runtime_.config().vocabulary); !fine.ok()) {
      fail(fine.error());
      return;
    }
    options_ = std::move(changed);
    sampling_ = std::move(sampling);
  }

  // False after saying so: a command that needs a file was given none.
  static bool names_file(const char* command, const std::string& file) {
    if (!file.empty()) return true;
    fail(kUsage, fmt::format("{} needs the name of a file", command));
    return false;
  }

  void save(const std::string& given) const {
    if (!names_file("/save", given)) return;
    const std::string file = home_path(given);
    if (const Status done =
            write_file(file, Json{{"system", system_}, {"messages", turns_}}.dump(1));
        !done.ok())
      fail(done.error());
    else
      fmt::print("{} messages in {}\n", turns_.size(), file);
  }

  void load(const std::string& given) {
    if (!names_file("/load", given)) return;
    const std::string file = home_path(given);
    const auto text = read_file(file);
    const auto json = text.ok() ? parse_json(text.value()) : Result<Json>(text.error());
    if (!json.ok()) {
      fail(json.error());
      return;
    }
    if (!json.value().is_object() || !json.value().value("messages", Json()).is_array()) {
      fail(kUsage, file + ": is not a saved conversation");
      return;
    }
    turns_ = json.value()["messages"];
    system_ = json.value().value("system", "");
    fmt::print("{} messages\n", turns_.size());
  }

  Runtime& runtime_;
  Client client_;
  const ChatTemplate* chat_template_;
  Prompt prompt_{history_file()};
  GenerateOptions options_;
  SamplingOptionsCli sampling_;  // what of it was asked for
  std::string system_;
  Json turns_ = Json::array();
  ChatSession session_;
};

int run_chat(ChatOptions& o) {
  // Sessions are in a cache folder.
  if (!o.session.empty() && o.model.tier.dir.empty() && o.model.tier.disk.empty())
    o.model.tier.dir = "auto";
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  const auto chat_template = o.chat_template.find(*runtime.value());
  if (!chat_template.ok()) return fail(chat_template.error());
  if (chat_template.value() == nullptr)
    return fail(
        kUsage, "this model has no chat template",
        "give one with --chat-template, or use `quire run --raw` to continue a text with it");
  SamplingDefaults drawn = sampling_defaults(runtime.value()->source());
  auto options = o.sampling.generate_options(drawn.options);
  if (!options.ok()) return fail(options.error());
  const auto adapters = given_adapters(*runtime.value());
  if (!adapters.ok()) return fail(adapters.error());
  options.value().adapters = adapters.value();
  const Runtime& r = *runtime.value();
  drawn.options = options.value().sampling;
  fmt::print("{} · context {} · {} · {} threads · /help\n",
             r.config().name.empty() ? r.source().path() : r.config().name, r.context(),
             drawn.text(), r.threads());
  Chat chat(*runtime.value(), std::move(options.value()), o, chat_template.value());
  if (!o.session.empty())
    if (const Status opened = chat.open_session(o.session); !opened.ok())
      return fail(opened.error());
  return chat.run();
}

std::function<int()> declare_chat(CLI::App& app) {
  auto o = std::make_shared<ChatOptions>();
  add_model_options(app, o->model);
  add_tier_options(app, o->model.tier);
  add_retention_options(app, o->model);
  add_adapter_options(app, o->model);
  app.add_option("--system", o->system, "system message");
  app.add_option("--session", o->session, "go on with the conversation of this name, or begin it");
  o->chat_template.add(app);
  o->sampling.add(app, true);
  return [o] { return run_chat(*o); };
}

}  // namespace

extern const Command kChat = {"chat", "talk to a model in the terminal",
                              "examples:\n"
                              "  quire chat model.gguf\n"
                              "  quire chat --system \"Answer in one sentence.\" --temperature 0\n"
                              "  quire chat --session work",
                              declare_chat};

}  // namespace quire::cli
