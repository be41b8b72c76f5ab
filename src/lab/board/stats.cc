#include "lab/board/stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace quire {
namespace {
constexpr int kDraws = 1000;

// A candidate's NLL per token, without what is skipped.
double mean_nll(const std::vector<float>& nll, std::uint32_t skip) {
  CHECK(nll.size() > skip);
  double sum = 0;
  for (std::size_t i = skip; i < nll.size(); ++i) sum += nll[i];
  return sum / static_cast<double>(nll.size() - skip);
}

double score_reply(Metric metric, const Question& q, const Reply& reply, const Reply& full) {
  CHECK(reply.nll.size() == q.candidates.size());
  if (metric == Metric::likelihood) return -mean_nll(reply.nll[q.right], q.skip);
  if (metric == Metric::accuracy || metric == Metric::agreement) {
    const std::vector<TokenId>& wanted =
        metric == Metric::accuracy ? q.candidates[q.right] : full.top;
    CHECK(reply.top.size() == wanted.size() && wanted.size() > q.skip);
    std::size_t right = 0;
    for (std::size_t i = q.skip; i < wanted.size(); ++i) right += reply.top[i] == wanted[i];
    return static_cast<double>(right) / static_cast<double>(wanted.size() - q.skip);
  }
  const double own = mean_nll(reply.nll[q.right], 0);
  for (std::size_t i = 0; i < reply.nll.size(); ++i)
    if (i != q.right && !(own < mean_nll(reply.nll[i], 0))) return 0;
  return 1;
}
}  // namespace

double score_replies(const Task& task, const Sample& sample, std::span<const Reply> replies,
                     std::span<const Reply> full) {
  CHECK(replies.size() == sample.questions.size() && full.size() == replies.size());
  CHECK(!replies.empty());
  double sum = 0;
  for (std::size_t i = 0; i < replies.size(); ++i)
    sum += score_reply(task.metric, sample.questions[i], replies[i], full[i]);
  return sum / static_cast<double>(replies.size());
}

double mean_of(std::span<const double> x) {
  CHECK(!x.empty());
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

Interval mean_interval(std::span<const double> a, std::uint64_t seed) {
  Random random(seed);
  std::vector<double> means(kDraws);
  for (double& mean : means) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[random.below(a.size())];
    mean = sum / static_cast<double>(a.size());
  }
  std::sort(means.begin(), means.end());
  return {mean_of(a), means[kDraws / 40], means[kDraws - 1 - kDraws / 40]};
}

Interval paired_difference(std::span<const double> a, std::span<const double> b,
                           std::uint64_t seed) {
  CHECK(a.size() == b.size());
  std::vector<double> d(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return mean_interval(d, seed);
}

Gate gate(Metric metric, const Anchors& anchors, double chance) {
  const double full = mean_of(anchors.full), none = mean_of(anchors.none);
  if (metric == Metric::likelihood || metric == Metric::agreement) {
    if (full - none < 0.05)
      return {false, fmt::format("context helps by {:.3f}, 0.05 wanted", full - none)};
    return {true, ""};
  }
  const double random = mean_of(anchors.random_half), oracle = mean_of(anchors.oracle_half);
  if (full < 0.9) return {false, fmt::format("the whole cache scores {:.2f}, 0.90 wanted", full)};
  if (none > chance + 0.1)
    return {false, fmt::format("no context scores {:.2f}, chance is {:.2f}", none, chance)};
  if (full - random < 0.3)
    return {false, fmt::format("random at half costs {:.2f}, 0.30 wanted", full - random)};
  if (oracle < 0.95 * full)
    return {false, fmt::format("oracle at half scores {:.2f} of {:.2f}", oracle, full)};
  return {true, ""};
}

double normalized(double x, double full, double none) {
  return full == none ? 0 : (x - none) / (full - none);
}

}  // namespace quire
