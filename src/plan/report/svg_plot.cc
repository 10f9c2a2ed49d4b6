#include "plan/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace aquifer {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 320;
constexpr double kLeft = 78;
constexpr double kRight = 26;  // Half a label.
constexpr double kTop = 48;    // Title and legend.
constexpr double kBottom = 52;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr int kYTicks = 5;
constexpr int kMostXTicks = 8;

// From the smallest to the largest value that is drawn, with a round step.
struct Axis {
  double least = 0;
  double most = 1;
  double step = 0.2;

  double Y(double value) const {
    return kTop + kPlotHeight * (1 - (value - least) / (most - least));
  }
};

Axis AxisOver(double least, double most) {
  least = std::min(least, 0.0);
  if (!(most > least)) most = least + 1;
  const double rough = (most - least) / kYTicks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double round : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    step = round * power;
    if (step >= rough * 0.999) break;
  }
  return {.least = std::floor(least / step + 1e-9) * step,
          .most = std::ceil(most / step - 1e-9) * step,
          .step = step};
}

void Begin(const std::string& id, const std::string& title, std::string* out) {
  fmt::format_to(std::back_inserter(*out),
                 "<svg id=\"{}\" class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\" "
                 "aria-label=\"{}\">\n<text class=\"title\" x=\"{}\" y=\"18\">{}</text>\n",
                 Escaped(id), kWidth, kHeight, Escaped(title), kLeft, Escaped(title));
}

void AddLegend(const std::vector<std::string>& names, std::string* out) {
  double x = kLeft;
  for (size_t i = 0; i < names.size(); ++i) {
    fmt::format_to(std::back_inserter(*out),
                   "<rect class=\"fill{}\" x=\"{:.1f}\" y=\"28\" width=\"12\" height=\"8\"/>"
                   "<text class=\"small\" x=\"{:.1f}\" y=\"36\">{}</text>\n",
                   i, x, x + 16, Escaped(names[i]));
    x += 34 + 6.5 * static_cast<double>(names[i].size());
  }
}

void AddYAxis(const Axis& axis, const std::string& label,
              const std::function<std::string(double)>& text, std::string* out) {
  for (double value = axis.least; value <= axis.most + axis.step / 2; value += axis.step) {
    const double y = axis.Y(value);
    const double shown = std::abs(value) < axis.step / 1e6 ? 0 : value;
    fmt::format_to(std::back_inserter(*out),
                   "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
                   "<text class=\"small end\" x=\"{}\" y=\"{:.1f}\">{}</text>\n",
                   kLeft, kWidth - kRight, y, y, kLeft - 6, y + 4, Escaped(text(shown)));
  }
  fmt::format_to(std::back_inserter(*out),
                 "<text class=\"small middle\" transform=\"translate(14 {:.1f}) rotate(-90)\">{}"
                 "</text>\n",
                 kTop + kPlotHeight / 2, Escaped(label));
}

void AddXLabel(const std::string& label, std::string* out) {
  fmt::format_to(std::back_inserter(*out),
                 "<text class=\"small middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                 kLeft + kPlotWidth / 2, kHeight - 10, Escaped(label));
}

// Sizes, each doubling as wide as the next.
struct DoublingAxis {
  double least = 1;
  double most = 2;

  double X(double value) const {
    const double part = std::log2(value / least) / std::log2(most / least);
    return kLeft + kPlotWidth * std::clamp(part, 0.0, 1.0);
  }
};

void AddXAxis(const DoublingAxis& axis, const LinePlot& plot, std::string* out) {
  const double first = std::ceil(std::log2(axis.least) - 1e-9);
  const double last = std::floor(std::log2(axis.most) + 1e-9);
  const double step = std::max(1.0, std::ceil((last - first + 1) / kMostXTicks));
  for (double power = first; power <= last; power += step) {
    const double x = axis.X(std::exp2(power));
    fmt::format_to(std::back_inserter(*out),
                   "<line class=\"tick\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>"
                   "<text class=\"small middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                   x, x, kTop + kPlotHeight, kTop + kPlotHeight + 5, x, kTop + kPlotHeight + 19,
                   Escaped(plot.x_text(std::exp2(power))));
  }
  AddXLabel(plot.x_label, out);
}

void AddMarks(const DoublingAxis& axis, const std::vector<PlotMark>& marks, std::string* out) {
  double y = kTop + 12;
  for (const PlotMark& mark : marks) {
    if (mark.x < axis.least || mark.x > axis.most) continue;
    const double x = axis.X(mark.x);
    const bool left = x > kLeft + 0.6 * kPlotWidth;
    fmt::format_to(std::back_inserter(*out),
                   "<line class=\"mark\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>"
                   "<text class=\"small{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                   x, x, kTop, kTop + kPlotHeight, left ? " end" : "", left ? x - 5 : x + 5, y,
                   Escaped(mark.name));
    y += 14;
  }
}

void AddSeries(const DoublingAxis& x_axis, const Axis& y_axis, const LinePlot& plot, size_t index,
               std::string* out) {
  const PlotSeries& series = plot.series[index];
  fmt::format_to(std::back_inserter(*out), "<polyline class=\"line series{}\" points=\"", index);
  for (const auto& [x, y] : series.points) {
    fmt::format_to(std::back_inserter(*out), "{:.1f},{:.1f} ", x_axis.X(x), y_axis.Y(y));
  }
  *out += "\"/>\n";
  // Points say their numbers when pointed at.
  for (const auto& [x, y] : series.points) {
    fmt::format_to(std::back_inserter(*out),
                   "<circle class=\"dot fill{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}: "
                   "{} at {}</title></circle>\n",
                   index, x_axis.X(x), y_axis.Y(y), series.points.size() > 40 ? 1.5 : 3,
                   Escaped(series.name), Escaped(plot.y_text(y)), Escaped(plot.x_text(x)));
  }
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string SvgOf(const LinePlot& plot) {
  DoublingAxis x_axis{.least = std::numeric_limits<double>::max(), .most = 0};
  double least = 0;
  double most = 0;
  std::vector<std::string> names;
  for (const PlotSeries& series : plot.series) {
    names.push_back(series.name);
    for (const auto& [x, y] : series.points) {
      x_axis.least = std::min(x_axis.least, x);
      x_axis.most = std::max(x_axis.most, x);
      least = std::min(least, y);
      most = std::max(most, y);
    }
  }
  if (!(x_axis.most > x_axis.least)) {  // One point, or none: there must be some width.
    x_axis.least = x_axis.most > 0 ? x_axis.most / 2 : 1;
    x_axis.most = x_axis.least * 4;
  }
  const Axis y_axis = AxisOver(least, most);
  std::string out;
  Begin(plot.id, plot.title, &out);
  AddLegend(names, &out);
  AddYAxis(y_axis, plot.y_label, plot.y_text, &out);
  AddXAxis(x_axis, plot, &out);
  AddMarks(x_axis, plot.marks, &out);
  for (size_t i = 0; i < plot.series.size(); ++i) AddSeries(x_axis, y_axis, plot, i, &out);
  return out + "</svg>\n";
}

std::string SvgOf(const BarPlot& plot) {
  double least = 0;
  double most = 0;
  for (const BarGroup& group : plot.groups) {
    for (const double value : group.values) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  const Axis axis = AxisOver(least, most);
  std::string out;
  Begin(plot.id, plot.title, &out);
  AddLegend(plot.names, &out);
  AddYAxis(axis, plot.y_label, plot.y_text, &out);
  const double group_width =
      kPlotWidth / static_cast<double>(std::max<size_t>(plot.groups.size(), 1));
  const double bar_width =
      0.7 * group_width / static_cast<double>(std::max<size_t>(plot.names.size(), 1));
  for (size_t g = 0; g < plot.groups.size(); ++g) {
    const BarGroup& group = plot.groups[g];
    const double left = kLeft + group_width * (static_cast<double>(g) + 0.15);
    for (size_t i = 0; i < group.values.size(); ++i) {
      const double top = axis.Y(std::max(group.values[i], 0.0));
      const double bottom = axis.Y(std::min(group.values[i], 0.0));
      fmt::format_to(std::back_inserter(out),
                     "<rect class=\"bar fill{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
                     "height=\"{:.1f}\"><title>{}, {}: {}</title></rect>\n",
                     i, left + bar_width * static_cast<double>(i), top, bar_width,
                     std::max(bottom - top, 0.5), Escaped(group.name), Escaped(plot.names[i]),
                     Escaped(plot.y_text(group.values[i])));
    }
    fmt::format_to(std::back_inserter(out),
                   "<text class=\"small middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                   left + 0.35 * group_width, kTop + kPlotHeight + 19, Escaped(group.name));
  }
  return out + "</svg>\n";
}

}  // namespace aquifer
