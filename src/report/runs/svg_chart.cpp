#include "report/runs/run_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <string_view>

namespace trireme::report {
namespace {

// All lengths in points.
constexpr double kWidth = 900, kLeft = 70, kRight = 20, kPlotHeight = 190;
constexpr double kTitleHeight = 34, kAxisHeight = 26, kLegendLine = 20, kCharacter = 7.2;
constexpr double kPlotWidth = kWidth - kLeft - kRight;

struct Color {
  const char* light;
  const char* dark;
};
/// Told apart by people with colour blindness; dark and bright variants of equal hue.
/// Source: Okabe & Ito, "Color Universal Design" (2008), without yellow.
constexpr Color kColors[] = {{"#0072b2", "#56b4e9"}, {"#d55e00", "#ff8c42"}, {"#009e73", "#2fd6a3"},
                             {"#aa4499", "#e08fd0"}, {"#8a6d00", "#e6c229"}, {"#555555", "#bbbbbb"},
                             {"#332288", "#8f8fff"}, {"#882255", "#ff7fa5"}};
constexpr std::size_t kColorCount = std::size(kColors);

constexpr const char* kStyle = R"(text { font: 12px sans-serif; fill: #1f2328 }
.title { font-weight: bold }
.paper { fill: #ffffff }
.grid { stroke: #d8dee4; stroke-width: 1; fill: none }
.frame { stroke: #57606a; stroke-width: 1; fill: none }
.line { stroke-width: 1.6; fill: none; stroke-linejoin: round }
)";
constexpr const char* kDarkStyle = R"(text { fill: #e6edf3 }
.paper { fill: #0d1117 }
.grid { stroke: #30363d }
.frame { stroke: #8b949e }
)";

std::string style() {
  std::string light = kStyle, dark = kDarkStyle;
  for (std::size_t i = 0; i < kColorCount; ++i) {
    light += fmt::format(".c{0} {{ stroke: {1} }} .d{0} {{ fill: {1} }}\n", i, kColors[i].light);
    dark += fmt::format(".c{0} {{ stroke: {1} }} .d{0} {{ fill: {1} }}\n", i, kColors[i].dark);
  }
  return fmt::format("<style>\n{}@media (prefers-color-scheme: dark) {{\n{}}}\n</style>\n", light,
                     dark);
}

/// `text` for XML: escaped, bytes that are not printable ASCII as "?".
std::string escape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else
      result += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
  }
  return result;
}

std::string text_at(double x, double y, const char* attributes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     escape(text));
}

// ---------------------------------------------------------------------------- axes

/// An axis, which maps values to [0, 1]. Bounds are decimal logarithms on a logarithmic axis.
struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;

  bool shows(double value) const { return std::isfinite(value) && (!logarithmic || value > 0.0); }
  double scaled(double value) const { return logarithmic ? std::log10(value) : value; }
  double position(double value) const { return (scaled(value) - low) / (high - low); }
  std::vector<double> ticks(int count) const;
};

/// On a logarithmic axis powers of ten and, where they are few, 2 and 5 times them.
std::vector<double> Axis::ticks(int count) const {
  if (!logarithmic) return round_ticks(low, high, count);
  const double range = high - low;
  const int step = std::max(1, static_cast<int>(range / count));
  std::vector<double> ticks;
  for (int power = static_cast<int>(std::floor(low)); power <= high; power += step)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double at = power + std::log10(factor), tick = std::pow(10.0, at);
      if ((range < 2.5 || factor == 1.0) && at >= low && at <= high && shows(tick))
        ticks.push_back(tick);
    }
  if (ticks.size() >= 2) return ticks;
  return round_ticks(std::pow(10.0, low), std::pow(10.0, high), count);
}

/// The axis that shows all of `values`, with a margin of `margin` times their range on both sides.
Axis axis_of(const std::vector<double>& values, double margin, bool from_zero, bool logarithmic) {
  Axis axis{.logarithmic = logarithmic};
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!axis.shows(value)) continue;
    low = std::min(low, axis.scaled(value));
    high = std::max(high, axis.scaled(value));
  }
  if (low > high) return axis;
  if (from_zero && !logarithmic) low = std::min(low, 0.0);
  double pad = (high - low) * margin;
  // Less than rounding resolves is one value.
  const double resolved = logarithmic ? 1e-9 : 1e-12 * std::max(std::abs(low), std::abs(high));
  if (high - low <= resolved) pad = logarithmic ? 0.3 : std::max(std::abs(low) * 0.1, 1e-9);
  axis.low = from_zero && low == 0.0 && high > 0.0 ? 0.0 : low - pad;
  axis.high = high + pad;
  return axis;
}

// ---------------------------------------------------------------------------- curves

using Points = std::vector<std::pair<double, double>>;  // in points on the page

/// Of the points in each pixel column the first, lowest, highest and last, in their order.
Points thin(const Points& points) {
  Points kept;
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin + 1, lowest = begin, highest = begin;
    for (; end < points.size() && std::floor(points[end].first) == std::floor(points[begin].first);
         ++end) {
      if (points[end].second < points[lowest].second) lowest = end;
      if (points[end].second > points[highest].second) highest = end;
    }
    std::vector<std::size_t> chosen = {begin, lowest, highest, end - 1};
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (const std::size_t i : chosen) kept.push_back(points[i]);
    begin = end;
  }
  return kept;
}

std::string draw_line(const Points& points, std::size_t color) {
  if (points.size() == 1)
    return fmt::format("<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\"/>\n", color,
                       points[0].first, points[0].second);
  std::string path;
  for (const auto& [x, y] : thin(points))
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x, y);
  return fmt::format("<path class=\"line c{}\" d=\"{}\"/>\n", color, path);
}

std::string draw_series(const Series& series, const Axis& x_axis, const Axis& y_axis, double top) {
  std::string text;
  const std::size_t color = series.color % kColorCount;
  Points run;  // of a line without interruption
  const auto end_run = [&] {
    if (!run.empty()) text += draw_line(run, color);
    run.clear();
  };
  for (const auto& [x, y] : series.points) {
    if (!y_axis.shows(y)) {
      end_run();
      continue;
    }
    const double at_x = kLeft + kPlotWidth * x_axis.position(x);
    const double at_y = top + kPlotHeight * (1 - y_axis.position(y));
    if (series.dots)
      text += fmt::format("<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n", color,
                          at_x, at_y);
    else
      run.emplace_back(at_x, at_y);
  }
  end_run();
  return text;
}

std::string draw_panel(const Panel& panel, const Axis& x_axis, double top) {
  std::vector<double> values;
  for (const Series& series : panel.series)
    for (const auto& [x, y] : series.points) values.push_back(y);
  const Axis y_axis = axis_of(values, 0.05, panel.from_zero, panel.logarithmic);
  std::string text = text_at(kLeft, top - 10, "class=\"title\"", panel.title);
  for (const double tick : y_axis.ticks(5)) {
    const double y = top + kPlotHeight * (1 - y_axis.position(tick));
    text += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f} H{:.1f}\"/>\n", kLeft, y,
                        kWidth - kRight);
    text += text_at(kLeft - 6, y + 4, "text-anchor=\"end\"", tick_label(tick));
  }
  for (const double tick : x_axis.ticks(8)) {
    const double x = kLeft + kPlotWidth * x_axis.position(tick);
    text += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f} V{:.1f}\"/>\n", x, top,
                        top + kPlotHeight);
    text += text_at(x, top + kPlotHeight + 16, "text-anchor=\"middle\"", tick_label(tick));
  }
  for (const Series& series : panel.series) text += draw_series(series, x_axis, y_axis, top);
  return text + fmt::format(
                    "<rect class=\"frame\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" "
                    "height=\"{}\"/>\n",
                    kLeft, top, kPlotWidth, kPlotHeight);
}

/// The legend from `y` on, in as many lines as it needs; `y` becomes its end.
std::string draw_legend(const std::vector<std::string>& names, double& y) {
  std::string text;
  double x = kLeft;
  y += kLegendLine;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double width = 40 + kCharacter * static_cast<double>(names[i].size());
    if (x > kLeft && x + width > kWidth - kRight) {
      x = kLeft;
      y += kLegendLine;
    }
    text += fmt::format("<path class=\"line c{}\" d=\"M{:.1f} {:.1f} h18\"/>\n", i % kColorCount, x,
                        y - 4);
    text += text_at(x + 24, y, "", names[i]);
    x += width;
  }
  return text;
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  const double wanted = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(wanted)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= wanted) step = factor * power;
  const double first = std::ceil(low / step);
  std::vector<double> ticks;
  for (int i = 0; (first + i) * step <= high && i <= 2 * count; ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

std::string tick_label(double value) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [unit, name] : kUnits)
    if (std::abs(value) >= (unit == 1e3 ? 1e4 : unit))
      return fmt::format("{:.6g}{}", value / unit, name);
  return fmt::format("{:.6g}", value);
}

std::string to_svg(const Chart& chart) {
  std::vector<double> all_x;
  for (const Panel& panel : chart.panels)
    for (const Series& series : panel.series)
      for (const auto& [x, y] : series.points) all_x.push_back(x);
  const Axis x_axis = axis_of(all_x, 0.0, /*from_zero=*/false, /*logarithmic=*/false);
  double y = 0;
  std::string text = draw_legend(chart.names, y);
  for (const Panel& panel : chart.panels) {
    y += kTitleHeight;
    text += draw_panel(panel, x_axis, y);
    y += kPlotHeight + kAxisHeight;
  }
  text += text_at(kLeft + kPlotWidth / 2, y + 8, "text-anchor=\"middle\"", chart.x_label);
  const double height = y + 20;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0} {1:.0f}\">\n{2}<rect class=\"paper\" width=\"{0}\" "
      "height=\"{1:.0f}\"/>\n{3}</svg>\n",
      kWidth, height, style(), text);
}

}  // namespace trireme::report
