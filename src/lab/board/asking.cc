#include "lab/board/asking.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

constexpr float kMatters = -14;  // log-probability below which a token is one of the rest

double log_sum_exp(const VectorKernels& vector, std::span<const float> logits) {
  const auto n = static_cast<std::uint32_t>(logits.size());
  const float most = vector.max(logits.data(), n);
  return most + std::log(static_cast<double>(vector.sum_exp(logits.data(), most, n)));
}

Distribution distribution(std::span<const float> logits, double log_sum) {
  Distribution d;
  d.rest = 1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double log_p = logits[i] - log_sum;
    if (log_p < kMatters) continue;
    d.tokens.push_back(static_cast<TokenId>(i));
    d.logprobs.push_back(static_cast<float>(log_p));
    d.rest -= std::exp(log_p);
  }
  d.rest = std::max(d.rest, 0.0);
  return d;
}

// KL from the full distribution; the rest counts as one token.
double partial_divergence(const Distribution& full, std::span<const float> logits, double log_sum) {
  double sum = 0, rest = 1;
  for (std::size_t i = 0; i < full.tokens.size(); ++i) {
    const double log_q = logits[full.tokens[i]] - log_sum;
    sum += std::exp(static_cast<double>(full.logprobs[i])) * (full.logprobs[i] - log_q);
    rest -= std::exp(log_q);
  }
  if (full.rest > 1e-9) sum += full.rest * std::log(full.rest / std::max(rest, 1e-9));
  return std::max(sum, 0.0);
}

}  // namespace

Status Asking::add(Sequence s, std::vector<TokenId> lead, const Question& q,
                   std::vector<Distribution>* full, bool keep, Reply* reply,
                   const std::optional<Selecting>& select) {
  reply->nll.resize(q.candidates.size());
  lead.insert(lead.end(), q.prompt.begin(), q.prompt.end());
  const bool every = q.candidates.size() > 1 && q.candidates[0].size() == 1;
  const auto count = static_cast<std::uint32_t>(every ? 1 : q.candidates.size());
  for (std::uint32_t c = 0; c < count; ++c) {
    std::vector<TokenId> tokens = lead;
    const std::vector<TokenId>& candidate = q.candidates[every ? q.right : c];
    tokens.insert(tokens.end(), candidate.begin(), candidate.end() - 1);
    Sequence own;
    if (c + 1 == count) {
      own = std::move(s);
    } else {
      TRY(own, runtime_.cache().fork(s));
    }
    rows_ += tokens.size();
    items_.push_back({std::move(own), std::move(tokens),
                      static_cast<std::uint32_t>(candidate.size()), &q, every ? kEvery : c, full,
                      keep, reply, select});
  }
  const bool enough = rows_ >= runtime_.executor().traits().rows_max || items_.size() >= 64;
  return enough ? run() : Status();
}

Status Asking::run() {
  const std::size_t vocabulary = runtime_.config().vocabulary;
  while (!items_.empty()) {
    std::vector<StepItem> step;
    std::size_t rows = 0;
    for (Item& item : items_) {
      if (rows + item.tokens.size() > runtime_.executor().traits().rows_max) break;
      rows += item.tokens.size();
      step.push_back({&item.sequence, item.tokens, item.scored == 1 ? Logits::last : Logits::all,
                      item.select ? &*item.select : nullptr});
    }
    if (step.empty())
      return Error{Code::invalid, "a question is longer than a step; raise --batch-rows"};
    TRY(const std::span<float> logits, stepper_.run(step));
    std::size_t at = 0;
    for (std::size_t i = 0; i < step.size(); ++i) {
      const Item& item = items_[i];
      const std::size_t have = item.scored == 1 ? 1 : item.tokens.size();
      score(item, logits.subspan(at * vocabulary, have * vocabulary),
            static_cast<std::uint32_t>(have - item.scored));
      at += have;
    }
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(step.size()));
  }
  rows_ = 0;
  return {};
}

Result<double> Asking::stream(Sequence& s, Retaining* retain, const Sample& sample,
                              std::uint32_t rows, std::vector<Distribution>& full, bool keep,
                              Reply& reply) {
  const std::size_t vocabulary = runtime_.config().vocabulary;
  std::vector<TokenId> tokens = sample.context;
  const std::vector<TokenId>& text = sample.questions[0].candidates[0];
  tokens.insert(tokens.end(), text.begin(), text.end());
  reply.nll.resize(1);
  double most = 0;
  for (std::size_t at = 0; at + 1 < tokens.size(); at += rows) {
    const auto part =
        std::span(tokens).subspan(at, std::min<std::size_t>(rows, tokens.size() - 1 - at));
    const StepItem item{&s, part, Logits::all, retain};
    TRY(const std::span<float> logits, stepper_.run({&item, 1}));
    most = std::max(most, static_cast<double>(runtime_.cache().bytes(s)));
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (at + i + 1 < sample.context.size()) continue;
      const auto row = logits.subspan(i * vocabulary, vocabulary);
      const std::size_t place = reply.top.size();
      const double sum = log_sum_exp(runtime_.vector(), row);
      reply.nll[0].push_back(static_cast<float>(sum - row[tokens[at + i + 1]]));
      reply.top.push_back(
          runtime_.vector().argmax(row.data(), static_cast<std::uint32_t>(vocabulary)));
      if (keep) full.push_back(distribution(row, sum));
      reply.kl.push_back(keep ? 0 : static_cast<float>(partial_divergence(full[place], row, sum)));
    }
  }
  return most;
}

void Asking::score(const Item& item, std::span<const float> logits, std::uint32_t first_row) {
  const std::size_t vocabulary = runtime_.config().vocabulary;
  const Question& q = *item.question;
  const bool right = item.candidate == kEvery || item.candidate == q.right;
  std::vector<double> sums(item.scored);
  std::vector<Distribution> made(right && item.keep ? item.scored : 0);
  std::vector<float> kl(right ? item.scored : 0);
  std::vector<TokenId> top(right ? item.scored : 0);
  runtime_.pool().run([&](ThreadPool::Worker worker) {
    for (std::uint32_t i = worker.index; i < item.scored; i += worker.count) {
      const auto row = logits.subspan((first_row + i) * vocabulary, vocabulary);
      sums[i] = log_sum_exp(runtime_.vector(), row);
      if (!right) continue;
      top[i] = runtime_.vector().argmax(row.data(), static_cast<std::uint32_t>(vocabulary));
      if (item.keep)
        made[i] = distribution(row, sums[i]);
      else
        kl[i] = static_cast<float>(partial_divergence((*item.full)[i], row, sums[i]));
    }
  });
  const auto nll = [&](std::uint32_t i, TokenId token) {
    return static_cast<float>(sums[i] - logits[(first_row + i) * vocabulary + token]);
  };
  if (item.candidate == kEvery)
    for (std::size_t c = 0; c < q.candidates.size(); ++c)
      item.reply->nll[c] = {nll(0, q.candidates[c][0])};
  else
    for (std::uint32_t i = 0; i < item.scored; ++i)
      item.reply->nll[item.candidate].push_back(nll(i, q.candidates[item.candidate][i]));
  if (!right) return;
  item.reply->top = std::move(top);
  item.reply->kl = std::move(kl);
  if (item.keep) *item.full = std::move(made);
}

}  // namespace quire
