// Plots as SVG, to stand in a page: lines over sizes that double, and pairs of bars. Colours are
// the page's, by CSS classes (series0, series1, ...), so that they follow light and dark. Pure.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace aquifer {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x above 0 and growing.
};

// A line across the plot at some x, with its name.
struct PlotMark {
  double x = 0;
  std::string name;
};

struct LinePlot {
  std::string id;  // Of the SVG element.
  std::string title;
  std::string x_label;
  std::string y_label;
  std::function<std::string(double)> x_text;
  std::function<std::string(double)> y_text;
  std::vector<PlotSeries> series;
  std::vector<PlotMark> marks{};
};
std::string SvgOf(const LinePlot& plot);

struct BarGroup {
  std::string name;
  std::vector<double> values;  // One for each of BarPlot::names.
};

struct BarPlot {
  std::string id;
  std::string title;
  std::string y_label;
  std::function<std::string(double)> y_text;
  std::vector<std::string> names;
  std::vector<BarGroup> groups;
};
std::string SvgOf(const BarPlot& plot);

// For text in HTML and SVG.
std::string Escaped(std::string_view text);

}  // namespace aquifer
