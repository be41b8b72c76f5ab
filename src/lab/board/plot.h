// lab/board/plot.h - a scatter plot as SVG, with its frontier joined and named. Used by lab/board/page.cc.
//
// The x axis is logarithmic. A point whose y is far below the others is drawn at the lower edge.
#pragma once

#include <string>
#include <vector>

namespace quire {

struct PlotPoint {
  double x, y;
  std::string name;
  std::string kind = {};  // class of its circle
  std::string row = {};   // id of what it stands for: a click leads there
  bool best = false;      // on the frontier: marked, named where there is room, and joined
};

struct Plot {
  std::string x, y;  // what the axes say
  std::vector<PlotPoint> points;
  double y_least = -0.25;  // points below are drawn at the edge
};

// Marks the points of the frontier: no other point has at most their x and at least their y.
void mark_best(Plot& plot);
std::string plot_svg(const Plot& plot);

// Round steps that cover [low, high] in about `count` parts.
std::vector<double> plot_ticks(double low, double high, int count);
// Powers of two times a round number that cover [low, high], low above 0.
std::vector<double> plot_doublings(double low, double high);

}  // namespace quire
