#include "lab/replay/share_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/markup.h"

namespace quire {
namespace {

constexpr double kWide = 720, kHigh = 400, kEdge = 60;
constexpr const char* kColors[] = {"#2266cc", "#cc4422", "#229955", "#aa55cc",
                                   "#bb8800", "#118899", "#666666"};

std::string blocks_label(double blocks, double block_bytes) {
  if (block_bytes <= 0) return fmt::format("{:.0f}", blocks);
  return fmt::format("{:.0f} ({:.3g} GiB)", blocks, blocks * block_bytes / 0x1p30);
}

}  // namespace

std::string share_page(const std::string& title, const std::vector<ShareCurve>& curves,
                       double block_bytes) {
  double least = 1e300, most = 0, top = 0.01;
  for (const ShareCurve& c : curves)
    for (const auto& [blocks, share] : c.points) {
      least = std::min(least, std::max(blocks, 1.0));
      most = std::max(most, blocks);
      top = std::max(top, share);
    }
  if (most <= least) most = least * 2;
  top = std::ceil(top * 10) / 10;
  const auto x = [&](double blocks) {
    return kEdge +
           std::log(std::max(blocks, 1.0) / least) / std::log(most / least) * (kWide - 2 * kEdge);
  };
  const auto y = [&](double share) { return kHigh - kEdge - share / top * (kHigh - 2 * kEdge); };
  std::string svg;
  for (int i = 0; i <= 5; ++i) {
    const double share = top * i / 5;
    svg += fmt::format(
        "<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' class='g'/><text x='{}' y='{:.1f}' "
        "text-anchor='end'>{:.2f}</text>\n",
        kEdge, kWide - kEdge, y(share), y(share), kEdge - 6, y(share) + 4, share);
  }
  if (!curves.empty())
    for (const auto& [blocks, share] : curves.front().points)
      svg += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>\n", x(blocks),
                         kHigh - kEdge + 18, blocks_label(blocks, block_bytes));
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const char* const color = kColors[i % std::size(kColors)];
    svg += fmt::format("<polyline fill='none' stroke='{}' stroke-width='2' points='", color);
    for (const auto& [blocks, share] : curves[i].points)
      svg += fmt::format("{:.1f},{:.1f} ", x(blocks), y(share));
    svg += fmt::format("'/>\n<text x='{}' y='{}' fill='{}'>{}</text>\n", kEdge + 12,
                       kEdge + 16 * static_cast<double>(i), color, escaped(curves[i].name));
  }
  return fmt::format(
      "<!doctype html><meta charset='utf-8'><title>{0}</title>\n"
      "<style>body{{font:14px sans-serif;margin:2em}}text{{font-size:12px}}"
      ".g{{stroke:#8888;stroke-width:.5}}</style>\n"
      "<h1>{0}</h1><p>Share of prompt blocks served from memory, against blocks that fit.</p>\n"
      "<svg width='{1}' height='{2}' viewBox='0 0 {1} {2}' fill='currentColor'>\n{3}</svg>\n",
      escaped(title), kWide, kHigh, svg);
}

}  // namespace quire
