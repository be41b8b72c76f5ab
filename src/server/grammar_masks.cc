#include "server/grammar_masks.h"

#include "base/clock.h"
#include "server/tools.h"

namespace quire {
namespace {

constexpr std::uint32_t kWaitingMax = 64;
constexpr Nanoseconds kLong = 5'000'000'000;

class GrammarMask final : public TokenMask {
 public:
  explicit GrammarMask(GrammarMatcher matcher) : matcher_(std::move(matcher)) {}
  bool fill(std::span<std::uint32_t> bits) override { return matcher_.fill(bits); }
  bool accept(TokenId token) override { return matcher_.accept(token) && !matcher_.over(); }
  std::unique_ptr<TokenMask> fork() const override {
    return std::make_unique<GrammarMask>(matcher_.fork());
  }

 private:
  GrammarMatcher matcher_;
};

Result<Grammar> of_tools(const Json& asked) {
  std::vector<ToolShape> tools;
  for (const Json& t : asked["tools"])
    tools.push_back({t["name"].get<std::string>(), t["parameters"], t["strict"].get<bool>()});
  ToolCallForm form;
  form.arguments = asked["arguments"].get<std::string>();
  form.required = asked["required"].get<bool>();
  form.parallel = asked["parallel"].get<bool>();
  form.trigger = kToolOpen;
  if (asked["tags"].get<bool>()) {
    form.open = std::string(kToolOpen) + "\n";
    form.close = "\n" + std::string(kToolClose);
  } else {
    form.open = form.close = "";
  }
  return Grammar::tool_calls(tools, form);
}

}  // namespace

Result<Grammar> grammar_of(const AnswerGrammar& asked) {
  switch (asked.kind) {
    case AnswerGrammar::Kind::json_object:
      return Grammar::json_object();
    case AnswerGrammar::Kind::json_schema:
      return Grammar::from_json_schema(asked.schema, {.strict = asked.strict});
    case AnswerGrammar::Kind::regex:
      return Grammar::from_regex(asked.text);
    case AnswerGrammar::Kind::choice:
      return Grammar::choice(asked.choices);
    case AnswerGrammar::Kind::ebnf:
      return Grammar::from_ebnf(asked.text);
    case AnswerGrammar::Kind::tool_calls:
      return of_tools(asked.schema);
    case AnswerGrammar::Kind::none:
      break;
  }
  return Error{Code::invalid, "no grammar was asked for"};
}

std::unique_ptr<GrammarMasks> GrammarMasks::create(const Tokenizer& tokenizer,
                                                   std::uint32_t vocabulary) {
  if (!GrammarCompiler::available()) return nullptr;
  return std::unique_ptr<GrammarMasks>(new GrammarMasks(tokenizer, vocabulary));
}

GrammarMasks::~GrammarMasks() { stopping_ = true; }

void GrammarMasks::make(const AnswerGrammar& asked, std::function<void(Made)> then) {
  auto grammar = grammar_of(asked);
  if (!grammar.ok()) return then(grammar.error());
  if (CompiledGrammar kept; compiler_.find(grammar.value(), kept))
    return then(Made(std::make_unique<GrammarMask>(kept.start())));
  const Nanoseconds since = busy_since_;
  if (waiting_ >= kWaitingMax || (since != 0 && SteadyClock().now() - since > kLong))
    return then(
        Error{Code::unavailable, "other grammars are still being compiled; try again in a moment"});
  ++waiting_;
  worker_.run([this, grammar = std::move(grammar.value()), then = std::move(then)] {
    Made made = Error{Code::unavailable, "the server is shutting down"};
    if (!stopping_) {
      busy_since_ = SteadyClock().now();
      auto compiled = compiler_.compile(grammar);
      busy_since_ = 0;
      if (compiled.ok())
        made = Made(std::make_unique<GrammarMask>(compiled.value().start()));
      else
        made = compiled.error();
    }
    --waiting_;
    then(std::move(made));
  });
}

}  // namespace quire
