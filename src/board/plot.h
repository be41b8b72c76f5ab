// board/plot.h - a scatter plot as SVG, with the frontier joined. Used by board/report.cc.
#pragma once

#include <string>
#include <vector>

namespace quire {

struct PlotPoint {
  double x, y;
  std::string name;
  bool best = false;  // on the frontier: marked, named and joined
};

struct Plot {
  std::string x, y;  // what the axes say
  std::vector<PlotPoint> points;
};

std::string plot_svg(const Plot& plot);

// Round steps that cover [low, high] in about `count` parts.
std::vector<double> plot_ticks(double low, double high, int count);

}  // namespace quire
