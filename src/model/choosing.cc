#include "model/choosing.h"

#include <algorithm>
#include <atomic>

#include "format/basis.h"
#include "model/group_steps.h"

namespace quire {

namespace {

bool reads_all(const SparsePrefill& how) {
  return how.way == SparsePrefill::Way::antidiagonals && how.threshold >= 1;
}

}  // namespace

bool Choosing::prepare(const Geometry& geometry, std::uint32_t group,
                       std::span<const PageReads* const> reads, KvView& view) {
  geometry_ = &geometry;
  of_ = &geometry.groups[group];
  group_ = group;
  kv_heads_ = of_->kv_heads;
  dim_ = of_->key_dim;
  tokens_ = geometry.tokens_per_block;
  page_bytes_ = geometry.page_bytes(*of_);
  arena_ = view.arena;
  keys_ = encoded_part(*of_->format->keys, Side::keys, geometry.page_shape(*of_).rows(Side::keys));
  answers_ = false;
  entries_.clear();
  families_.clear();
  views_.assign(view.sequences, view.sequences + view.sequence_count);
  plain_ = views_;
  std::size_t lanes = 0, pages = 0;
  for (std::uint32_t s = 0; s < views_.size(); ++s) {
    if (reads[s] == nullptr) continue;
    const std::uint32_t own = views_[s].past / tokens_;
    const bool is_answer = reads[s]->bounds != nullptr;
    const std::uint32_t most = is_answer ? std::max(reads[s]->pages_max, 3u) : own;
    Entry e{s, own, reads[s], lanes, pages, most};
    // A sequence that may read all its pages is read like any other, with the same bits.
    if (is_answer ? own <= most : own == 0 || reads_all(geometry.prefill)) {
      count(e, std::uint64_t{own} * of_->lanes());
      continue;
    }
    lanes += of_->lanes();
    pages += std::size_t{kv_heads_} * most;
    const bool follows = !entries_.empty() && entries_.back().sequence + 1 == s &&
                         views_[s].blocks == views_[s - 1].blocks;
    if (follows)
      ++families_.back().count;
    else
      families_.push_back({static_cast<std::uint32_t>(entries_.size()), 1});
    entries_.push_back(e);
    answers_ |= is_answer;
  }
  if (entries_.empty()) return false;
  lanes_.assign(lanes, {nullptr, 0, 0});
  pages_.resize(pages);
  for (const Entry& e : entries_) {
    KvSequenceView& v = views_[e.sequence];
    v.lanes = &lanes_[e.lanes];
    v.ragged_until = e.own * tokens_;
    v.lane_slots_max = e.pages_max * tokens_;
    if (e.reads->bounds == nullptr) plain_[e.sequence] = v;  // prompts choose in every layer
    if (e.reads->chosen) e.reads->chosen->resize(of_->lanes());
  }
  view.sequences = views_.data();
  return true;
}

KvView Choosing::dense_view(KvView view) const {
  view.sequences = plain_.data();
  return view;
}

void Choosing::run(const ChoosingLayer& at, std::uint32_t task, SelectScratch& scratch) {
  const Family family = families_[task / kv_heads_];
  const std::uint32_t head = task % kv_heads_;
  std::uint32_t have = 0;  // pages whose keys are in scratch.keys
  const std::size_t page = std::size_t{dim_} * tokens_;
  for (std::uint32_t i = family.first; i < family.first + family.count; ++i) {
    const Entry& e = entries_[i];
    if (e.reads->bounds != nullptr) {
      choose_answer(at, e, head, scratch);
      continue;
    }
    scratch.keys.resize(std::max(scratch.keys.size(), (e.own + 1) * page));
    for (; have < e.own; ++have)
      read_page(at.index * kv_heads_ + head, views_[e.sequence].blocks[have],
                scratch.keys.data() + have * page);
    choose_block(at, e, head, scratch);
  }
}

void Choosing::read_page(std::uint32_t lane, ArenaOffset block, float* to) const {
  const std::byte* const page = arena_at(arena_, block) + lane * page_bytes_;
  if (of_->sealed())
    decode_page(keys_, page, 0, to);
  else
    select_.widen(of_->format->rows, page, dim_ * tokens_, to);
}

// The rows of the sequence's own block, which is not sealed. Other rows of that page are undefined.
void Choosing::read_own(const ChoosingLayer& at, const Entry& e, std::uint32_t head, float* to,
                        SelectScratch& scratch) const {
  const KvSequenceView& v = views_[e.sequence];
  const RowPlace& row = at.places[v.first_row];
  const LayerGroup& rows = geometry_->groups[geometry_->row_place(at.layer).group];
  const std::size_t lane = (row.passing ? 0 : std::size_t{at.row_index} * kv_heads_) + head;
  select_.widen(rows.format->rows, row.block + lane * at.row_page_bytes, dim_ * tokens_, to);
  const std::uint32_t held = v.past % tokens_ + v.row_count;
  for (std::uint32_t d = 0; d < dim_; ++d)
    std::fill(to + std::size_t{d} * tokens_ + held, to + std::size_t{d + 1} * tokens_, 0.0f);
  const Basis basis = of_->format->keys->basis(Side::keys);
  if (!of_->sealed() || basis == Basis::plain) return;
  scratch.row.resize(dim_);
  for (std::uint32_t t = 0; t < held; ++t) {
    for (std::uint32_t d = 0; d < dim_; ++d) scratch.row[d] = to[std::size_t{d} * tokens_ + t];
    to_basis(basis, dim_, scratch.row.data());
    for (std::uint32_t d = 0; d < dim_; ++d) to[std::size_t{d} * tokens_ + t] = scratch.row[d];
  }
}

// Queries in the basis of the keys, [count][dim]. In a plain basis they are not copied.
const float* Choosing::turned(const float* rows, std::size_t stride, std::uint32_t count,
                              SelectScratch& scratch) const {
  const Basis basis = of_->format->keys->basis(Side::keys);
  if (!of_->sealed() || basis == Basis::plain) return nullptr;
  scratch.turned.resize(std::size_t{count} * dim_);
  for (std::uint32_t i = 0; i < count; ++i) {
    float* const to = scratch.turned.data() + std::size_t{i} * dim_;
    std::copy_n(rows + i * stride, dim_, to);
    to_basis(basis, dim_, to);
  }
  return scratch.turned.data();
}

void Choosing::choose_answer(const ChoosingLayer& at, const Entry& e, std::uint32_t head,
                             SelectScratch& scratch) {
  if (dense(at.layer)) return count(e, e.own);
  const Attention& attn = config_.per_layer[at.layer].attn;
  const std::uint32_t lane = at.index * kv_heads_ + head, group = attn.group();
  PageBounds& bounds = *e.reads->bounds;
  scratch.keys.resize(std::max(scratch.keys.size(), std::size_t{dim_} * tokens_));
  for (std::uint32_t p = bounds.pages(lane); p < e.own; ++p) {
    read_page(lane, views_[e.sequence].blocks[p], scratch.keys.data());
    bounds.add(lane, scratch.keys.data(), tokens_);
  }
  const float* queries =
      at.queries +
      (std::size_t{views_[e.sequence].first_row} * attn.query_heads + std::size_t{head} * group) *
          dim_;
  if (const float* t = turned(queries, dim_, group, scratch)) queries = t;
  scratch.scores.resize(e.own);
  select_.bound_scores(bounds.of(lane), e.own, dim_, queries, group, scratch.scores.data());
  choose_pages(scratch.scores, e.pages_max, scratch.pages);
  take(at, e, head, scratch.pages);
}

void Choosing::choose_block(const ChoosingLayer& at, const Entry& e, std::uint32_t head,
                            SelectScratch& scratch) {
  const KvSequenceView& v = views_[e.sequence];
  const Attention& attn = config_.per_layer[at.layer].attn;
  const std::uint32_t group = attn.group();
  const std::size_t width = attn.queries();
  read_own(at, e, head, scratch.keys.data() + std::size_t{e.own} * dim_ * tokens_, scratch);
  const SelectKeys keys{scratch.keys.data(), e.own + 1, tokens_, dim_, v.past + v.row_count};
  const SparsePrefill& how = geometry_->prefill;
  const bool slashes = how.way == SparsePrefill::Way::vertical_slash;
  scratch.shares.assign(slashes ? 0 : e.own + 1, 0.0f);
  scratch.columns.assign(slashes ? keys.end : 0, 0.0f);
  scratch.diagonals.assign(slashes ? keys.end : 0, 0.0f);
  for (std::uint32_t g = 0; g < group; ++g) {
    const float* rows = at.queries + v.first_row * width + (std::size_t{head} * group + g) * dim_;
    SelectQueries queries{rows, width, v.past, v.row_count, attn.scale};
    if (const float* t = turned(rows, width, v.row_count, scratch)) {
      queries.rows = t;
      queries.stride = dim_;
    }
    if (slashes)
      add_slashes(select_, mass_, keys, queries, scratch, scratch.columns, scratch.diagonals);
    else
      add_antidiagonal_shares(select_, keys, queries, scratch, scratch.shares);
  }
  if (slashes)
    choose_slashes(scratch.columns, scratch.diagonals, how, e.own * tokens_, tokens_, scratch,
                   scratch.pages);
  else
    choose_blocks(scratch.shares, how.threshold, scratch, scratch.pages);
  take(at, e, head, scratch.pages);
}

void Choosing::take(const ChoosingLayer& at, const Entry& e, std::uint32_t head,
                    std::span<const std::uint32_t> chosen) {
  const std::uint32_t lane = at.index * kv_heads_ + head;
  ArenaOffset* const to = &pages_[e.pages + std::size_t{head} * e.pages_max];
  for (std::size_t i = 0; i < chosen.size(); ++i) to[i] = views_[e.sequence].blocks[chosen[i]];
  lanes_[e.lanes + lane] = {to, static_cast<std::uint32_t>(chosen.size()) * tokens_,
                            static_cast<std::uint32_t>(lane * page_bytes_)};
  if (e.reads->chosen) (*e.reads->chosen)[lane].assign(chosen.begin(), chosen.end());
  count(e, chosen.size());
}

void Choosing::count(const Entry& e, std::uint64_t read) const {
  if (e.reads->counts == nullptr) return;
  const std::uint64_t whole = std::max<std::uint64_t>(read, e.own);
  std::atomic_ref(e.reads->counts->read).fetch_add(read, std::memory_order_relaxed);
  std::atomic_ref(e.reads->counts->whole).fetch_add(whole, std::memory_order_relaxed);
}

}  // namespace quire
