/// A map is a table, so a screen reader walks it by layer and expert. Cells are without numbers until somebody asks for
/// them, but the numbers are in the page once, and no script is needed to show them.

#include "report/html/pictures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <system_error>

#include "core/readable.hpp"
#include "report/html/html_text.hpp"

namespace glu_ckpt {
namespace {

/// A larger map is laid out when somebody scrolls there; a smaller one at once, so that pictures of the page have it.
constexpr std::size_t kMostCells = 8000;

/// Classes of the style sheet, from small to large.
constexpr std::array<std::string_view, 16> kLevels = {"a", "b", "c", "d", "e", "f",  "g2", "h",
                                                      "i", "j", "k", "l", "m", "n2", "o",  "p"};

/// What a reader chooses how colours follow values: a word of ids and custom properties, the prefix of its classes, and
/// its name. The first is shown until another is chosen.
struct HeatColouring {
  std::string_view id;
  std::string_view prefix;
  std::string_view name;
};
constexpr std::array<HeatColouring, 3> kColourings = {
    {{"log", "", "logarithmic"}, {"linear", "q", "linear"}, {"each", "r", "linear in each layer"}}};

/// The values that the colours stand for.
struct HeatScale {
  double least = 0;
  double most = 0;

  void add(const HeatRow& row) {
    for (const double value : row.values) {
      if (!std::isfinite(value) || value <= 0) continue;
      least = most > 0 ? std::min(least, value) : value;
      most = std::max(most, value);
    }
  }

  std::string_view level(double value, bool logarithmic) const {
    if (most <= least) return kLevels[kLevels.size() / 2];
    const double share =
        logarithmic ? std::log(value / least) / std::log(most / least) : (value - least) / (most - least);
    return kLevels[static_cast<std::size_t>(
        std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(kLevels.size() - 1)))];
  }
};

HeatScale scale_of(const HeatFigure& figure) {
  HeatScale scale;
  for (const HeatRow& row : figure.rows) scale.add(row);
  return scale;
}

/// One class of each colouring.
std::string cell_classes(const HeatFigure& figure, const HeatScale& whole, const HeatScale& row, double value) {
  if (std::isnan(value)) return "x";
  if (figure.is_difference && value == 0) return "z";
  std::string classes;
  for (const HeatColouring& colouring : kColourings) {
    const HeatScale& scale = colouring.id == "each" ? row : whole;
    classes += fmt::format("{}{}{}", classes.empty() ? "\"" : " ", colouring.prefix,
                           std::isinf(value) ? kLevels.back() : scale.level(value, colouring.id == "log"));
  }
  return classes + "\"";
}

/// A property that is empty lets what follows it through; one that is `initial` makes the declaration invalid, so that
/// the colour of the next colouring is taken. Cells inherit it: to look for the checked button from each of them takes
/// longer than all the rest.
std::string colour_rules() {
  std::string text, others;
  for (const HeatColouring& colouring : kColourings) {
    std::string chosen;
    for (const HeatColouring& any : kColourings)
      chosen += fmt::format(" --is-{}: {};", any.id, any.id == colouring.id ? "" : "initial");
    text += colouring.prefix.empty() ? fmt::format(".heat, .heat .scale {{{} }}\n", chosen)
                                     : fmt::format(".heat:has(#{}:checked) {{{} }}\n", colouring.id, chosen);
  }
  for (const HeatColouring& colouring : kColourings)
    for (const std::string_view level : kLevels)
      text += fmt::format(".{0}{1} {{ --of-{2}: var(--is-{2}) var(--level-{1}); --on-{2}: var(--is-{2}) {3}; }}\n",
                          colouring.prefix, level, colouring.id, level < "h" ? "#fff" : "#000");
  return text +
         ".heat td, .heat i { background: var(--of-log, var(--of-linear, var(--of-each))); color: var(--on-log, "
         "var(--on-linear, var(--on-each))); }\n";
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
  constexpr int kWidestCell = 96;
  const std::size_t experts = experts_of(figure);
  const int width = std::clamp(kMapWidth / static_cast<int>(std::max<std::size_t>(1, experts)), 3, 40);
  const int height = std::clamp(480 / static_cast<int>(std::max<std::size_t>(1, figure.rows.size())), 9, 26);
  const std::size_t step = heading_step(experts, width);
  std::string text = fmt::format(
      "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table class=\"cells silent\" "
      "style=\"min-width:{}px;max-width:{}px\"><caption>{}</caption>\n<thead><tr><th scope=\"col\" class=\"n\" "
      "style=\"width:{}px\">layer</th>",
      html(figure.title + " by layer and expert"), kLabelWidth + width * static_cast<int>(experts),
      kLabelWidth + kWidestCell * static_cast<int>(experts),
      html(figure.title + ": rows are layers, columns are experts"), kLabelWidth);
  for (std::size_t e = 0; e < experts; ++e)
    text += fmt::format("<th scope=\"col\"{}>{}</th>", e % step == 0 ? " class=\"n\"" : "", e);
  text += "</tr></thead>\n<tbody>\n";
  for (const HeatRow& row : figure.rows) {
    // What is shown under the pointer is the style sheet's; a label that could end its text is left out there.
    const bool is_plain =
        std::ranges::all_of(row.layer, [](unsigned char c) { return std::isalnum(c) != 0 || c == '.'; });
    HeatScale own;
    own.add(row);
    const bool is_equal = figure.is_difference && std::ranges::all_of(row.values, [](double x) { return x == 0; });
    text += fmt::format("<tr{} style=\"height:{}px{}\"><th scope=\"row\">{}</th>", is_equal ? " class=\"same\"" : "",
                        height, is_plain ? fmt::format(";--layer:'layer {}, '", row.layer) : "", html(row.layer));
    std::size_t expert = 0;
    for (const double value : row.values)
      text += fmt::format("<td class={}><b{}>{}</b>", cell_classes(figure, scale, own, value),
                          2 * expert++ >= experts ? " class=r" : "", heat_number(value));
    text += "\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string legend(const HeatFigure& figure, const HeatScale& scale) {
  std::string text = "<p class=\"legend\">";
  if (scale.most > 0 && scale.most <= scale.least)
    return fmt::format(
        "{}<span class=\"scale\"><i class=\"z\"></i></span> equal <span class=\"scale\"><i class=\"{}\"></i>"
        "</span> {}</p>\n",
        text, scale.level(scale.most, false), heat_number(scale.most));
  if (figure.is_difference) text += "<span class=\"scale\"><i class=\"z\"></i></span> equal";
  if (scale.most > 0) {
    const auto end = [](double value, std::string_view of_each) {
      return fmt::format("<span class=\"whole\">{}</span><span class=\"own\">{} of its layer</span>",
                         heat_number(value), of_each);
    };
    text +=
        fmt::format("<span class=\"ramp\">{} <span class=\"scale\" aria-hidden=\"true\">", end(scale.least, "least"));
    for (const std::string_view level : kLevels) text += fmt::format("<i class=\"{}\"></i>", level);
    text += fmt::format("</span> {}</span>", end(scale.most, "largest"));
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
  if (rows.empty()) return {};
  return "<details><summary>" + html(figure.title) + ", in numbers by layer</summary>\n" +
         table(html(figure.title + " of the experts of each layer"),
               {"layer", "least", "median", "largest", "expert with the largest"}, rows) +
         "</details>\n";
}

/// Drawn twice, for wide and for narrow windows, so that text keeps its size; the style sheet shows one.
constexpr double kWidths[] = {900, 340};
constexpr double kBarHeight = 44;
constexpr double kLabelHeight = 18;
/// Narrower blocks are drawn as a pattern.
constexpr double kLeastBlockWidth = 1.5;
/// So many pairs of blocks are drawn once more, larger.
constexpr i64 kEnlargedPairs = 2;

struct Stripe {
  i64 first = 0;
  i64 rows = 0;
  bool gate = true;
};

std::string rectangle(double x, double y, double width, std::string_view kind) {
  return fmt::format("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\"/>", kind, x, y,
                     width, kBarHeight);
}

std::string label(double x, double y, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x, y, html(text));
}

/// Rows of one block: all of gate where the order has no blocks.
i64 block_rows_of(const ExpertBlock& block) {
  return block.glu.kind == Glu::Kind::Interleaved ? block.glu.block_rows : block.intermediate_size;
}

/// Blocks of K rows from left to right, `rows` rows in all over the whole width.
std::string bar(const std::string& id, double whole, double y, i64 rows, i64 block_rows) {
  const double width = whole * static_cast<double>(block_rows) / static_cast<double>(rows);
  if (width < kLeastBlockWidth)
    return fmt::format(
               "<pattern id=\"{}\" width=\"{:.4f}\" height=\"10\" patternUnits=\"userSpaceOnUse\"><rect class=\"up\" "
               "width=\"{:.4f}\" height=\"10\"/><rect class=\"gate\" width=\"{:.4f}\" height=\"10\"/></pattern>",
               id, 2 * width, 2 * width, width) +
           fmt::format("<rect fill=\"url(#{})\" x=\"0\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\"/>", id, y,
                       whole, kBarHeight);
  std::string text;
  for (i64 first = 0; first < rows; first += block_rows)
    text += rectangle(whole * static_cast<double>(first) / static_cast<double>(rows), y, width,
                      first / block_rows % 2 == 0 ? "gate" : "up");
  return text;
}

/// The first blocks, with the numbers of their rows.
std::string enlarged(double whole, double y, i64 rows, i64 block_rows) {
  const i64 blocks = std::min(2 * kEnlargedPairs, rows / block_rows);
  const double width = whole / static_cast<double>(blocks);
  std::string text = label(0, y + 14, fmt::format("rows 0 to {}, larger", blocks * block_rows - 1));
  y += kLabelHeight;
  for (i64 b = 0; b < blocks; ++b) {
    const double x = width * static_cast<double>(b);
    text += rectangle(x, y, width - 2, b % 2 == 0 ? "gate" : "up");
    const i64 first = b * block_rows, last = first + block_rows - 1;
    text += label(x + 4, y + kBarHeight + 15,
                  fmt::format("{} {}", b % 2 == 0 ? "gate" : "up",
                              first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last)));
  }
  return text;
}

std::string order_sentence(const ExpertBlock& block) {
  const i64 rows = block.intermediate_size;
  if (rows <= 0) return "its width differs by expert";
  switch (block.glu.kind) {
    case Glu::Kind::Split: return fmt::format("split: gate and up are two tensors of {} rows", rows);
    case Glu::Kind::Contiguous: return fmt::format("contiguous: all {} gate rows, then all {} up rows", rows, rows);
    case Glu::Kind::Interleaved:
      return fmt::format("interleaved:{}: {} times {} gate row{} and then {} up row{}", block.glu.block_rows,
                         rows / block.glu.block_rows, block.glu.block_rows, block.glu.block_rows == 1 ? "" : "s",
                         block.glu.block_rows, block.glu.block_rows == 1 ? "" : "s");
    case Glu::Kind::None: return fmt::format("no gate: {} rows", rows);
    case Glu::Kind::Unknown: break;
  }
  return fmt::format("unknown: {} gate rows and {} up rows, contiguous or interleaved; no file says which", rows, rows);
}

std::string halves(double whole, double y, i64 rows) {
  const double half = whole / 2;
  return rectangle(0, y, half - 6, "gate") + rectangle(half + 6, y, half - 6, "up") +
         label(0, y + kBarHeight + 15, fmt::format("gate, {} rows", rows)) +
         label(half + 6, y + kBarHeight + 15, fmt::format("up, {} rows", rows));
}

ByteCounts largest_first(const std::map<std::string, i64>& counts) {
  ByteCounts sorted;
  for (const auto& [name, bytes] : counts)
    if (bytes != 0) sorted.emplace_back(name, bytes);
  std::ranges::stable_sort(sorted, [](const auto& x, const auto& y) { return x.second > y.second; });
  return sorted;
}

/// Roles begin with one of these words: "attention/q".
std::string dense_kind(DenseRole role) {
  static const std::map<std::string_view, std::string_view> kWords = {
      {"delta", "GatedDeltaNet"}, {"mlp", "dense MLP"}, {"mtp", "MTP projection"},
      {"norm", "norms"},          {"router", "router"}, {"shared_expert", "shared experts"},
  };
  const std::string_view name = to_string(role), word = name.substr(0, name.find('/'));
  const auto found = kWords.find(word);
  return std::string(found == kWords.end() ? word : found->second);
}

i64 total_of(const ByteCounts& counts) {
  i64 total = 0;
  for (const auto& [name, bytes] : counts) total += bytes;
  return total;
}

std::string byte_cell(i64 bytes, i64 total) {
  const double percent = total > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(total) : 0.0;
  return fmt::format("<span class=\"bar\" style=\"--percent:{:.2f}\"></span>{} ({:.1f}%)", percent, size_text(bytes),
                     percent);
}

i64 count_in(const ByteCounts& counts, const std::string& name) {
  const auto found = std::ranges::find(counts, name, [](const auto& one) { return one.first; });
  return found == counts.end() ? 0 : found->second;
}

/// Whether these are the numbers of two layers, one after the other.
bool follows(std::string_view layer, std::string_view next) {
  const auto number_of = [](std::string_view text) {
    int number = -1;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
    return fault == std::errc() && end == text.data() + text.size() ? number : -1;
  };
  return number_of(layer) >= 0 && number_of(next) == number_of(layer) + 1;
}

std::string choice(std::string_view type, std::string_view name, std::string_view id, std::string_view text,
                   bool checked) {
  return fmt::format("<span class=\"choice\"><input type=\"{}\" {} id=\"{}\"{}> <label for=\"{}\">{}</label></span>\n",
                     type, name, id, checked ? " checked" : "", id, text);
}

}  // namespace

std::string heat_number(double value) {
  if (std::isnan(value)) return "none";
  return fmt::format("{:.3g}", value);
}

std::string heat_maps(const std::vector<HeatFigure>& figures) {
  std::string text = "<div class=\"heat\">\n<style>\n";
  for (std::size_t i = 0; i < figures.size(); ++i)
    text += fmt::format(".heat:has(#figure{}:checked) .map:not(#map{}) {{ display: none; }}\n", i, i);
  text += colour_rules() + "</style>\n<form><fieldset><legend>What is shown</legend>\n";
  for (std::size_t i = 0; i < figures.size(); ++i)
    text += choice("radio", "name=\"figure\"", fmt::format("figure{}", i), html(figures[i].title), i == 0);
  text += "</fieldset>\n<fieldset><legend>Colours</legend>\n";
  for (const HeatColouring& colouring : kColourings)
    text += choice("radio", "name=\"colours\"", colouring.id, colouring.name, colouring.prefix.empty());
  text += "</fieldset>\n<fieldset><legend>Cells</legend>\n" + choice("checkbox", "", "numbers", "with numbers", false);
  if (std::ranges::any_of(figures, &HeatFigure::is_difference))
    text += choice("checkbox", "", "unequal", "only layers that differ", false);
  text += "</fieldset></form>\n";
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const HeatScale scale = scale_of(figures[i]);
    text += fmt::format("<div class=\"map{}\" id=\"map{}\">\n<p>{} Rows are layers, columns are experts.</p>\n",
                        experts_of(figures[i]) * figures[i].rows.size() > kMostCells ? " late" : "", i,
                        html(figures[i].about));
    text += legend(figures[i], scale) + cells(figures[i], scale) + by_layer(figures[i]) + "</div>\n";
  }
  return text + "</div>\n";
}

std::string picture_sentence(const ExpertBlock& block) {
  std::string text = order_sentence(block) + ".";
  if (block.set == ExpertSet::Routed && block.num_experts > 1)
    text += block.experts == Experts::Grouped ? " One tensor holds all experts (grouped)."
                                              : " Each expert has a tensor of its own (indexed).";
  if (block.axes == Axes::InOut) text += " Stored transposed: what is called a row here is a column of the tensor.";
  return text;
}

std::string row_picture(const ExpertBlock& block, const std::string& title, const std::string& id) {
  const i64 rows = block.intermediate_size;
  const std::string sentence = html(picture_sentence(block));
  const bool has_blocks = block.glu.kind == Glu::Kind::Contiguous || block.glu.kind == Glu::Kind::Interleaved;
  std::string text = fmt::format(
      "<figure><figcaption><strong>{}</strong>: {} <span class=\"key g\">gate</span> <span class=\"key u\">up</span>"
      "</figcaption>\n",
      title, sentence);
  for (const double width : kWidths) {
    const std::string_view name = width == kWidths[0] ? "broad" : "slim";
    std::string drawing;
    double height = kBarHeight;
    if (rows > 0 && block.glu.kind == Glu::Kind::Split) {
      drawing = halves(width, 0, rows);
      height += kLabelHeight;
    } else if (rows > 0 && has_blocks) {
      drawing = bar(fmt::format("{}-{}", id, name), width, 0, 2 * rows, block_rows_of(block));
      height += 12 + 2 * kLabelHeight + kBarHeight;
      drawing += enlarged(width, kBarHeight + 12, 2 * rows, block_rows_of(block));
    } else {
      drawing = rectangle(0, 0, width, block.glu.kind == Glu::Kind::None ? "up" : "unknown");
    }
    text += fmt::format("<svg class=\"{}\" role=\"img\" aria-label=\"{}: {}\" viewBox=\"0 0 {:.0f} {:.0f}\">{}</svg>\n",
                        name, title, sentence, width, height + 4, drawing);
  }
  return text + "</figure>\n";
}

ByteCounts bytes_by_dtype(const Inspection& inspection) {
  std::map<std::string, i64> counts;
  for (const TensorRef& tensor : inspection.source->inventory().tensors)
    counts[std::string(dtype_name(tensor.dtype))] += tensor.bytes;
  return largest_first(counts);
}

ByteCounts bytes_by_kind(const Inspection& inspection) {
  std::map<std::string, i64> counts;
  i64 rest = 0;
  for (const TensorRef& tensor : inspection.source->inventory().tensors) {
    if (is_optimizer_tensor(tensor.name))
      counts["optimizer state"] += tensor.bytes;
    else
      rest += tensor.bytes;
  }
  const auto add = [&](const std::string& kind, const Matrix& matrix) {
    const i64 bytes = matrix.rows * matrix.cols * matrix.element_bytes;
    counts[kind] += bytes;
    rest -= bytes;
  };
  if (inspection.recognition) {
    for (const ExpertBlock& block : inspection.recognition->blocks)
      for (const Matrix& matrix : block.matrices)
        if (!block.is_optimizer_state())
          add(block.set == ExpertSet::Routed ? "routed experts" : "shared experts", matrix);
    for (const DenseMatrix& dense : inspection.recognition->dense) add(dense_kind(dense.role), dense.matrix);
  }
  counts["other tensors"] += rest;
  return largest_first(counts);
}

ByteCounts bytes_by_layer(const Inspection& inspection) {
  ByteCounts counts;
  for (const LayerContent& layer : layer_contents(inspection))
    counts.emplace_back(layer.layer.empty() ? "no layer" : layer.layer,
                        layer.expert_bytes + layer.shared_bytes + layer.other_bytes);
  return counts;
}

std::string byte_table(const std::string& caption, const std::string& what, const ByteCounts& a, const ByteCounts* b) {
  std::vector<std::string> headings = {what, b != nullptr ? "A" : "bytes"};
  if (b != nullptr) headings.emplace_back("B");
  std::vector<std::string> names;
  for (const ByteCounts* counts : {&a, b})
    if (counts != nullptr)
      for (const auto& [name, bytes] : *counts)
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  const auto counts_of = [&](const std::string& name) {
    return std::pair(count_in(a, name), b == nullptr ? 0 : count_in(*b, name));
  };
  std::string rows;
  for (std::size_t first = 0, last = 0; first < names.size(); first = last + 1) {
    const auto counts = counts_of(names[first]);
    last = first;
    while (last + 1 < names.size() && counts_of(names[last + 1]) == counts && follows(names[last], names[last + 1]))
      ++last;
    const std::string_view each = last > first ? " each" : "";
    std::vector<std::string> cells = {byte_cell(counts.first, total_of(a)).append(each)};
    if (b != nullptr) cells.push_back(byte_cell(counts.second, total_of(*b)).append(each));
    rows += table_row(html(last > first ? names[first] + " to " + names[last] : names[first]), cells);
  }
  return table(caption, headings, rows, "bytes");
}

}  // namespace glu_ckpt
