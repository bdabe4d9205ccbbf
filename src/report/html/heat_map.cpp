/// A map is a table, so a screen reader walks it by layer and expert. Cells are without numbers until somebody asks for
/// them, but the numbers are in the page once, and no script is needed to show them.

#include "report/html/heat_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/html/html_text.hpp"

namespace glu_ckpt {
namespace {

/// Classes of the style sheet, from small to large.
constexpr std::array<std::string_view, 16> kLevels = {"a", "b", "c", "d", "e", "f",  "g2", "h",
                                                      "i", "j", "k", "l", "m", "n2", "o",  "p"};

/// The values that the colours stand for.
struct HeatScale {
  double least = 0;
  double most = 0;
  bool logarithmic = false;

  std::size_t level(double value) const {
    if (most <= least) return kLevels.size() / 2;
    const double share =
        logarithmic ? std::log(value / least) / std::log(most / least) : (value - least) / (most - least);
    return static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(kLevels.size() - 1)));
  }
};

HeatScale scale_of(const HeatFigure& figure) {
  HeatScale scale{.logarithmic = figure.is_difference};
  bool any = false;
  for (const HeatRow& row : figure.rows)
    for (const double value : row.values) {
      if (!std::isfinite(value) || (figure.is_difference && value <= 0)) continue;
      scale.least = any ? std::min(scale.least, value) : value;
      scale.most = any ? std::max(scale.most, value) : value;
      any = true;
    }
  return scale;
}

std::string_view cell_class(const HeatFigure& figure, const HeatScale& scale, double value) {
  if (std::isnan(value)) return "x";
  if (std::isinf(value)) return kLevels.back();
  if (figure.is_difference && value == 0) return "z";
  return kLevels[scale.level(value)];
}

/// Every so many experts have their number above the map.
std::size_t heading_step(std::size_t experts, int cell_width) {
  constexpr int kHeadingWidth = 28;
  std::size_t step = 1;
  for (const std::size_t wanted : {std::size_t{1}, std::size_t{2}, std::size_t{4}, std::size_t{8}, std::size_t{16}}) {
    step = wanted;
    if (static_cast<int>(wanted) * cell_width >= kHeadingWidth) break;
  }
  return std::min(step, std::max<std::size_t>(1, experts));
}

std::size_t experts_of(const HeatFigure& figure) {
  std::size_t experts = 0;
  for (const HeatRow& row : figure.rows) experts = std::max(experts, row.values.size());
  return experts;
}

std::string cells(const HeatFigure& figure, const HeatScale& scale) {
  constexpr int kMapWidth = 1080, kLabelWidth = 64;
  const std::size_t experts = experts_of(figure);
  const int width = std::clamp(kMapWidth / static_cast<int>(std::max<std::size_t>(1, experts)), 3, 40);
  const int height = std::clamp(480 / static_cast<int>(std::max<std::size_t>(1, figure.rows.size())), 9, 26);
  const std::size_t step = heading_step(experts, width);
  std::string text = fmt::format(
      "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table class=\"cells\" "
      "style=\"width:{}px\"><caption>{}</caption>\n<thead><tr><th scope=\"col\" class=\"n\" "
      "style=\"width:{}px\">layer</th>",
      html(figure.title + " by layer and expert"), kLabelWidth + width * static_cast<int>(experts),
      html(figure.title + ": rows are layers, columns are experts"), kLabelWidth);
  for (std::size_t e = 0; e < experts; ++e)
    text += fmt::format("<th scope=\"col\"{}>{}</th>", e % step == 0 ? " class=\"n\"" : "", e);
  text += "</tr></thead>\n<tbody>\n";
  for (const HeatRow& row : figure.rows) {
    text += fmt::format("<tr style=\"height:{}px\"><th scope=\"row\">{}</th>", height, html(row.layer));
    for (const double value : row.values)
      text += fmt::format("<td class={}>{}", cell_class(figure, scale, value), heat_number(value));
    text += "\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string legend(const HeatFigure& figure, const HeatScale& scale) {
  std::string text = "<p class=\"legend\">";
  if (figure.is_difference) text += "<span class=\"scale\"><i class=\"z\"></i></span> equal";
  if (scale.most > 0) {
    text += fmt::format("<span>{}</span><span class=\"scale\" aria-hidden=\"true\">", heat_number(scale.least));
    for (const std::string_view level : kLevels) text += fmt::format("<i class=\"{}\"></i>", level);
    text += fmt::format("</span><span>{}{}</span>", heat_number(scale.most), scale.logarithmic ? ", logarithmic" : "");
  }
  return text + "</p>\n";
}

/// The figure's extent in each layer, as a short table.
std::string by_layer(const HeatFigure& figure) {
  std::string rows;
  for (const HeatRow& row : figure.rows) {
    std::vector<double> sorted;
    for (const double value : row.values)
      if (!std::isnan(value)) sorted.push_back(value);
    if (sorted.empty()) continue;
    const auto largest = std::ranges::find(row.values, *std::ranges::max_element(sorted));
    std::ranges::sort(sorted);
    rows += table_row(html(row.layer), {heat_number(sorted.front()), heat_number(sorted[sorted.size() / 2]),
                                        heat_number(sorted.back()), fmt::format("{}", largest - row.values.begin())});
  }
  return "<details><summary>" + html(figure.title) + ", in numbers by layer</summary>\n" +
         table(html(figure.title + " of the experts of each layer"),
               {"layer", "least", "median", "largest", "expert with the largest"}, rows) +
         "</details>\n";
}

}  // namespace

std::string heat_number(double value) {
  if (std::isnan(value)) return "none";
  return fmt::format("{:.4g}", value);
}

std::string heat_maps(const std::vector<HeatFigure>& figures) {
  std::string text = "<div class=\"heat\">\n<style>\n";
  for (std::size_t i = 0; i < figures.size(); ++i)
    text += fmt::format(".heat:has(#figure{}:checked) .map:not(#map{}) {{ display: none; }}\n", i, i);
  text += "</style>\n<form><fieldset><legend>What is shown</legend>\n";
  for (std::size_t i = 0; i < figures.size(); ++i)
    text += fmt::format("<input type=\"radio\" name=\"figure\" id=\"figure{}\"{}> <label for=\"figure{}\">{}</label>\n",
                        i, i == 0 ? " checked" : "", i, html(figures[i].title));
  text +=
      "<br><input type=\"checkbox\" id=\"numbers\"> <label for=\"numbers\">numbers in the cells</label>"
      "</fieldset></form>\n";
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const HeatScale scale = scale_of(figures[i]);
    text += fmt::format("<div class=\"map\" id=\"map{}\">\n<p>{}</p>\n", i, html(figures[i].about));
    text += legend(figures[i], scale) + cells(figures[i], scale) + by_layer(figures[i]) + "</div>\n";
  }
  return text + "</div>\n";
}

}  // namespace glu_ckpt
