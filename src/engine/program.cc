#include "engine/program.h"

#include <algorithm>

namespace quire {

ProgramList ProgramList::fork_list() const {
  ProgramList copy;
  for (const auto& p : list_) copy.add(p->fork());
  return copy;
}

std::unique_ptr<Program> ProgramList::fork() const {
  return std::make_unique<ProgramList>(fork_list());
}

void ProgramList::open(SequenceOptions& options) const {
  for (const auto& p : list_) p->open(options);
}

std::optional<Attached> ProgramList::attach(Stepper& stepper, Sequence& s,
                                            const SequenceOptions& options) {
  for (const auto& p : list_)
    if (const std::optional<Attached> got = p->attach(stepper, s, options)) return got;
  return {};
}

void ProgramList::attached(Stepper& stepper, Sequence& s, const SequenceOptions& options) {
  for (const auto& p : list_) p->attached(stepper, s, options);
}

Program::Work ProgramList::work(Stepper& stepper, Sequence& s, double& rows) {
  Work all = Work::none;
  for (const auto& p : list_) {
    const Work one = p->work(stepper, s, rows);
    if (one >= Work::unfinished) return one;
    all = std::max(all, one);
  }
  return all;
}

std::string ProgramList::problem() const {
  for (const auto& p : list_)
    if (std::string why = p->problem(); !why.empty()) return why;
  return {};
}

FailureKind ProgramList::problem_kind() const {
  for (const auto& p : list_)
    if (!p->problem().empty()) return p->problem_kind();
  return FailureKind::model_file;
}

std::optional<std::uint32_t> ProgramList::take_stored(Stepper& stepper, Sequence& s,
                                                      const PromptRecords& records,
                                                      std::span<const TierPlace> places) {
  for (const auto& p : list_)
    if (const auto taken = p->take_stored(stepper, s, records, places)) return taken;
  return {};
}

ColdBlocks* ProgramList::cold() {
  for (const auto& p : list_)
    if (ColdBlocks* const cold = p->cold()) return cold;
  return nullptr;
}

void ProgramList::settle(Stepper& stepper, Sequence& s) {
  for (const auto& p : list_) p->settle(stepper, s);
}

bool ProgramList::due(const Sequence& s) const {
  return std::ranges::any_of(list_, [&](const auto& p) { return p->due(s); });
}

Status ProgramList::before_step(Stepper& stepper, Sequence& s) {
  for (const auto& p : list_) TRY_STATUS(p->before_step(stepper, s));
  return {};
}

std::uint32_t ProgramList::rows_max(std::uint32_t past) const {
  std::uint32_t least = 0xffffffffu;
  for (const auto& p : list_) least = std::min(least, p->rows_max(past));
  return least;
}

std::uint32_t ProgramList::part_end(std::uint32_t first, std::uint32_t end) const {
  for (const auto& p : list_) end = p->part_end(first, end);
  return end;
}

std::optional<PageReads> ProgramList::reads(std::uint32_t first) {
  for (const auto& p : list_)
    if (std::optional<PageReads> chosen = p->reads(first)) return chosen;
  return {};
}

std::uint32_t ProgramList::position_shift() const {
  std::uint32_t shift = 0;
  for (const auto& p : list_) shift += p->position_shift();
  return shift;
}

Tap* ProgramList::tap(std::uint32_t past, std::uint32_t rows) {
  for (const auto& p : list_)
    if (Tap* const tap = p->tap(past, rows)) return tap;
  return nullptr;
}

void ProgramList::after_step(Stepper& stepper, Sequence& s) {
  for (const auto& p : list_) p->after_step(stepper, s);
}

Yield ProgramList::yield(const Sequence& s) const {
  Yield all = Yield::either;
  for (const auto& p : list_) all = std::max(all, p->yield(s));
  return all;
}

void ProgramList::reset(Sequence& s) {
  for (const auto& p : list_) p->reset(s);
}

Status ProgramList::truncate(std::uint32_t length) {
  for (const auto& p : list_) TRY_STATUS(p->truncate(length));
  return {};
}

bool ProgramList::plans_ahead() const {
  return std::ranges::all_of(list_, [](const auto& p) { return p->plans_ahead(); });
}

// Only a program that is alone has named states: the state of several together has no name.
std::optional<std::string> ProgramList::snapshot_name(const Sequence& s) const {
  return list_.size() == 1 ? list_[0]->snapshot_name(s) : std::nullopt;
}

std::optional<std::string> ProgramList::wanted_snapshot() const {
  return list_.size() == 1 ? list_[0]->wanted_snapshot() : std::nullopt;
}

void ProgramList::report(ProgramReport& r) const {
  for (const auto& p : list_) p->report(r);
}

}  // namespace quire
