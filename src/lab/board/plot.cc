#include "lab/board/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace quire {
namespace {
constexpr double kWidth = 640, kHeight = 400, kLeft = 52, kRight = 26, kTop = 30, kBottom = 44;
constexpr double kLetter = 6, kLine = 13;  // of a name

struct Axis {
  double low, high, from, to;

  double at(double x) const { return from + (x - low) / (high - low) * (to - from); }
};

struct Box {
  double left, top, right, bottom;

  bool meets(const Box& o) const {
    return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
  }
};

std::string safe(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

// Names of the frontier where they touch neither each other nor its points.
std::string names(const std::vector<const PlotPoint*>& best, const std::vector<Box>& dots) {
  std::vector<Box> taken = dots;
  std::string out;
  for (std::size_t i = best.size(); i-- > 0;) {  // the best scores first
    const double x = (dots[i].left + dots[i].right) / 2, y = (dots[i].top + dots[i].bottom) / 2;
    const double width = kLetter * static_cast<double>(best[i]->name.size());
    for (const auto& [dx, dy] : {std::pair{-1.0, -7.0}, {1.0, -7.0}, {1.0, 15.0}, {-1.0, 15.0}}) {
      const double left = dx > 0 ? x + 7 : x - 7 - width;
      const Box box{left, y + dy - kLine + 3, left + width, y + dy + 3};
      if (box.left < kLeft || box.right > kWidth || box.top < 0 || box.bottom > kHeight - kBottom)
        continue;
      if (std::ranges::any_of(taken, [&](const Box& b) { return box.meets(b); })) continue;
      taken.push_back(box);
      out += fmt::format(
          "<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
          dx > 0 ? x + 7 : x - 7, y + dy, dx > 0 ? "start" : "end", safe(best[i]->name));
      break;
    }
  }
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

std::vector<double> plot_doublings(double low, double high) {
  double tick = std::pow(10.0, std::floor(std::log10(low)));
  while (tick * 2 <= low) tick *= 2;
  std::vector<double> ticks = {tick};
  while (ticks.back() < high) ticks.push_back(ticks.back() * 2);
  return ticks;
}

void mark_best(Plot& plot) {
  for (PlotPoint& p : plot.points)
    p.best = std::ranges::none_of(plot.points, [&](const PlotPoint& o) {
      return o.x <= p.x && o.y >= p.y && (o.x < p.x || o.y > p.y);
    });
}

std::string plot_svg(const Plot& plot) {
  double x_low = 1e300, x_high = 1e-9, y_low = 0, y_high = 1e-9;
  for (const PlotPoint& p : plot.points) {
    x_low = std::min(x_low, p.x);
    x_high = std::max(x_high, p.x);
    y_low = std::min(y_low, std::max(p.y, plot.y_least));
    y_high = std::max(y_high, p.y);
  }
  const std::vector<double> xs = plot_doublings(std::max(x_low, 1e-9), x_high);
  const std::vector<double> ys = plot_ticks(y_low, y_high, 8);
  const Axis across{std::log2(xs.front()), std::log2(xs.back()) + 1e-9, kLeft, kWidth - kRight};
  const Axis up{ys.front(), ys.back(), kHeight - kBottom, kTop};
  const auto x = [&](double v) { return across.at(std::log2(std::max(v, xs.front()))); };
  const auto y = [&](double v) { return up.at(std::max(v, ys.front())); };
  std::string out =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} against {}\">", kWidth,
                  kHeight, safe(plot.y), safe(plot.x));
  for (const double t : xs)
    out += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text "
        "x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>",
        x(t), kTop, kHeight - kBottom, kHeight - kBottom + 16, t);
  for (const double t : ys)
    out += fmt::format(
        "<line class=\"axis\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/><text x=\"{3}\" "
        "y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>",
        y(t), kLeft, kWidth - kRight, kLeft - 6, y(t) + 4, t);
  out += fmt::format(
      "<text class=\"says\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><text class=\"says\" "
      "x=\"{}\" y=\"16\">{}</text>",
      kWidth - kRight, kHeight - 8, safe(plot.x), 6, safe(plot.y));
  std::vector<const PlotPoint*> best;
  for (const PlotPoint& p : plot.points)
    if (p.best) best.push_back(&p);
  std::ranges::sort(
      best, [](const auto* a, const auto* b) { return a->x != b->x ? a->x < b->x : a->y < b->y; });
  out += "<polyline points=\"";
  std::vector<Box> dots;
  for (const PlotPoint* p : best) {
    out += fmt::format("{:.1f},{:.1f} ", x(p->x), y(p->y));
    dots.push_back({x(p->x) - 5, y(p->y) - 5, x(p->x) + 5, y(p->y) + 5});
  }
  out += "\"/>";
  // Those of the frontier last, so that nothing covers them.
  for (const bool on_it : {false, true})
    for (const PlotPoint& p : plot.points)
      if (p.best == on_it)
        out += fmt::format(
            "<a href=\"#{}\"><circle class=\"{}{}\" data-row=\"{}\" data-tip=\"{}\" cx=\"{:.1f}\" "
            "cy=\"{:.1f}\" r=\"{}\"/></a>",
            p.row, p.kind, p.best ? " best" : "", p.row,
            safe(fmt::format("{}: {:.0f} {}, {} {:.3g}", p.name, p.x, plot.x, plot.y, p.y)), x(p.x),
            y(p.y), p.best ? 5 : 3.5);
  return out + names(best, dots) + "</svg>";
}

}  // namespace quire
