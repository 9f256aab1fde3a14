// Line charts as SVG: a column of panels over one x axis, with axes, grid and legend. Readable on
// light and dark backgrounds: the colours follow the viewer's colour scheme.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace trireme::report {

/// A curve of a panel. A point whose y is not finite interrupts the line.
struct Series {
  std::size_t color = 0;                          ///< index of the curve's name in Chart::names
  std::vector<std::pair<double, double>> points;  ///< (x, y) by ascending x
  bool dots = false;                              ///< draws separate points instead of a line
};

struct Panel {
  std::string title;
  std::vector<Series> series;
  bool from_zero = false;    ///< the y axis begins at 0
  bool logarithmic = false;  ///< logarithmic y axis; values that are not positive are not drawn
};

struct Chart {
  std::vector<std::string> names;  ///< the legend, one entry for each color
  std::string x_label;
  std::vector<Panel> panels;
};

/// The chart as an SVG document of 900 points width. Lines have at most four points for each pixel
/// column: lowest and highest values are kept.
std::string to_svg(const Chart& chart);

/// Round values within [low, high] (1, 2 or 5 times a power of ten apart), about `count` of them.
/// Requires finite bounds, low < high.
std::vector<double> round_ticks(double low, double high, int count);

/// A tick as text: "0.0003", "15k", "1.5M", "300B".
std::string tick_label(double value);

}  // namespace trireme::report
