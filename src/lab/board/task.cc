#include "lab/board/task.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/hash.h"

namespace quire {
namespace {

using Tokens = std::vector<TokenId>;

void append(Tokens& to, const Tokens& more) { to.insert(to.end(), more.begin(), more.end()); }

// A run of natural text that starts anywhere.
Tokens text_at(const Vocabulary& v, std::size_t count, Random& random) {
  CHECK(v.text.size() > count);
  const std::size_t first = random.below(v.text.size() - count);
  return {v.text.begin() + static_cast<std::ptrdiff_t>(first),
          v.text.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

// Different words, in random order.
Tokens words(const Vocabulary& v, std::size_t count, Random& random) {
  CHECK(count <= v.words.size());
  Tokens all = v.words;
  for (std::size_t i = 0; i < count; ++i) std::swap(all[i], all[i + random.below(all.size() - i)]);
  all.resize(count);
  return all;
}

Sample continuation(const Vocabulary& v, const Level& level, Random& random) {
  Tokens all = text_at(v, level.context + level.size, random);
  Question q;
  q.candidates.emplace_back(all.begin() + level.context, all.end());
  all.resize(level.context);
  return {all, {q}};
}

constexpr std::uint32_t kWarmUp = 8;

// A passage, something else, and the passage again.
Sample repeated(const Vocabulary& v, const Level& level, Random& random) {
  const Tokens passage = text_at(v, level.size, random);
  Sample s;
  s.context = passage;
  append(s.context, text_at(v, level.context, random));
  Question q{.candidates = {passage}, .skip = kWarmUp};
  q.answer.resize(level.size);
  std::iota(q.answer.begin(), q.answer.end(), 0u);
  s.questions.push_back(q);
  return s;
}

Sample random_copy(const Vocabulary& v, const Level& level, Random& random) {
  const Tokens filler = text_at(v, level.context, random);
  const Tokens line = v.encode("\n");
  Tokens passage;
  for (std::uint32_t i = 0; i < level.size; ++i)
    passage.push_back(v.words[random.below(v.words.size())]);
  Sample s{filler, {}};
  Question q{.candidates = {passage}, .skip = kWarmUp};
  append(s.context, line);
  const auto first = static_cast<std::uint32_t>(s.context.size());
  for (int said = 0; said < 2; ++said) {  // the second shows what is to be done with it
    append(s.context, passage);
    append(s.context, line);
  }
  for (auto slot = first; slot < s.context.size(); ++slot) q.answer.push_back(slot);
  append(s.context, text_at(v, level.context, random));
  append(s.context, line);
  s.questions.push_back(q);
  return s;
}

constexpr std::uint32_t kAsked = 4;  // questions about one context
constexpr std::uint32_t kShots = 2;  // pairs said again before a question, to show what is asked

// Lines "key: value" with different keys, in the middle of a text, then questions "key:" behind two
// other pairs. Every value is a candidate.
Sample lookup_of(const Vocabulary& v, std::uint32_t filler, std::uint32_t pairs,
                 std::uint32_t value_tokens, std::uint32_t questions, Random& random) {
  const Tokens drawn = words(v, pairs * (1 + value_tokens), random);
  const Tokens colon = v.encode(":"), line = v.encode("\n");
  Sample s{text_at(v, filler / 2, random), {}};
  append(s.context, line);
  std::vector<Tokens> values;
  std::vector<std::uint32_t> at, end;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const auto value = drawn.begin() + pairs + static_cast<std::ptrdiff_t>(i * value_tokens);
    values.emplace_back(value, value + value_tokens);
    at.push_back(static_cast<std::uint32_t>(s.context.size()));
    s.context.push_back(drawn[i]);
    append(s.context, colon);
    append(s.context, values.back());
    append(s.context, line);
    end.push_back(static_cast<std::uint32_t>(s.context.size()));
  }
  append(s.context, text_at(v, filler / 2, random));
  append(s.context, line);
  // Never the last pair: a window would hold it.
  std::vector<std::uint32_t> asked(std::max(1u, pairs - 1));
  std::iota(asked.begin(), asked.end(), 0u);
  for (std::uint32_t i = 0; i < std::min<std::size_t>(questions, asked.size()); ++i) {
    std::swap(asked[i], asked[i + random.below(asked.size() - i)]);
    Question q{.candidates = values, .right = asked[i]};
    for (std::uint32_t shot = kShots; shot + 1 > 0; --shot) {
      const std::uint32_t pair = (asked[i] + shot) % pairs;
      q.prompt.push_back(drawn[pair]);
      append(q.prompt, colon);
      if (shot > 0) {
        append(q.prompt, values[pair]);
        append(q.prompt, line);
      }
      for (std::uint32_t slot = at[pair]; slot < end[pair]; ++slot) q.answer.push_back(slot);
    }
    std::ranges::sort(q.answer);
    s.questions.push_back(q);
  }
  return s;
}

Sample lookup(const Vocabulary& v, const Level& level, Random& random) {
  return lookup_of(v, level.context, level.size, level.extra, kAsked, random);
}

Sample multi_query(const Vocabulary& v, const Level& level, Random& random) {
  return lookup_of(v, level.context, level.size, 1, level.extra, random);
}

// One number in much text, and two worked examples of the question before it.
Sample passkey(const Vocabulary& v, const Level& level, Random& random) {
  constexpr std::uint32_t kDecoys = 9;
  const Tokens colon = v.encode(":"), line = v.encode("\n");
  const Tokens pass = v.encode("\nThe pass word is");
  const Tokens ask = v.encode("\nQuestion: what is the pass word? The pass word is");
  const Tokens drawn = words(v, kDecoys + 3, random);
  Sample s;
  for (std::uint32_t shot = 0; shot < 2; ++shot)
    for (const Tokens* part : {&pass, &ask}) {
      append(s.context, *part);
      s.context.push_back(drawn[kDecoys + 1 + shot]);
      append(s.context, line);
    }
  const std::uint32_t before = level.context * level.extra / 100;
  append(s.context, text_at(v, before, random));
  Question q{.prompt = ask};
  for (std::uint32_t i = 0; i <= kDecoys; ++i) q.candidates.push_back({drawn[i]});
  q.right = static_cast<std::uint32_t>(random.below(kDecoys + 1));
  const auto first = static_cast<std::uint32_t>(s.context.size());
  append(s.context, pass);
  s.context.push_back(drawn[q.right]);
  append(s.context, line);
  for (auto slot = first; slot < s.context.size(); ++slot) q.answer.push_back(slot);
  append(s.context, text_at(v, level.context - before, random));
  s.questions.push_back(q);
  return s;
}

// "b = a" chains: the value of a name that was given another name.
Sample chain(const Vocabulary& v, const Level& level, Random& random) {
  const std::uint32_t hops = level.extra;
  const Tokens drawn = words(v, level.size * (hops + 2), random);
  const Tokens equals = v.encode(" ="), line = v.encode("\n");
  Sample s{text_at(v, level.context / 2, random), {}};
  append(s.context, line);
  const auto name = [&](std::uint32_t i, std::uint32_t hop) { return drawn[i * (hops + 2) + hop]; };
  // Line by line over all chains, so that hops of one chain stand apart. Name 0 holds the value.
  std::vector<std::vector<std::uint32_t>> slots(level.size);
  for (std::uint32_t hop = 0; hop <= hops; ++hop)
    for (std::uint32_t i = 0; i < level.size; ++i) {
      const auto first = static_cast<std::uint32_t>(s.context.size());
      s.context.push_back(name(i, hop + 1));
      append(s.context, equals);
      s.context.push_back(name(i, hop));
      append(s.context, line);
      for (auto slot = first; slot < s.context.size(); ++slot) slots[i].push_back(slot);
    }
  append(s.context, text_at(v, level.context / 2, random));
  append(s.context, line);
  for (std::uint32_t asked = 0; asked + 1 < level.size && asked < kAsked; ++asked) {
    Question q{.right = asked};
    for (std::uint32_t shot = kShots; shot + 1 > 0; --shot) {
      const std::uint32_t i = (asked + shot) % level.size;
      q.prompt.push_back(name(i, hops + 1));
      append(q.prompt, equals);
      if (shot > 0) {
        q.prompt.push_back(name(i, 0));
        append(q.prompt, line);
      }
      q.answer.insert(q.answer.end(), slots[i].begin(), slots[i].end());
    }
    std::ranges::sort(q.answer);
    for (std::uint32_t i = 0; i < level.size; ++i) q.candidates.push_back({name(i, 0)});
    s.questions.push_back(q);
  }
  return s;
}

constexpr Level kContinuation[] = {{"512", 512, 256}, {"1024", 1024, 256}, {"2048", 2048, 256}};
constexpr Level kRepeated[] = {{"64+256", 256, 64}, {"128+512", 512, 128}, {"256+1024", 1024, 256}};
constexpr Level kCopy[] = {{"32", 64, 32}, {"64", 64, 64}, {"128", 128, 128}, {"256", 128, 256}};
constexpr Level kLookup[] = {{"4", 192, 4, 1},   {"8", 192, 8, 1},     {"16", 192, 16, 1},
                             {"32", 192, 32, 1}, {"32x2", 192, 32, 2}, {"64", 192, 64, 1}};
// What comes early is outside of every window of half the text.
constexpr Level kPasskey[] = {{"256@25", 256, 0, 25},
                              {"512@75", 512, 0, 75},
                              {"512@25", 512, 0, 25},
                              {"1024@25", 1024, 0, 25},
                              {"2048@25", 2048, 0, 25}};
constexpr Level kMulti[] = {{"9x8", 192, 9, 8}, {"16x8", 192, 16, 8}, {"32x8", 192, 32, 8}};
constexpr Level kChain[] = {
    {"1 hop of 4", 192, 4, 1}, {"1 hop of 8", 192, 8, 1}, {"2 hops of 8", 192, 8, 2}};
constexpr Level kAgreement[] = {{"256+64", 256, 64}};
constexpr Level kStream[] = {{"2048", 32, 2016}};

constexpr Task kTasks[] = {
    {"S1", "continuation", "the next tokens of a natural text", Metric::likelihood, kContinuation,
     continuation},
    {"S2", "repeated text", "a passage again, after other text", Metric::likelihood, kRepeated,
     repeated},
    {"S3", "random copy", "random words again, in order", Metric::accuracy, kCopy, random_copy},
    {"S4", "lookup", "the value of one of many keys", Metric::ranking, kLookup, lookup},
    {"S5", "pass word", "one word said once in a long text", Metric::ranking, kPasskey, passkey},
    {"S6", "many questions", "eight lookups in one compressed context", Metric::ranking, kMulti,
     multi_query},
    {"S7", "chain", "the value behind a name of a name", Metric::ranking, kChain, chain},
    {"S8", "agreement", "the same best token as without compression", Metric::agreement, kAgreement,
     continuation},
    {"S9", "stream", "a long text read with a capped cache", Metric::likelihood, kStream,
     continuation},
};
}  // namespace

std::span<const Task> suite_tasks() { return kTasks; }

Sample make_sample(const Task& task, const Level& level, const Vocabulary& vocabulary,
                   std::uint64_t seed, std::uint32_t index) {
  const std::string name = std::string(task.id) + '/' + std::string(level.name);
  Random random(mix64(seed ^ hash64(name.data(), name.size())) + index);
  Sample sample = task.make(vocabulary, level, random);
  sample.stream = task.id == "S9";
  return sample;
}

double chance(const Task& task, const Sample& sample) {
  if (task.metric != Metric::ranking) return 0;
  double sum = 0;
  for (const Question& q : sample.questions) sum += 1.0 / static_cast<double>(q.candidates.size());
  return sum / static_cast<double>(sample.questions.size());
}

}  // namespace quire
