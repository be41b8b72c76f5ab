// lab/board/stats.h - from answers to numbers that may be compared: scores, gates, intervals.
//
// All rows answer the same samples, so differences are taken sample by sample. A task whose gate
// fails says nothing about compression and is printed as n/a.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lab/board/task.h"

namespace quire {

// What a model said to one question.
struct Reply {
  std::vector<std::vector<float>> nll;  // [candidate][token]
  std::vector<TokenId> top;             // the best token at each place of the right candidate
  std::vector<float> kl;                // there, from the whole cache's distribution to this one
};

// One sample's score under its task's metric; high is good. `full` is what the whole cache said.
double score_replies(const Task& task, const Sample& sample, std::span<const Reply> replies,
                     std::span<const Reply> full);

struct Interval {
  double mean = 0, low = 0, high = 0;
};

// Mean of a[i] - b[i] and the middle 95 % of what 1,000 draws of the samples give. Same seed, same
// interval.
Interval paired_difference(std::span<const double> a, std::span<const double> b,
                           std::uint64_t seed);
Interval mean_interval(std::span<const double> a, std::uint64_t seed);

// Scores of the anchors of one task and level, by sample.
struct Anchors {
  std::span<const double> full, none, random_half, oracle_half;
};

struct Gate {
  bool open = false;
  std::string why;  // why not
};

// Open if the whole cache can do the task, no context cannot, dropping half at random hurts and
// knowing where the answer is helps. For likelihood and agreement: if context helps at all.
Gate gate(Metric metric, const Anchors& anchors, double chance);

// (x - none) / (full - none), unclipped.
double normalized(double x, double full, double none);

double mean_of(std::span<const double> x);

}  // namespace quire
