#include "text/grammar_compiler.h"

#include <fmt/core.h>
#include <time.h>

#include <array>
#include <atomic>
#include <bit>
#include <list>
#include <mutex>
#include <unordered_map>

#include "base/json.h"
#include "text/regex_counts.h"

#ifdef QUIRE_XGRAMMAR
#include <xgrammar/xgrammar.h>

// Receives xgrammar's log messages (scripts/xgrammar builds it this way). compile() looks at the
// warnings: they name parts of a grammar that xgrammar would not enforce.
namespace xgrammar {
namespace {
thread_local std::string* warnings = nullptr;
}
[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level == kWarning && warnings != nullptr && warnings->empty()) *warnings = message;
}
}  // namespace xgrammar
#endif

namespace quire {

#ifdef QUIRE_XGRAMMAR

namespace {

constexpr std::uint32_t kCallsMax = 16;  // in one answer

class WarningScope {
 public:
  explicit WarningScope(std::string& into) { xgrammar::warnings = &into; }
  ~WarningScope() { xgrammar::warnings = nullptr; }
};

std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (char& c : text)
    if (c == '\n') c = ' ';
  constexpr std::size_t kMax = 400;
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

// Texts of a given length may hold raw control characters in xgrammar's rules, which is no JSON. As a
// pattern the length is kept, and they may not.
void make_lengths_patterns(Json& schema) {
  if (schema.is_object() && schema.value("type", Json()) == "string" &&
      (schema.contains("minLength") || schema.contains("maxLength")) &&
      !schema.contains("pattern") && !schema.contains("format") && !schema.contains("enum") &&
      !schema.contains("const")) {
    const Json least = schema.value("minLength", Json(0)), most = schema.value("maxLength", Json());
    constexpr std::int64_t kMost = 1024;  // longer patterns take long to compile
    const auto count = [](const Json& n) {
      return n.is_number_integer() && n.get<std::int64_t>() >= 0 && n.get<std::int64_t>() <= kMost;
    };
    if (count(least) && (most.is_null() || count(most))) {
      schema["pattern"] = fmt::format(R"(^[^"\\\x00-\x1f]{{{},{}}}$)", least.dump(),
                                      most.is_null() ? "" : most.dump());
      schema.erase("minLength");
      schema.erase("maxLength");
    }
  }
  if (schema.is_structured())
    for (Json& part : schema) make_lengths_patterns(part);
}

xgrammar::Grammar of_schema(const std::string& given) {
  Json parsed = Json::parse(given, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded()) make_lengths_patterns(parsed);
  const std::string schema = parsed.is_discarded() ? given : parsed.dump();
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/false, std::nullopt,
                                           std::pair<std::string, std::string>{", ", ": "},
                                           /*strict_mode=*/true);
}

std::string rules_of_arguments(const std::string& name, const std::string& schema, bool strict) {
  try {
    const std::string rules = of_schema(schema).ToString();
    if (strict && !xgrammar::warnings->empty())
      throw std::runtime_error("cannot be enforced: " + *xgrammar::warnings);
    return rules;
  } catch (const std::exception& e) {
    throw std::runtime_error(fmt::format("function '{}': {}", name, e.what()));
  }
}

// The tags around calls are text of the grammar, the arguments rules of their own.
xgrammar::Grammar of_tool_calls(const Json& all) {
  Json tags = Json::array();
  for (const Json& tool : all["tools"]) {
    std::string name = tool[0].dump();  // as a part of a JSON string
    name = name.substr(1, name.size() - 2);
    const std::string begin =
        all["open"].get<std::string>() + name + all["middle"].get<std::string>();
    const std::string rules = rules_of_arguments(tool[0].get<std::string>(),
                                                 tool[1].get<std::string>(), tool[2].get<bool>());
    tags.push_back({{"type", "tag"},
                    {"begin", begin},
                    {"content", {{"type", "grammar"}, {"grammar", rules}}},
                    {"end", all["close"]}});
  }
  Json format;
  if (!all["required"].get<bool>()) {
    format = {{"type", "triggered_tags"},
              {"triggers", {all["trigger"]}},
              {"tags", tags},
              {"stop_after_first", !all["parallel"].get<bool>()}};
  } else {
    const Json call = tags.size() == 1 ? tags[0] : Json{{"type", "or"}, {"elements", tags}};
    Json elements = Json::array();
    const auto text = [](const Json& value) {
      return Json{{"type", "const_string"}, {"value", value}};
    };
    if (all["begin"] != "") elements.push_back(text(all["begin"]));
    elements.push_back(call);
    if (all["parallel"].get<bool>()) {
      const Json another = {{"type", "sequence"}, {"elements", {text(all["between"]), call}}};
      elements.push_back(
          {{"type", "repeat"}, {"min", 0}, {"max", kCallsMax - 1}, {"content", another}});
    }
    if (all["end"] != "") elements.push_back(text(all["end"]));
    format = elements.size() == 1 ? call : Json{{"type", "sequence"}, {"elements", elements}};
  }
  auto made = xgrammar::Grammar::FromStructuralTag(
      Json{{"type", "structural_tag"}, {"format", format}}.dump());
  if (auto* grammar = std::get_if<xgrammar::Grammar>(&made)) return *grammar;
  throw std::runtime_error(std::visit([](const auto& e) { return std::string(e.what()); },
                                      std::get<xgrammar::StructuralTagError>(made)));
}

xgrammar::Grammar read_grammar(const Grammar& g) {
  switch (g.kind()) {
    case Grammar::Kind::json_schema:
      return of_schema(g.text());
    case Grammar::Kind::regex:
      return xgrammar::Grammar::FromRegex(unfold_counts(g.text()));
    case Grammar::Kind::ebnf:
      return xgrammar::Grammar::FromEBNF(g.text());
    case Grammar::Kind::tool_calls:
      return of_tool_calls(Json::parse(g.text()));
  }
  throw std::runtime_error("unknown kind of grammar");
}

xgrammar::TokenizerInfo tokenizer_info(const Tokenizer& t, std::uint32_t vocabulary) {
  std::vector<std::string> pieces(vocabulary);  // an empty one never comes
  for (TokenId id = 0; id < std::min<std::size_t>(vocabulary, t.size()); ++id)
    if (!t.is_special(id) && !t.is_end_of_generation(id)) pieces[id] = t.piece(id);
  std::vector<std::int32_t> ends(t.end_of_generation().begin(), t.end_of_generation().end());
  return {pieces, xgrammar::VocabType::RAW, static_cast<int>(vocabulary), std::move(ends)};
}

}  // namespace

struct GrammarMatcher::State {
  xgrammar::GrammarMatcher matcher;
  std::size_t words;
  bool over = false;
  bool broken = false;  // xgrammar gave up: nothing may come any more
};

struct CompiledGrammar::State {
  xgrammar::CompiledGrammar compiled;
  std::size_t words;
};

bool GrammarMatcher::fill(std::span<std::uint32_t> bits) {
  State& s = *state_;
  CHECK(bits.size() >= s.words);
  if (!s.over && !s.broken) try {
      auto shape = static_cast<std::int64_t>(s.words);
      DLTensor tensor{.data = bits.data(),
                      .device = {kDLCPU, 0},
                      .ndim = 1,
                      .dtype = {kDLInt, 32, 1},
                      .shape = &shape,
                      .strides = nullptr,
                      .byte_offset = 0};
      return s.matcher.FillNextTokenBitmask(&tensor);
    } catch (const std::exception&) {
      s.broken = true;
    }
  std::ranges::fill(bits, 0u);
  return true;
}

bool GrammarMatcher::accept(TokenId token) {
  State& s = *state_;
  if (s.over || s.broken) return false;
  try {
    if (!s.matcher.AcceptToken(static_cast<std::int32_t>(token))) return false;
    s.over = s.matcher.IsTerminated();
    return true;
  } catch (const std::exception&) {
    s.broken = true;
    return false;
  }
}

bool GrammarMatcher::may_end() const {
  return !state_->over && !state_->broken && state_->matcher.IsCompleted();
}

bool GrammarMatcher::over() const { return state_->over; }

GrammarMatcher GrammarMatcher::fork() const {
  return GrammarMatcher(std::make_unique<State>(
      State{state_->matcher.Fork(), state_->words, state_->over, state_->broken}));
}

GrammarMatcher CompiledGrammar::start() const {
  return GrammarMatcher(std::make_unique<GrammarMatcher::State>(
      GrammarMatcher::State{xgrammar::GrammarMatcher(state_->compiled), state_->words}));
}

std::size_t CompiledGrammar::bytes() const { return state_->compiled.MemorySizeBytes(); }

struct GrammarCompiler::State {
  const Tokenizer& tokenizer;
  std::uint32_t vocabulary;
  GrammarCompilerOptions options;

  // Each is used by one thread at a time; grammars share the masks of equal rules through its cache.
  struct Compiler {
    std::mutex mutex{};
    std::optional<xgrammar::GrammarCompiler> compiler{};  // made when first needed
  };
  static constexpr std::size_t kCompilers = 4;
  std::array<Compiler, kCompilers> compilers{};
  std::atomic<std::size_t> next_compiler{0};
  std::once_flag info_made{};
  std::optional<xgrammar::TokenizerInfo> info{};  // of all compilers; read only

  xgrammar::CompiledGrammar compile(const xgrammar::Grammar& grammar) {
    std::call_once(info_made, [&] { info = tokenizer_info(tokenizer, vocabulary); });
    Compiler* one = nullptr;
    std::unique_lock<std::mutex> lock;
    for (Compiler& c : compilers)
      if (!lock.owns_lock())
        if (std::unique_lock<std::mutex> l(c.mutex, std::try_to_lock); l.owns_lock()) {
          lock = std::move(l);
          one = &c;
        }
    if (one == nullptr) {
      one = &compilers[next_compiler++ % kCompilers];
      lock = std::unique_lock(one->mutex);
    }
    if (!one->compiler)
      one->compiler.emplace(*info, /*max_threads=*/1, /*cache_enabled=*/true,
                            static_cast<std::int64_t>(options.kept_bytes / 2 / kCompilers));
    return one->compiler->CompileGrammar(grammar);
  }

  struct Kept {
    std::string digest;
    CompiledGrammar compiled;
    std::size_t bytes;
  };
  mutable std::mutex mutex{};  // of what follows
  std::list<Kept> order{};     // most recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_digest{};
  std::size_t bytes = 0;

  bool find(const std::string& digest, CompiledGrammar& out) {
    std::lock_guard lock(mutex);
    const auto found = by_digest.find(digest);
    if (found == by_digest.end()) return false;
    order.splice(order.begin(), order, found->second);
    out = found->second->compiled;
    return true;
  }

  void keep(const std::string& digest, const CompiledGrammar& compiled) {
    std::lock_guard lock(mutex);
    if (by_digest.contains(digest)) return;  // another thread made it meanwhile
    order.push_front({digest, compiled, compiled.bytes() + digest.size()});
    by_digest[digest] = order.begin();
    bytes += order.front().bytes;
    while (order.size() > 1 && (order.size() > options.kept || bytes > options.kept_bytes)) {
      bytes -= order.back().bytes;
      by_digest.erase(order.back().digest);
      order.pop_back();
    }
  }
};

namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Measures what a token costs in a random answer. A grammar that can read the same text in very
// many ways, such as ((a{1,30}){1,30}){1,30}, would delay every other answer.
double seconds_per_token(GrammarMatcher m, std::uint32_t vocabulary) {
  constexpr int kTokens = 64;
  constexpr double kSeconds = 0.5;
  std::vector<std::uint32_t> bits((vocabulary + 31) / 32);
  const double began = cpu_seconds();
  int n = 0;
  while (n < kTokens && !m.over() && cpu_seconds() - began < kSeconds) {
    if (!m.fill(bits)) std::ranges::fill(bits, ~0u);
    std::uint32_t count = 0;
    for (const std::uint32_t word : bits) count += static_cast<std::uint32_t>(std::popcount(word));
    if (count == 0) break;
    std::uint32_t skip = static_cast<std::uint32_t>(++n) * 7919 % count;
    TokenId token = 0;
    for (; token < vocabulary; ++token)
      if (bits[token / 32] >> token % 32 & 1 && skip-- == 0) break;
    if (!m.accept(token)) break;
  }
  return (cpu_seconds() - began) / std::max(n, 1);
}

}  // namespace

bool GrammarCompiler::available() { return true; }

Result<CompiledGrammar> GrammarCompiler::compile(const Grammar& grammar) {
  const std::string digest = grammar.digest();
  CompiledGrammar out;
  if (state_->find(digest, out)) return out;
  std::string warning;
  try {
    WarningScope scope(warning);
    const xgrammar::Grammar read = read_grammar(grammar);
    if (grammar.strict() && !warning.empty())
      return Error{Code::invalid, "cannot be enforced: " + one_line(warning)};
    out.state_ = std::make_shared<const CompiledGrammar::State>(
        CompiledGrammar::State{state_->compile(read), (state_->vocabulary + 31) / 32});
  } catch (const std::exception& e) {
    return Error{Code::invalid, one_line(e.what())};
  }
  constexpr double kSecondsMax = 5e-3;
  if (const double s = seconds_per_token(out.start(), state_->vocabulary); s > kSecondsMax)
    return Error{
        Code::invalid,
        fmt::format("is too ambiguous: a token takes {:.0f} ms; nest repetitions less", s * 1e3)};
  state_->keep(digest, out);
  return out;
}

bool GrammarCompiler::find(const Grammar& grammar, CompiledGrammar& out) {
  return state_->find(grammar.digest(), out);
}

std::size_t GrammarCompiler::kept() const {
  std::lock_guard lock(state_->mutex);
  return state_->order.size();
}

std::size_t GrammarCompiler::kept_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->bytes;
}

#else  // built without xgrammar

struct GrammarMatcher::State {};
struct CompiledGrammar::State {};
struct GrammarCompiler::State {
  const Tokenizer& tokenizer;
  std::uint32_t vocabulary;
  GrammarCompilerOptions options;
};

bool GrammarMatcher::fill(std::span<std::uint32_t>) { return false; }
bool GrammarMatcher::accept(TokenId) { return false; }
bool GrammarMatcher::may_end() const { return true; }
bool GrammarMatcher::over() const { return true; }
GrammarMatcher GrammarMatcher::fork() const { return GrammarMatcher(std::make_unique<State>()); }
GrammarMatcher CompiledGrammar::start() const {
  return GrammarMatcher(std::make_unique<GrammarMatcher::State>());
}
std::size_t CompiledGrammar::bytes() const { return 0; }

bool GrammarCompiler::available() { return false; }
Result<CompiledGrammar> GrammarCompiler::compile(const Grammar&) {
  return Error{Code::unavailable,
               "this build has no grammars; run scripts/xgrammar and configure it again"};
}
bool GrammarCompiler::find(const Grammar&, CompiledGrammar&) { return false; }
std::size_t GrammarCompiler::kept() const { return 0; }
std::size_t GrammarCompiler::kept_bytes() const { return 0; }

#endif

GrammarMatcher::GrammarMatcher(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, std::uint32_t vocabulary,
                                 GrammarCompilerOptions options)
    : state_(new State{.tokenizer = tokenizer, .vocabulary = vocabulary, .options = options}) {}
GrammarCompiler::~GrammarCompiler() = default;

}  // namespace quire
