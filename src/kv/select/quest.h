// kv/select/quest.h - which pages one query should read: an upper bound of its products with them.
//
// For each page, the least and the greatest value of every channel of its keys (as they will be
// read: decoded, rotated) bound any product with a query. Pages with the highest bounds are read,
// the rest are skipped; nothing is freed. Quest, arXiv 2406.10774. In one KV head all query heads
// read the same pages: their bounds are maximized first.
//
//   PageBounds bounds(16, 64);
//   bounds.add(key);                                        // in order of tokens
//   bounds.score(queries, scores);                          // [pages], the group's query heads
//   choose_pages(scores, 1024 / 16, pages);                 // ascending
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

class PageBounds {
 public:
  PageBounds(std::uint32_t tokens_per_page, std::uint32_t dim);

  void add(std::span<const float> key);
  std::uint32_t tokens() const { return tokens_; }
  std::uint32_t pages() const { return (tokens_ + page_ - 1) / page_; }

  // scores[page] = the greatest product that any of the queries could have with a key of the page.
  void score(std::span<const float> queries, std::span<float> scores) const;

 private:
  std::uint32_t page_, dim_, tokens_ = 0;
  std::vector<float> low_, high_;  // [page][dim]
};

// The `count` best pages, at least three, always with the last (it holds the newest tokens). Ties
// go to the lower page.
void choose_pages(std::span<const float> scores, std::uint32_t count,
                  std::vector<std::uint32_t>& pages);

}  // namespace quire
