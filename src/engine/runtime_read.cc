// Reading prompts: in chunks, in the parts that choose what they read, and once more.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/retain.h"
#include "engine/runtime.h"
#include "engine/selecting.h"

namespace quire {

Status Runtime::check_parts(std::span<const StepItem> items) const {
  for (const StepItem& item : items) {
    const Geometry& g = cache_->geometry(item.sequence->root());
    const std::uint32_t first = item.sequence->length();
    if (g.sparse() && first < item.sequence->prompt_length() && first % g.tokens_per_block != 0)
      return Error{
          Code::invalid,
          fmt::format("a sparse prompt is read in whole blocks of {} tokens, not from {} on",
                      g.tokens_per_block, first)};
    if (item.retain && item.tokens.size() > item.retain->rows_max(first))
      return Error{
          Code::invalid,
          fmt::format("a prompt that is cut at {} tokens is read up to there", item.retain->cut())};
    // Rows of blocks that a step fills are scratch of the step, block by block.
    if (item.select && item.tokens.size() > 1 && !g.exact() &&
        first + item.tokens.size() > item.select->prompt_length())
      return Error{Code::invalid, "answers that select are read token by token in a lossy format"};
  }
  return {};
}

std::uint32_t Runtime::part_end(const StepItem& item, const Geometry& geometry, std::uint32_t first,
                                std::uint32_t end) const {
  const std::uint32_t per_block = geometry.tokens_per_block;
  const std::uint32_t prompt =
      item.select ? item.select->prompt_length() : item.sequence->prompt_length();
  if (item.select && first >= prompt) return first + 1;
  if (geometry.sparse() && first < prompt)
    return std::min({end, prompt, first / per_block * per_block + per_block});
  return item.select ? std::min(end, prompt) : end;
}

Status Runtime::compute_again(Sequence& s, std::span<const std::uint32_t> tokens,
                              std::uint32_t last_layer) {
  const Geometry& geometry = cache_->geometry(s.root());
  CHECK(!model_->device() && geometry.exact() && tokens.size() <= model_->options().rows_max);
  tokens_.clear();
  if (sequence_views_.size() < geometry.groups.size())
    sequence_views_.resize(geometry.groups.size());
  views_.resize(geometry.groups.size());
  for (const std::uint32_t t : tokens) tokens_.push_back(s.tokens()[t]);
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
    std::vector<KvSequenceView>& parts = sequence_views_[g];
    parts.clear();
    const KvSequenceView whole = cache_->view(s, g);
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
    views_[g] = {.arena = cache_->arena(),
                 .sequences = parts.data(),
                 .sequence_count = static_cast<std::uint32_t>(parts.size()),
                 .tokens_per_block = geometry.tokens_per_block,
                 .window = geometry.groups[g].window};
  }
  const Nanoseconds started = clock_.now();
  TRY_STATUS(model_->forward(geometry,
                             {.tokens = tokens_,
                              .positions = tokens,
                              .groups = views_,
                              .logit_rows = {},
                              .last_layer = last_layer},
                             nullptr));
  forward_time_ += clock_.now() - started;
  return {};
}

std::uint32_t Runtime::chunk_rows(const Sequence& s, std::uint32_t chunk) const {
  const std::uint32_t rows =
      std::min(chunk ? chunk : model_->options().rows_max, model_->options().rows_max);
  const Geometry& g = cache_->geometry(s.root());
  return g.sparse() ? std::max(rows / g.tokens_per_block, 1u) * g.tokens_per_block : rows;
}

Status Runtime::prefill(Sequence& s, std::uint32_t end, std::uint32_t chunk,
                        const std::function<bool(std::uint32_t)>& progress, Retaining* retain) {
  const std::uint32_t rows = chunk_rows(s, chunk);
  while (s.length() < end) {
    const std::uint32_t count =
        std::min({rows, end - s.length(), retain ? retain->rows_max(s.length()) : 0xffffffffu});
    const StepItem item{&s, s.tokens().subspan(s.length(), count), Logits::none, retain};
    const auto done = step({&item, 1});
    if (!done.ok()) return done.error();
    if (progress && !progress(s.length()))
      return Error{Code::cancelled, "stopped while reading the prompt"};
  }
  return {};
}

Result<std::span<float>> Runtime::read(Sequence& s, std::uint32_t chunk,
                                       const std::function<bool(std::uint32_t)>& progress,
                                       Retaining* retain) {
  const auto end = static_cast<std::uint32_t>(s.tokens().size());
  CHECK(s.length() < end);
  const std::uint32_t rows = chunk_rows(s, chunk);
  if (retain && retain->rows_max(s.length()) < end - s.length())
    TRY_STATUS(prefill(s, s.length() + retain->rows_max(s.length()), chunk, progress, retain));
  const std::uint32_t last_rows = (end - s.length() - 1) % rows + 1;
  TRY_STATUS(prefill(s, end - last_rows, chunk, progress, retain));
  const StepItem last{&s, s.tokens().last(last_rows), Logits::last, retain};
  return step({&last, 1});
}

}  // namespace quire
