// A signal that needs more than watching: what the model looks at when it reads the context again.
#include <algorithm>

#include "base/check.h"
#include "engine/observer.h"
#include "engine/stepper.h"
#include "kv/planted.h"

namespace quire {
namespace {

constexpr std::uint32_t kChunk = 2048;   // tokens of the context that are repeated at a time
constexpr std::uint32_t kSinks = 4;      // seen besides the chunk
constexpr std::uint32_t kReminder = 8;   // last tokens of the chunk before it
constexpr std::uint32_t kRequest = 128;  // most tokens of what asks for it

// What stands before a chunk that is to be repeated.
std::vector<TokenId> request(const Runtime& runtime, std::span<const TokenId> context,
                             std::uint32_t begin) {
  const auto encode = [&](std::string_view text) { return runtime.tokenizer().encode(text, {}); };
  if (begin == 0) return encode("\n\nRepeat the previous context exactly.\n\n");
  std::vector<TokenId> tokens =
      encode("\n\nRepeat the part of the previous context exactly, starting with ");
  const auto last = context.subspan(begin - kReminder, kReminder);
  tokens.insert(tokens.end(), last.begin(), last.end());
  return tokens;
}

}  // namespace

std::uint32_t repeat_tokens(std::uint32_t context) { return std::min(context, kChunk) + kRequest; }

struct Observer::Rereading {
  std::uint32_t begin = 0;  // of the chunk that is being repeated
  std::vector<TokenId> repeat;
  std::uint32_t at = 0;  // tokens of it that have been read
  Sequence again;
  std::optional<Tap> tap;
  std::uint32_t worked = 0;  // tokens whose queries were looked at
};

Observer::OwnRereading::OwnRereading([[maybe_unused]] const OwnRereading& o) {
  if (!planted(Bug::share_rereading)) return;
  if (!o.at) o.at = std::make_shared<Rereading>();  // forks part before anything was read again
  at = o.at;
}

Result<bool> Observer::read_some(Stepper& stepper, const Sequence& s, std::uint32_t rows) {
  Runtime& runtime = stepper.runtime();
  const std::uint32_t context = s.length();
  const Geometry& geometry = runtime.cache().geometry(s.root());
  if (layers_.empty()) has_read_again_ = true;
  if (has_read_again_) return true;
  if (!rereading_.at) {
    rereading_.at = std::make_shared<Rereading>();
    peak_.clear();
  }
  Rereading& r = *rereading_.at;
  const std::uint32_t per_block = geometry.tokens_per_block,
                      rows_max = runtime.executor().traits().rows_max;
  const std::uint32_t end = std::min(context, r.begin + kChunk);
  if (!r.again.is_open()) {
    const auto tokens = s.tokens().first(context);
    r.repeat = request(runtime, tokens, r.begin);
    CHECK(r.repeat.size() <= kRequest);
    r.repeat.insert(r.repeat.end(), tokens.begin() + r.begin, tokens.begin() + end);
    TRY(r.again, runtime.cache().fork(s));
    runtime.cache().truncate(r.again, context);  // what the prompt goes on with comes later
    r.again.limit_purity(context);
    // A query sees its own block as it is when all of it is there, however the reading was cut.
    r.tap.emplace(runtime.config(), geometry, geometry.places[layers_[0]].group);
    r.tap->watch(context, rows_max + per_block);
    r.at = 0;
    r.worked = context;
  }
  const auto count = std::min<std::uint32_t>(
      {std::max(rows, 1u), rows_max, static_cast<std::uint32_t>(r.repeat.size()) - r.at});
  const StepItem item{.sequence = &r.again,
                      .tokens = std::span(r.repeat).subspan(r.at, count),
                      .logits = Logits::none,
                      .tap = &*r.tap};
  TRY([[maybe_unused]] const auto none, stepper.run({&item, 1}));
  r.at += count;
  const bool whole = r.at == r.repeat.size();
  const std::uint32_t upto = whole ? r.again.length() : r.again.length() / per_block * per_block;
  if (upto > r.worked) {
    add_mass(runtime, r.again, *r.tap,
             {.rule = MassRule::peak,
              .first = r.worked,
              .rows = upto - r.worked,
              .repeat = true,
              .sinks = std::min(kSinks, r.begin),
              .begin = r.begin,
              .end = end,
              .own = context},
             peak_);
    r.worked = upto;
    r.tap->advance(upto);
  }
  if (!whole) return false;
  for (std::vector<float>& of : peak_) of.resize(context);
  r.again.close();
  r.begin = end;
  if (end < context) return false;
  rereading_.at.reset();
  has_read_again_ = true;
  return true;
}

Status Observer::read_again(Stepper& stepper, const Sequence& s) {
  for (bool done = false; !done;) {
    TRY(done, read_some(stepper, s, 0xffffffffu));
  }
  return {};
}

}  // namespace quire
