#include "kv/arena.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/planted.h"
#include "kv/slab_shape.h"

#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_ASAN 1
#endif
#endif
#ifdef QUIRE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace quire {
namespace {
std::uint32_t to_index(SlabId s) { return static_cast<std::uint32_t>(s); }
}  // namespace

Arena::Arena(std::unique_ptr<Memory> memory, const ArenaOptions& options)
    : memory_(std::move(memory)),
      base_(memory_->base()),
      page_bytes_(memory_->page_bytes()),
      units_per_page_log2_(static_cast<std::uint32_t>(std::countr_zero(page_bytes_ / kArenaUnit))),
      page_count_(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(memory_->reserved_bytes() / page_bytes_,
                                  (std::uint64_t{1} << 32) >> units_per_page_log2_))),
      words_per_page_(std::max(1u, (1u << units_per_page_log2_) / 64)),
      poison_(options.poison),
      budget_bytes_(options.budget_bytes),
      slabs_(page_count_),
      slab_of_page_(page_count_),
      prepared_(page_count_),
      free_bits_(std::size_t{page_count_} * words_per_page_),
      tags_(std::size_t{page_count_} << units_per_page_log2_, LazyPages::huge) {}

Arena::~Arena() {
  trim();
  CHECK(committed_bytes_ == 0);  // every extent came home
}

std::optional<SizeClass> Arena::find_class(std::size_t bytes) const {
  const std::size_t rounded = (bytes + kArenaUnit - 1) / kArenaUnit * kArenaUnit;
  for (std::size_t i = 0; i < classes_.size(); ++i)
    if (classes_[i].extent_bytes == rounded) return static_cast<SizeClass>(i);
  return std::nullopt;
}

SizeClass Arena::size_class(std::size_t bytes) {
  if (const std::optional<SizeClass> c = find_class(bytes)) {
    of(*c).payload_bytes = std::min(of(*c).payload_bytes, bytes);
    return *c;
  }
  classes_.push_back(make_class(bytes));
  return static_cast<SizeClass>(classes_.size() - 1);
}

bool Arena::recycle_class(SizeClass size_class, std::size_t bytes) {
  Class& c = of(size_class);
  if (c.in_use > 0) return false;
  if (c.heads[0] != kNone) return_slab(c.heads[0]);
  CHECK(c.slabs == 0);
  const std::uint64_t made = c.slabs_made;
  c = make_class(bytes);
  c.slabs_made = c.slabs_returned = made;
  return true;
}

Arena::Class Arena::make_class(std::size_t bytes) const {
  CHECK(bytes > 0 && bytes <= memory_->reserved_bytes());
  const std::size_t rounded = (bytes + kArenaUnit - 1) / kArenaUnit * kArenaUnit;
  Class c{};
  c.extent_bytes = rounded;
  c.payload_bytes = bytes;
  c.extent_units = static_cast<std::uint32_t>(rounded / kArenaUnit);
  c.slab_pages = static_cast<std::uint32_t>(slab_shape(rounded, budget_bytes_, page_bytes_).bytes /
                                            page_bytes_);
  c.capacity = static_cast<std::uint32_t>(c.slab_pages * page_bytes_ / rounded);
  if (planted(Bug::overlapping_extents)) ++c.capacity;
  std::fill(std::begin(c.heads), std::end(c.heads), kNone);
  c.first_slab = kNone;
  return c;
}

std::optional<ArenaOffset> Arena::allocate(SizeClass size_class, std::uint32_t tag, bool may_grow) {
  Class& c = of(size_class);
  std::uint32_t usable = c.occupied & ~(1u << kFull);
  if (usable == 0) {
    if (!may_grow || !make_slab(static_cast<std::uint32_t>(size_class))) return std::nullopt;
    usable = 1;
  }
  const std::uint32_t s = c.heads[std::bit_width(usable) - 1];  // the fullest that has room
  Slab& slab = slabs_[s];
  std::uint64_t* words = bitmap(s);
  std::uint32_t word = slab.first_free_word;
  while (words[word] == 0) ++word;
  slab.first_free_word = word;
  const std::uint32_t extent =
      word * 64 + static_cast<std::uint32_t>(std::countr_zero(words[word]));
  words[word] &= words[word] - 1;
  ++slab.in_use;
  ++c.in_use;
  --c.open_free;
  rebucket(s);
  tags_[(std::size_t{s} << units_per_page_log2_) + extent] = tag;
  const ArenaOffset offset = offset_of(s, slab, extent);
  if (poison_) unpoison(static_cast<std::size_t>(offset) * kArenaUnit, c.extent_bytes);
  return offset;
}

void Arena::free(ArenaOffset offset) {
  const std::uint32_t s = to_index(slab_of(offset));
  CHECK(s < page_count_);  // lies in a slab
  Slab& slab = slabs_[s];
  Class& c = classes_[slab.size_class];
  const std::uint32_t extent = extent_of(s, offset);
  CHECK(extent < slab.capacity && offset_of(s, slab, extent) == offset);
  std::uint64_t* words = bitmap(s);
  const std::uint64_t bit = 1ull << (extent % 64);
  CHECK((words[extent / 64] & bit) == 0);  // is allocated
  if (poison_) poison(static_cast<std::size_t>(offset) * kArenaUnit, c.extent_bytes);
  words[extent / 64] |= bit;
  slab.first_free_word = std::min(slab.first_free_word, extent / 64);
  --slab.in_use;
  --c.in_use;
  if (slab.bucket == kNone) {  // draining
    if (slab.in_use == 0) return_slab(s);
    return;
  }
  ++c.open_free;
  if (slab.in_use == 0 && (c.heads[0] != kNone || over_budget_bytes() > 0))
    return_slab(s);  // the class has its spare, or may not keep one
  else
    rebucket(s);
}

std::uint64_t Arena::available(SizeClass size_class) const {
  const Class& c = of(size_class);
  std::uint64_t bytes = budget_bytes_ > committed_bytes_ ? budget_bytes_ - committed_bytes_ : 0;
  for (const Class& other : classes_)
    if (&other != &c && other.heads[0] != kNone) bytes += other.slab_pages * page_bytes_;
  return c.open_free + bytes / (c.slab_pages * page_bytes_) * c.capacity;
}

void Arena::set_budget(std::uint64_t bytes) {
  budget_bytes_ = bytes;
  if (over_budget_bytes() > 0) trim();
}

void Arena::trim() {
  for (Class& c : classes_)
    if (c.heads[0] != kNone) return_slab(c.heads[0]);
  for (std::uint32_t page = first_free_page_; prepared_pages_ > 0; ++page) {
    if (prepared_[page] == 0) continue;
    memory_->forget(std::size_t{page} * page_bytes_, page_bytes_);
    prepared_[page] = 0;
    --prepared_pages_;
  }
}

bool Arena::prepare(std::uint64_t ahead_bytes) {
  const std::uint64_t room =
      budget_bytes_ > committed_bytes_ ? budget_bytes_ - committed_bytes_ : 0;
  std::uint64_t left = std::min(ahead_bytes, room) / page_bytes_;
  for (std::uint32_t page = first_free_page_; left > 0 && page < page_count_; ++page) {
    if (slab_of_page_[page] != 0) continue;
    --left;
    if (prepared_[page] != 0) continue;
    if (!memory_->prepare(std::size_t{page} * page_bytes_, page_bytes_)) return false;
    prepared_[page] = 1;
    ++prepared_pages_;
    return true;
  }
  return false;
}

SlabInfo Arena::slab(SlabId id) const {
  const Slab& s = slabs_[to_index(id)];
  return {static_cast<SizeClass>(s.size_class), s.page_count, s.capacity, s.in_use,
          s.bucket == kNone};
}

std::optional<SlabId> Arena::emptiest_slab(SizeClass c) const {
  const std::uint32_t usable = of(c).occupied & ~(1u << kFull);
  if (usable == 0) return std::nullopt;
  return static_cast<SlabId>(of(c).heads[std::countr_zero(usable)]);
}

void Arena::drain(SlabId id) {
  Slab& slab = slabs_[to_index(id)];
  if (slab.bucket == kNone) return;
  if (slab.in_use == 0) return return_slab(to_index(id));
  classes_[slab.size_class].open_free -= slab.capacity - slab.in_use;
  ++classes_[slab.size_class].draining_slabs;
  unlink(to_index(id));
  slab.bucket = kNone;
}

void Arena::stop_draining(SlabId id) {
  Slab& slab = slabs_[to_index(id)];
  if (slab.bucket != kNone) return;
  classes_[slab.size_class].open_free += slab.capacity - slab.in_use;
  --classes_[slab.size_class].draining_slabs;
  link(to_index(id), 0);
  rebucket(to_index(id));
}

ArenaStats Arena::stats(SizeClass size_class) const {
  const Class& c = of(size_class);
  const std::uint64_t slab = c.slab_pages * page_bytes_;
  ArenaStats s;
  s.committed_bytes = c.slabs * slab;
  s.in_use_bytes = c.in_use * c.extent_bytes;
  s.payload_bytes = c.in_use * c.payload_bytes;
  s.slack_bytes = c.slabs * (slab - c.capacity * c.extent_bytes);
  s.spare_bytes = c.heads[0] != kNone ? slab : 0;
  s.extents = c.slabs * c.capacity;
  s.extents_in_use = c.in_use;
  s.slabs = c.slabs;
  s.slabs_made = c.slabs_made;
  s.slabs_returned = c.slabs_returned;
  return s;
}

ArenaStats Arena::stats() const {
  ArenaStats sum;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    const ArenaStats s = stats(static_cast<SizeClass>(i));
    sum.committed_bytes += s.committed_bytes;
    sum.in_use_bytes += s.in_use_bytes;
    sum.payload_bytes += s.payload_bytes;
    sum.slack_bytes += s.slack_bytes;
    sum.spare_bytes += s.spare_bytes;
    sum.extents += s.extents;
    sum.extents_in_use += s.extents_in_use;
    sum.slabs += s.slabs;
    sum.slabs_made += s.slabs_made;
    sum.slabs_returned += s.slabs_returned;
  }
  return sum;
}

void Arena::link(std::uint32_t s, std::uint32_t bucket) {
  Slab& slab = slabs_[s];
  Class& c = classes_[slab.size_class];
  slab.bucket = bucket;
  slab.previous = kNone;
  slab.next = c.heads[bucket];
  if (slab.next != kNone) slabs_[slab.next].previous = s;
  c.heads[bucket] = s;
  c.occupied |= 1u << bucket;
}

void Arena::unlink(std::uint32_t s) {
  const Slab& slab = slabs_[s];
  Class& c = classes_[slab.size_class];
  if (slab.next != kNone) slabs_[slab.next].previous = slab.previous;
  if (slab.previous != kNone) slabs_[slab.previous].next = slab.next;
  if (c.heads[slab.bucket] == s) c.heads[slab.bucket] = slab.next;
  if (c.heads[slab.bucket] == kNone) c.occupied &= ~(1u << slab.bucket);
}

bool Arena::make_slab(std::uint32_t class_index) {
  Class& c = classes_[class_index];  // has no spare: it would have been used
  const std::uint64_t bytes = c.slab_pages * page_bytes_;
  for (Class& other : classes_) {
    if (committed_bytes_ + bytes <= budget_bytes_) break;
    if (committed_bytes_ + bytes > budget_bytes_ + spare_bytes()) return false;
    if (other.heads[0] != kNone) return_slab(other.heads[0]);
  }
  if (committed_bytes_ + bytes > budget_bytes_) return false;
  const std::optional<std::uint32_t> first = find_pages(c.slab_pages);
  if (!first) return false;
  const std::uint32_t s = *first;
  Status committed = memory_->commit(s * page_bytes_, bytes);
  if (!committed.ok() && spare_bytes() > 0) {  // the machine may have room once we give some back
    trim();
    committed = memory_->commit(s * page_bytes_, bytes);
  }
  if (!committed.ok()) {
    last_error_ = committed.error();
    return false;
  }
  mark_pages(s, c.slab_pages, true);
  committed_bytes_ += bytes;
  slabs_[s] = {.size_class = class_index,
               .page_count = c.slab_pages,
               .capacity = c.capacity,
               .in_use = 0,
               .bucket = 0,
               .first_free_word = 0,
               .next = kNone,
               .previous = kNone,
               .next_in_class = c.first_slab,
               .previous_in_class = kNone};
  if (c.first_slab != kNone) slabs_[c.first_slab].previous_in_class = s;
  c.first_slab = s;
  std::uint64_t* words = bitmap(s);
  for (std::uint32_t bit = 0; bit < c.capacity; bit += 64)
    words[bit / 64] = c.capacity - bit >= 64 ? ~0ull : (1ull << (c.capacity - bit)) - 1;
  link(s, 0);
  ++c.slabs;
  ++c.slabs_made;
  c.open_free += c.capacity;
  if (poison_) poison(s * page_bytes_, bytes);
  return true;
}

// Its extents are all free; it may be a spare, just emptied, or drained.
void Arena::return_slab(std::uint32_t s) {
  Slab& slab = slabs_[s];
  Class& c = classes_[slab.size_class];
  CHECK(slab.in_use == 0);
  if (slab.bucket != kNone) {
    unlink(s);
    c.open_free -= slab.capacity;
  } else {
    --c.draining_slabs;
  }
  if (slab.next_in_class != kNone)
    slabs_[slab.next_in_class].previous_in_class = slab.previous_in_class;
  if (slab.previous_in_class != kNone)
    slabs_[slab.previous_in_class].next_in_class = slab.next_in_class;
  else
    c.first_slab = slab.next_in_class;
  const std::size_t bytes = slab.page_count * page_bytes_;
  if (poison_) unpoison(s * page_bytes_, bytes);
  memory_->decommit(s * page_bytes_, bytes);
  mark_pages(s, slab.page_count, false);
  if (!planted(Bug::slab_bytes_lost)) committed_bytes_ -= bytes;
  --c.slabs;
  ++c.slabs_returned;
}

std::uint64_t Arena::spare_bytes() const {
  std::uint64_t bytes = 0;
  for (const Class& c : classes_)
    if (c.heads[0] != kNone) bytes += c.slab_pages * page_bytes_;
  return bytes;
}

// First fit. Addresses are plenty (several times the budget), so holes do not matter.
std::optional<std::uint32_t> Arena::find_pages(std::uint32_t count) {
  while (first_free_page_ < page_count_ && slab_of_page_[first_free_page_] != 0)
    first_free_page_ += slabs_[slab_of_page_[first_free_page_] - 1].page_count;
  for (std::uint32_t page = first_free_page_, run = 0; page < page_count_; ++page) {
    if (slab_of_page_[page] != 0) {
      page = slab_of_page_[page] - 1 + slabs_[slab_of_page_[page] - 1].page_count - 1;
      run = 0;
    } else if (++run == count) {
      return page + 1 - count;
    }
  }
  return std::nullopt;
}

void Arena::mark_pages(std::uint32_t first, std::uint32_t count, bool used) {
  for (std::uint32_t page = first; page < first + count; ++page) {
    slab_of_page_[page] = used ? first + 1 : 0;
    prepared_pages_ -= prepared_[page];
    prepared_[page] = 0;
  }
  if (!used) first_free_page_ = std::min(first_free_page_, first);
}

void Arena::poison(std::size_t offset, std::size_t bytes) {
  memory_->fill(offset, bytes, kPoison);
#ifdef QUIRE_ASAN
  if (memory_->on_host()) ASAN_POISON_MEMORY_REGION(base_ + offset, bytes);
#endif
}

void Arena::unpoison(std::size_t offset, std::size_t bytes) {
#ifdef QUIRE_ASAN
  if (memory_->on_host()) ASAN_UNPOISON_MEMORY_REGION(base_ + offset, bytes);
#endif
  CHECK(memory_->filled(offset, bytes, kPoison));  // nobody wrote there after it was freed
}

Status Arena::check() const {
  std::uint64_t committed = 0;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    const Class& c = classes_[i];
    std::uint64_t slabs = 0, in_use = 0, open_free = 0, spares = 0, draining = 0;
    for (std::uint32_t s = c.first_slab; s != kNone; s = slabs_[s].next_in_class) {
      const Slab& slab = slabs_[s];
      std::uint32_t free = 0;
      for (std::uint32_t word = 0; word * 64 < slab.capacity; ++word)
        free += static_cast<std::uint32_t>(std::popcount(bitmap(s)[word]));
      if (free + slab.in_use != slab.capacity || slab.size_class != i)
        return Error{Code::corrupt, fmt::format("slab {} of class {}: {} free + {} in use != {}", s,
                                                i, free, slab.in_use, slab.capacity)};
      ++slabs;
      in_use += slab.in_use;
      open_free += slab.bucket == kNone ? 0 : free;
      draining += slab.bucket == kNone;
      spares += slab.in_use == 0;
      committed += slab.page_count * page_bytes_;
    }
    if (slabs != c.slabs || in_use != c.in_use || open_free != c.open_free || spares > 1 ||
        draining != c.draining_slabs)
      return Error{
          Code::corrupt,
          fmt::format("class {} of {} bytes: counted {} slabs, {} in use, {} free, {} spare, {} "
                      "draining; booked {}, {}, {}, -, {}",
                      i, c.extent_bytes, slabs, in_use, open_free, spares, draining, c.slabs,
                      c.in_use, c.open_free, c.draining_slabs)};
  }
  if (committed != committed_bytes_)
    return Error{Code::corrupt,
                 fmt::format("slabs have {} bytes, booked {}", committed, committed_bytes_)};
  return {};
}

}  // namespace quire
