#include "report/runs/run_history.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <regex>

namespace trireme::report {
namespace {

int count_parts(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

Chart chart_of(std::vector<std::pair<double, double>> points) {
  return {.names = {"a"},
          .x_label = "iterations",
          .panels = {{.title = "loss", .series = {{.points = std::move(points)}}}}};
}

/// Every opened element is closed, in order.
void expect_well_formed(const std::string& svg) {
  const std::regex tag("<(/?)([a-z]+)[^>]*?(/?)>");
  std::vector<std::string> open;
  for (auto at = std::sregex_iterator(svg.begin(), svg.end(), tag); at != std::sregex_iterator();
       ++at) {
    if ((*at)[1].length() > 0) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), (*at)[2]);
      open.pop_back();
    } else if ((*at)[3].length() == 0) {
      open.push_back((*at)[2]);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(RoundTicks, AreMultiplesOfARoundStep) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(0.2, 99, 5), (std::vector<double>{20, 40, 60, 80}));
  EXPECT_EQ(round_ticks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  for (const double high : {1e-7, 3.3e-4, 17.0, 123456.0, 3e11}) {
    const auto ticks = round_ticks(0, high, 5);
    EXPECT_GE(ticks.size(), 3u) << high;
    EXPECT_LE(ticks.size(), 7u) << high;
    EXPECT_LE(ticks.back(), high);
  }
}

TEST(TickLabel, HasAUnitWhereItIsLong) {
  EXPECT_EQ(tick_label(0), "0");
  EXPECT_EQ(tick_label(3e-4), "0.0003");
  EXPECT_EQ(tick_label(2000), "2000");
  EXPECT_EQ(tick_label(15000), "15k");
  EXPECT_EQ(tick_label(1.5e6), "1.5M");
  EXPECT_EQ(tick_label(3e11), "300B");
}

TEST(SvgChart, IsWellFormedWhateverTheData) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Points = std::vector<std::pair<double, double>>;
  for (const Points& points :
       {Points{}, Points{{1, 2}}, Points{{1, 2}, {1, 2}}, Points{{1, nan}, {2, nan}},
        Points{{1, 0}, {2, -1}}, Points{{1e18, 1}, {1e18 + 128, 1 + 1e-15}},
        Points{{0, 1e-300}, {1e18, 1e300}}})
    for (const bool logarithmic : {false, true}) {
      Chart chart = chart_of(points);
      chart.panels[0].logarithmic = logarithmic;
      expect_well_formed(to_svg(chart));
    }
  expect_well_formed(to_svg(Chart{}));
}

TEST(SvgChart, LinesAreInterruptedWhereAValueIsMissing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(count_parts(to_svg(chart_of({{1, 3}, {2, 2}, {3, 1}, {4, 1}})), "class=\"line c0\""), 2)
      << "the line, and its sample in the legend";
  EXPECT_EQ(count_parts(to_svg(chart_of({{1, 3}, {2, 2}, {3, nan}, {4, 1}, {5, 1}})),
                        "class=\"line c0\""),
            3);
}

TEST(SvgChart, NamesAreEscapedAndColoursFollowTheScheme) {
  Chart chart = chart_of({{1, 3}, {2, 2}});
  chart.names = {"a<b>&\n\xff"};
  const std::string svg = to_svg(chart);
  EXPECT_NE(svg.find(">a&lt;b&gt;&amp;?"
                     "?<"),
            std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(SvgChart, LongCurvesAreThinnedWithoutLosingExtremes) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 200000; ++i) points.emplace_back(i, i == 77777 ? 100.0 : 1.0 + i % 2);
  const std::string svg = to_svg(chart_of(points));
  EXPECT_LT(svg.size(), 60000u);
  // 190 points high below the legend and a title, with 5 % of the range above the highest value.
  EXPECT_NE(svg.find(" 62.6"), std::string::npos) << "the spike is not drawn";
}

}  // namespace
}  // namespace trireme::report
