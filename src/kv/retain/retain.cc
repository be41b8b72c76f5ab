#include "kv/retain/retain.h"

#include <algorithm>

#include "kv/retain/score.h"

namespace quire {

extern const RetainMethod kRetainStreaming, kRetainWindow, kRetainRandom, kRetainOracle,
    kRetainSnapKv, kRetainPyramidKv, kRetainTova, kRetainKnorm, kRetainKeyDiff, kRetainLagKv,
    kRetainCur, kRetainExpected, kRetainH2o, kRetainObserved, kRetainScissorhands, kRetainKvzip,
    kRetainKvzipUniform, kRetainKvCompose, kRetainFastGen, kRetainDuo;

namespace {
constexpr const RetainMethod* kMethods[] = {
    &kRetainStreaming, &kRetainWindow,   &kRetainSnapKv,       &kRetainPyramidKv,
    &kRetainExpected,  &kRetainKvzip,    &kRetainKvzipUniform, &kRetainKvCompose,
    &kRetainKeyDiff,   &kRetainKnorm,    &kRetainLagKv,        &kRetainCur,
    &kRetainH2o,       &kRetainObserved, &kRetainScissorhands, &kRetainTova,
    &kRetainFastGen,   &kRetainDuo,      &kRetainRandom,       &kRetainOracle};

Result<RetainMethod> refuse(std::string_view name, std::string_view why) {
  return Error{Code::invalid, "'" + std::string(name) + "': " + std::string(why)};
}

void copy_output_norms(const RetainMethod&, const RetainInput& in, std::span<float> weights) {
  CHECK(in.output_norms.size() == weights.size());
  std::copy(in.output_norms.begin(), in.output_norms.end(), weights.begin());
}

Result<RetainMethod> adaptive(RetainMethod m, std::string_view name) {
  if (m.rule != BudgetRule::uniform)
    return refuse(name,
                  "ada- replaces an equal share for every head; this method shares unequally "
                  "already");
  if (m.pages == RetainPages::same_slots)
    return refuse(name, "ada- moves budget between heads; this method decides for a layer at once");
  m.rule = BudgetRule::adaptive;
  m.pages = RetainPages::ragged;
  m.floor_share = 0.2;
  return m;
}

Result<RetainMethod> critical(RetainMethod m, std::string_view name) {
  constexpr Signal kAttention =
      Signal::window_mass | Signal::total_mass | Signal::peak_mass | Signal::query_moments;
  if (m.weigh != nullptr || m.pages == RetainPages::same_slots || !asks(m.needs, kAttention))
    return refuse(name,
                  "critical- multiplies a head's attention by the size of what it would read; "
                  "this method's scores are not that");
  m.weigh = copy_output_norms;
  m.needs = m.needs | Signal::output_norms;
  m.first_stage = 0.5;
  m.epsilon = 1e-4;
  m.by_value = false;
  return m;
}

struct Wrapper {
  std::string_view prefix;
  Result<RetainMethod> (*wrap)(RetainMethod, std::string_view name);
};
constexpr Wrapper kWrappers[] = {{"ada-", adaptive}, {"critical-", critical}};
}  // namespace

std::span<const RetainMethod* const> retain_methods() { return kMethods; }

Result<RetainMethod> find_retain_method(std::string_view name) {
  std::string known;
  for (const RetainMethod* m : kMethods) {
    if (m->name == name) return *m;
    known += ' ' + std::string(m->name);
  }
  for (const auto& [prefix, wrap] : kWrappers) {
    if (!name.starts_with(prefix)) continue;
    TRY(RetainMethod inner, find_retain_method(name.substr(prefix.size())));
    return wrap(inner, name);
  }
  return Error{Code::not_found, "no retention method '" + std::string(name) + "'; there are:" +
                                    known + ", and ada- or critical- before a name"};
}

}  // namespace quire
