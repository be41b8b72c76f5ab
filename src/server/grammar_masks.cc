#include "server/grammar_masks.h"

#include <time.h>

#include <algorithm>

namespace quire {
namespace {

constexpr std::uint32_t kWaitingMax = 64;

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Masks are filled during a step, while all other answers wait. So a mask has a budget of time:
// some at the beginning, and a little more with every token. When it is used up, the mask allows no
// token, which ends the answer, and `state` says why.
class GrammarMask final : public TokenMask {
 public:
  GrammarMask(GrammarMatcher matcher, std::shared_ptr<MaskState> state, double spent = 0)
      : matcher_(std::move(matcher)), state_(std::move(state)), spent_(spent) {}

  bool fill(std::span<std::uint32_t> bits) override {
    const double began = processor_seconds();
    const bool restricts = matcher_.fill(bits);
    if (within_budget(began)) return restricts;
    std::ranges::fill(bits, 0u);
    return true;
  }
  bool accept(TokenId token) override {
    const double began = processor_seconds();
    const bool more = matcher_.accept(token) && !matcher_.over();
    spent_ -= kSecondsPerToken;
    return within_budget(began) && more;
  }
  std::unique_ptr<TokenMask> fork() const override {
    return std::make_unique<GrammarMask>(matcher_.fork(), state_, spent_);
  }

 private:
  static constexpr double kSecondsFirst = 0.1, kSecondsPerToken = 2e-3;

  bool within_budget(double began) {
    spent_ = std::max(0.0, spent_) + processor_seconds() - began;
    if (spent_ > kSecondsFirst) state_->too_slow = true;
    return spent_ <= kSecondsFirst;
  }

  GrammarMatcher matcher_;
  std::shared_ptr<MaskState> state_;
  double spent_;
};

Result<Grammar> of_tools(const AnswerGrammar& asked) {
  std::vector<ToolShape> tools;
  for (const Json& t : asked.schema)
    tools.push_back({t["name"].get<std::string>(), t["parameters"], t["strict"].get<bool>()});
  return Grammar::tool_calls(tools, asked.form);
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
      return of_tools(asked);
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

void GrammarMasks::make(const AnswerGrammar& asked, std::shared_ptr<MaskState> state,
                        std::function<void(Made)> then) {
  auto grammar = grammar_of(asked);
  if (!grammar.ok()) return then(grammar.error());
  if (CompiledGrammar kept; compiler_.find(grammar.value(), kept))
    return then(Made(std::make_unique<GrammarMask>(kept.start(), std::move(state))));
  if (waiting_ >= kWaitingMax)
    return then(
        Error{Code::unavailable, "other grammars are still being compiled; try again in a moment"});
  ++waiting_;
  auto stop = std::make_shared<Stop>();
  pool_.run(
      {.whose = {},
       .stop = stop,
       .work = [this, stop, state, grammar = std::move(grammar.value()), then = std::move(then)] {
         Made made = Error{Code::unavailable, "the server is shutting down"};
         if (!stop->asked()) {
           auto compiled = compiler_.compile(grammar);
           if (compiled.ok())
             made = Made(std::make_unique<GrammarMask>(compiled.value().start(), state));
           else
             made = compiled.error();
         }
         --waiting_;
         then(std::move(made));
       }});
}

}  // namespace quire
