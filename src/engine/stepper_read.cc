// Reading prompts in chunks, and computing tokens once more.
#include <algorithm>

#include "base/check.h"
#include "engine/stepper.h"

namespace quire {

Status Stepper::compute_again(Sequence& s, std::span<const std::uint32_t> tokens,
                              std::uint32_t last_layer) {
  const Geometry& g = cache().geometry(s.root());
  CHECK(executor().traits().page_work && g.exact() && tokens.size() <= rows_max());
  Plan& to = plans_[2];
  to.clear(g.groups.size());
  for (const std::uint32_t t : tokens) {
    to.tokens.push_back(s.tokens()[t]);
    to.add_adapter(s, t);
  }
  for (std::uint32_t group = 0; group < g.groups.size(); ++group) {
    std::vector<KvSequenceView>& parts = to.sequences[group];
    const KvSequenceView whole = cache().view(s, group);
    for (std::size_t i = 0; i < tokens.size(); ++i) {  // runs of neighbours
      if (i > 0 && tokens[i] == tokens[i - 1] + 1) {
        ++parts.back().row_count;
        continue;
      }
      KvSequenceView part = whole;
      part.first_row = static_cast<std::uint32_t>(i);
      part.row_count = 1;
      part.past = tokens[i];
      parts.push_back(part);
    }
  }
  set_views(to, g);
  const Nanoseconds began = clock_.now();
  StepPlan plan{.geometry = &g,
                .tokens = to.tokens,
                .positions = tokens,
                .groups = to.views,
                .wanted = {},
                .last_layer = last_layer};
  to.set_adapters(plan);
  TRY(const StepTicket ticket, executor().submit(plan));
  TRY(const StepResult result, executor().complete(ticket));
  if (!result.broken.empty()) s.mark_faulted();
  forward_time_ += clock_.now() - began;
  return {};
}

std::uint32_t Stepper::chunk_rows(const Sequence& s, std::uint32_t chunk) const {
  const std::uint32_t rows = std::min(chunk ? chunk : rows_max(), rows_max());
  const Geometry& g = runtime_.cache().geometry(s.root());
  return g.sparse() ? std::max(rows / g.tokens_per_block, 1u) * g.tokens_per_block : rows;
}

Status Stepper::prefill(Sequence& s, std::uint32_t end, std::uint32_t chunk,
                        const std::function<bool(std::uint32_t)>& progress, Program* program) {
  const std::uint32_t rows = chunk_rows(s, chunk);
  while (s.length() < end) {
    const std::uint32_t count =
        std::min({rows, end - s.length(), program ? program->rows_max(s.length()) : 0xffffffffu});
    const StepItem item{&s, s.tokens().subspan(s.length(), count), Logits::none, program};
    const auto done = run({&item, 1});
    if (!done.ok()) return done.error();
    if (progress && !progress(s.length()))
      return Error{Code::cancelled, "stopped while reading the prompt"};
  }
  return {};
}

Result<std::span<float>> Stepper::read(Sequence& s, std::uint32_t chunk,
                                       const std::function<bool(std::uint32_t)>& progress,
                                       Program* program) {
  const auto end = static_cast<std::uint32_t>(s.tokens().size());
  CHECK(s.length() < end);
  const std::uint32_t rows = chunk_rows(s, chunk);
  for (;;) {
    const std::uint32_t left = end - s.length(),
                        most = program ? program->rows_max(s.length()) : 0xffffffffu;
    if (left <= std::min(rows, most)) break;
    // The last chunk is a whole one, and what does not fill chunks comes first or before a cut.
    const std::uint32_t upto = most < left ? most : left - ((left - 1) % rows + 1);
    TRY_STATUS(prefill(s, s.length() + std::min(upto, left - 1), chunk, progress, program));
  }
  const StepItem last{&s, s.tokens().subspan(s.length()), Logits::last, program};
  return run({&last, 1});
}

}  // namespace quire
