// lab/replay/share_plot.h - hit rate against memory, as a page with one picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace quire {

struct ShareCurve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // blocks, share; in order of blocks
};

// `block_bytes` > 0 labels the axis in bytes, too.
std::string share_page(const std::string& title, const std::vector<ShareCurve>& curves,
                       double block_bytes);

}  // namespace quire
