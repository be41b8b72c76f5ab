#include "board/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace quire {
namespace {
constexpr double kWidth = 800, kHeight = 360, kLeft = 60, kRight = 20, kTop = 16, kBottom = 44;

struct Axis {
  double low, high, from, to;

  double at(double x) const { return from + (x - low) / (high - low) * (to - from); }
};

std::string safe(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}
}  // namespace

std::vector<double> plot_ticks(double low, double high, int count) {
  const double wanted = (high - low) / count;
  double step = std::pow(10.0, std::floor(std::log10(wanted)));
  for (double times : {5.0, 2.0, 1.0})
    if (wanted > step * times) {
      step *= times == 5.0 ? 10 : times == 2.0 ? 5 : 2;
      break;
    }
  std::vector<double> ticks;
  const auto first = static_cast<long>(std::floor(low / step));
  for (long i = first; (static_cast<double>(i) - 1) * step < high; ++i)
    ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string plot_svg(const Plot& plot) {
  double x_high = 0, y_low = 0, y_high = 0;
  for (const PlotPoint& p : plot.points) {
    x_high = std::max(x_high, p.x);
    y_low = std::min(y_low, p.y);
    y_high = std::max(y_high, p.y);
  }
  const std::vector<double> xs = plot_ticks(0, std::max(x_high, 1e-9), 8);
  const std::vector<double> ys = plot_ticks(y_low, std::max(y_high, 1e-9), 6);
  const Axis x{xs.front(), xs.back(), kLeft, kWidth - kRight};
  const Axis y{ys.front(), ys.back(), kHeight - kBottom, kTop};
  std::string out =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} against {}\">", kWidth,
                  kHeight, safe(plot.y), safe(plot.x));
  for (double t : xs)
    out += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text "
        "x=\"{0:.1f}\" "
        "y=\"{3}\" text-anchor=\"middle\">{4:g}</text>",
        x.at(t), kTop, kHeight - kBottom, kHeight - kBottom + 16, t);
  for (double t : ys)
    out += fmt::format(
        "<line class=\"axis\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/><text x=\"{3}\" "
        "y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>",
        y.at(t), kLeft, kWidth - kRight, kLeft - 6, y.at(t) + 4, t);
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kWidth - kRight,
                     kHeight - 6, safe(plot.x));
  std::vector<const PlotPoint*> best;
  for (const PlotPoint& p : plot.points)
    if (p.best) best.push_back(&p);
  std::sort(best.begin(), best.end(), [](const auto* a, const auto* b) { return a->x < b->x; });
  out += "<polyline points=\"";
  for (const PlotPoint* p : best) out += fmt::format("{:.1f},{:.1f} ", x.at(p->x), y.at(p->y));
  out += "\"/>";
  for (const PlotPoint& p : plot.points)
    out += fmt::format(
        "<circle{} cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}: {:.0f}, {:.3g}</title></circle>",
        p.best ? " class=\"best\"" : "", x.at(p.x), y.at(p.y), safe(p.name), p.x, p.y);
  for (const PlotPoint* p : best)
    out += fmt::format("<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x.at(p->x) + 6,
                       y.at(p->y) - 6, safe(p->name));
  return out + "</svg>";
}

}  // namespace quire
