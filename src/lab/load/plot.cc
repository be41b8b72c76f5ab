#include "lab/load/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/markup.h"

namespace quire::load {
namespace {

constexpr double kPanelWidth = 440, kPanelHeight = 230, kLeft = 52, kTop = 34, kBottom = 36,
                 kRight = 14;

// 1, 2 or 5 times a power of ten, so that about five of them span `range`.
double round_step(double range) {
  const double raw = range / 5, power = std::pow(10, std::floor(std::log10(raw)));
  const double first = raw / power;
  return power * (first < 1.5 ? 1 : first < 3.5 ? 2 : first < 7.5 ? 5 : 10);
}

std::string tick_label(double v) {
  if (v == 0) return "0";
  return std::abs(v) >= 100 ? fmt::format("{:.0f}", v) : fmt::format("{:.3g}", v);
}

// One set of axes. Positions are in the values' own units; log10 where the axis says so.
class Panel {
 public:
  struct Range {
    double low, high;
    bool log = false;
  };
  Panel(double left, double top, std::string title, std::string x_unit, Range x, Range y)
      : left_(left), top_(top), x_(x), y_(y) {
    if (!(x_.high > x_.low)) x_.high = x_.low + 1;
    if (!(y_.high > y_.low)) y_.high = y_.low + 1;
    out_ = fmt::format("<g transform='translate({},{})'><text class='t' x='{}' y='18'>{}</text>",
                       left_, top_, kLeft, escaped(title));
    for (const double v : ticks(x_))
      out_ += fmt::format(
          "<line class='g' x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}'/><text x='{0:.1f}' "
          "y='{3}' text-anchor='middle'>{4}</text>",
          x_at(v), kTop, kPanelHeight - kBottom, kPanelHeight - kBottom + 15, tick_label(v));
    for (const double v : ticks(y_))
      out_ += fmt::format(
          "<line class='g' y1='{0:.1f}' y2='{0:.1f}' x1='{1}' x2='{2}'/><text y='{3:.1f}' "
          "x='{4}' text-anchor='end'>{5}</text>",
          y_at(v), kLeft, kPanelWidth - kRight, y_at(v) + 4, kLeft - 6, tick_label(v));
    out_ += fmt::format("<text x='{}' y='{}' text-anchor='end'>{}</text>", kPanelWidth - kRight,
                        kPanelHeight - 6, x_unit);
  }

  void line(const std::vector<std::pair<double, double>>& points) {
    out_ += "<polyline class='l' points='";
    for (const auto& [x, y] : points) out_ += fmt::format("{:.1f},{:.1f} ", x_at(x), y_at(y));
    out_ += "'/>";
  }
  void dot(double x, double y, const char* kind) {
    out_ +=
        fmt::format("<circle class='{}' cx='{:.1f}' cy='{:.1f}' r='2.5'/>", kind, x_at(x), y_at(y));
  }
  std::string done() { return out_ + "</g>\n"; }

 private:
  static double place(const Range& r, double v) {
    if (!r.log) return (v - r.low) / (r.high - r.low);
    return std::log(std::max(v, r.low) / r.low) / std::log(r.high / r.low);
  }
  double x_at(double v) const { return kLeft + place(x_, v) * (kPanelWidth - kRight - kLeft); }
  double y_at(double v) const {
    return kPanelHeight - kBottom - place(y_, v) * (kPanelHeight - kBottom - kTop);
  }
  static std::vector<double> ticks(const Range& r) {
    std::vector<double> at;
    if (r.log) {
      const bool few = r.high / r.low < 50;
      for (double p = std::pow(10, std::floor(std::log10(r.low))); p <= r.high; p *= 10)
        for (const double m : {1.0, 2.0, 5.0})
          if ((few || m == 1) && m * p >= r.low * 0.999 && m * p <= r.high * 1.001)
            at.push_back(m * p);
    } else {
      const double step = round_step(r.high - r.low);
      for (double v = std::ceil(r.low / step) * step; v <= r.high + step * 1e-9; v += step)
        at.push_back(std::abs(v) < step * 1e-9 ? 0 : v);
    }
    return at;
  }

  double left_, top_;
  Range x_, y_;
  std::string out_;
};

// The share of values at or below each, thinned to what a picture can show.
std::string shares(double left, double top, const std::string& title, std::vector<double> ms) {
  if (ms.empty()) ms.push_back(1);
  std::sort(ms.begin(), ms.end());
  const double low = std::max(ms.front(), 1e-3);
  Panel panel(left, top, title, "ms", {low, std::max(ms.back(), low * 1.5), true}, {0, 100});
  std::vector<std::pair<double, double>> points{{low, 0}};
  const std::size_t step = std::max<std::size_t>(ms.size() / 400, 1);
  for (std::size_t i = 0; i < ms.size(); i += step)
    points.emplace_back(ms[i], 100.0 * static_cast<double>(i + 1) / static_cast<double>(ms.size()));
  points.emplace_back(ms.back(), 100);
  panel.line(points);
  return panel.done();
}

std::string rate_over_time(double left, double top, const Measured& run) {
  constexpr std::size_t kBins = 60;
  double end = 1e-3;
  for (const Record& r : run.requests) end = std::max(end, r.end_s);
  const double width = end / kBins;
  std::vector<double> tokens(kBins, 0);
  const auto add = [&](double t, double n) {
    tokens[std::min(static_cast<std::size_t>(std::max(t, 0.0) / width), kBins - 1)] += n;
  };
  for (const Record& r : run.requests) {
    if (r.first_s < 0) continue;
    const double each =
        static_cast<double>(r.usage.output) / static_cast<double>(r.gaps_s.size() + 1);
    double t = r.first_s;
    add(t, each);
    for (const float gap : r.gaps_s) add(t += gap, each);
  }
  for (double& n : tokens) n /= width;
  Panel panel(left, top, "Output tokens per second", "seconds", {0, end},
              {0, *std::max_element(tokens.begin(), tokens.end()) * 1.05});
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < kBins; ++i)
    points.emplace_back((static_cast<double>(i) + 0.5) * width, tokens[i]);
  panel.line(points);
  return panel.done();
}

std::string ttft_over_time(double left, double top, const Measured& run) {
  double end = 1e-3, low = 1e300, high = 1e-3;
  for (const Record& r : run.requests) {
    end = std::max(end, r.sent_s);
    if (r.first_s < 0) continue;
    low = std::min(low, (r.first_s - r.sent_s) * 1e3);
    high = std::max(high, (r.first_s - r.sent_s) * 1e3);
  }
  low = std::clamp(low, 1e-3, high);
  Panel panel(left, top, "TTFT over time, ms (hollow: later turns)", "seconds", {0, end},
              {low * 0.9, std::max(high, low * 1.5) * 1.1, true});
  for (const Record& r : run.requests)
    if (r.first_s >= 0) panel.dot(r.sent_s, (r.first_s - r.sent_s) * 1e3, r.turn == 0 ? "d" : "h");
  return panel.done();
}

}  // namespace

std::string plot_svg(const Measured& run, const std::string& title) {
  std::vector<double> ttft, itl;
  for (const Record& r : run.requests) {
    if (r.first_s >= 0) ttft.push_back((r.first_s - r.sent_s) * 1e3);
    for (const float gap : r.gaps_s) itl.push_back(gap * 1e3);
  }
  constexpr double kMargin = 16, kHead = 44;
  const double width = 2 * kPanelWidth + 3 * kMargin, height = kHead + 2 * kPanelHeight + kMargin;
  const double second = 2 * kMargin + kPanelWidth;
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}'>\n"
      "<style>svg{{--ink:#1c1e26;--soft:#6b7080;--rule:#e4e6ec;--line:#3b5bdb;background:#fff}}"
      "@media (prefers-color-scheme:dark){{svg{{--ink:#e8e9ee;--soft:#9a9fb0;--rule:#2c2f3a;"
      "--line:#8da2fb;background:#14161c}}}}"
      "text{{font:11px ui-sans-serif,system-ui,sans-serif;fill:var(--soft)}}"
      "text.t{{font-size:13px;font-weight:600;fill:var(--ink)}}"
      "text.h1{{font-size:15px;font-weight:600;fill:var(--ink)}}.g{{stroke:var(--rule)}}"
      ".l{{fill:none;stroke:var(--line);stroke-width:1.8;stroke-linejoin:round}}"
      ".d{{fill:var(--line)}}.h{{fill:none;stroke:var(--line);stroke-width:1.3}}</style>\n"
      "<text class='h1' x='{2}' y='28'>{3}</text>\n",
      width, height, kMargin + 8, escaped(title));
  svg += shares(kMargin, kHead, "Time to first token: % of requests", std::move(ttft));
  svg += shares(second, kHead, "Inter-token latency: % of tokens", std::move(itl));
  svg += rate_over_time(kMargin, kHead + kPanelHeight, run);
  svg += ttft_over_time(second, kHead + kPanelHeight, run);
  return svg + "</svg>\n";
}

}  // namespace quire::load
