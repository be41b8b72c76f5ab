#include "lab/formats/quality.h"

#include <algorithm>
#include <cmath>

#include "engine/stepper.h"

namespace quire {
namespace {

constexpr std::size_t kLogitBytesMax = std::size_t{192} << 20;

// Of one way, as it is collected.
struct Tally {
  std::vector<double> kl;
  double nll = 0;
  std::uint64_t same = 0;
};

struct Row {
  std::span<const float> logits;
  double log_sum = 0;
  TokenId top = 0;
};

Row read_row(const VectorKernels& vector, std::span<const float> logits) {
  const auto n = static_cast<std::uint32_t>(logits.size());
  const float most = vector.max(logits.data(), n);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - most));
  return {logits, most + std::log(sum), static_cast<TokenId>(vector.argmax(logits.data(), n))};
}

double divergence(const Row& p, const Row& q) {
  double sum = 0;
  for (std::size_t i = 0; i < p.logits.size(); ++i) {
    const double log_p = p.logits[i] - p.log_sum;
    if (log_p > -40) sum += std::exp(log_p) * (log_p - (q.logits[i] - q.log_sum));
  }
  return std::max(sum, 0.0);
}

}  // namespace

Result<std::vector<Quality>> compare_storage(Runtime& r, const QualityQuestion& question,
                                             std::span<const TokenId> tokens) {
  Stepper stepper(r);
  const std::size_t ways = question.ways.size(), vocabulary = r.config().vocabulary;
  std::vector<RootId> roots;
  TRY(const RootId reference, r.tenant_root("", &question.reference));
  roots.push_back(reference);
  for (const StoragePolicy& way : question.ways) {
    TRY_STATUS(r.check_storage(way));
    TRY(const RootId root, r.tenant_root("", &way));
    roots.push_back(root);
  }
  const auto fit = static_cast<std::uint32_t>(
      std::max<std::size_t>(1, kLogitBytesMax / (sizeof(float) * vocabulary * (ways + 1))));
  const std::uint32_t rows =
      std::min({fit, 128u, r.executor().traits().rows_max / static_cast<std::uint32_t>(ways + 1)});
  if (rows == 0)
    return Error{Code::invalid,
                 "one step cannot hold this many formats; raise --batch-rows or name fewer"};

  std::vector<Tally> tallies(ways);
  std::vector<Row> read;
  double nll_reference = 0;
  for (std::size_t first = 0; first + 1 < tokens.size(); first += question.window) {
    const auto part =
        tokens.subspan(first, std::min<std::size_t>(question.window, tokens.size() - first));
    std::vector<Sequence> sequences;
    for (const RootId root : roots) {
      TRY(Sequence s, r.cache().open({.root = root,
                                      .token_capacity = static_cast<std::uint32_t>(part.size()),
                                      .reuse = false,
                                      .publish = false}));
      r.cache().attach(s, {});
      sequences.push_back(std::move(s));
    }
    for (std::uint32_t at = 0; at + 1 < part.size();) {
      const std::uint32_t count =
          std::min<std::uint32_t>(rows, static_cast<std::uint32_t>(part.size()) - at);
      std::vector<StepItem> items;
      for (Sequence& s : sequences) items.push_back({&s, part.subspan(at, count), Logits::all});
      TRY(const std::span<float> logits, stepper.run(items));
      const std::size_t positions = std::min<std::size_t>(count, part.size() - 1 - at);
      read.resize(positions * (ways + 1));
      std::vector<double> kl(positions * ways);
      r.pool().run([&](ThreadPool::Worker worker) {
        for (std::size_t i = worker.index; i < positions; i += worker.count)
          for (std::size_t w = 0; w <= ways; ++w) {
            Row& row = read[i * (ways + 1) + w];
            row = read_row(r.vector(), logits.subspan((w * count + i) * vocabulary, vocabulary));
            if (w > 0) kl[i * ways + w - 1] = divergence(read[i * (ways + 1)], row);
          }
      });
      for (std::size_t i = 0; i < positions; ++i) {
        if (at + i < question.skip) continue;
        const TokenId next = part[at + i + 1];
        const Row& exact = read[i * (ways + 1)];
        nll_reference += exact.log_sum - exact.logits[next];
        for (std::size_t w = 0; w < ways; ++w) {
          const Row& row = read[i * (ways + 1) + w + 1];
          tallies[w].kl.push_back(kl[i * ways + w]);
          tallies[w].nll += row.log_sum - row.logits[next];
          tallies[w].same += row.top == exact.top;
        }
      }
      at += count;
      if (question.progress) question.progress(first + at);
    }
  }

  std::vector<Quality> out;
  for (Tally& t : tallies) {
    const auto n = static_cast<double>(std::max<std::size_t>(t.kl.size(), 1));
    Quality q{.same_top = static_cast<double>(t.same) / n,
              .perplexity = std::exp(t.nll / n),
              .perplexity_reference = std::exp(nll_reference / n),
              .positions = t.kl.size()};
    for (const double kl : t.kl) q.kl_mean += kl / n;
    if (!t.kl.empty()) {
      const auto at = t.kl.begin() + static_cast<std::ptrdiff_t>(t.kl.size() * 99 / 100);
      std::ranges::nth_element(t.kl, at);
      q.kl_99 = *at;
    }
    out.push_back(q);
  }
  return out;
}

}  // namespace quire
