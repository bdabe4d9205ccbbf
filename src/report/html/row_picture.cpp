#include "report/html/row_picture.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "report/html/html_text.hpp"

namespace glu_ckpt {
namespace {

constexpr double kPictureWidth = 900;
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
std::string bar(const std::string& id, double y, i64 rows, i64 block_rows) {
  const double width = kPictureWidth * static_cast<double>(block_rows) / static_cast<double>(rows);
  if (width < kLeastBlockWidth)
    return fmt::format(
               "<pattern id=\"{}\" width=\"{:.4f}\" height=\"10\" patternUnits=\"userSpaceOnUse\"><rect class=\"up\" "
               "width=\"{:.4f}\" height=\"10\"/><rect class=\"gate\" width=\"{:.4f}\" height=\"10\"/></pattern>",
               id, 2 * width, 2 * width, width) +
           fmt::format("<rect fill=\"url(#{})\" x=\"0\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\"/>", id, y,
                       kPictureWidth, kBarHeight);
  std::string text;
  for (i64 first = 0; first < rows; first += block_rows)
    text += rectangle(kPictureWidth * static_cast<double>(first) / static_cast<double>(rows), y, width,
                      first / block_rows % 2 == 0 ? "gate" : "up");
  return text;
}

/// The first blocks, with the numbers of their rows.
std::string enlarged(double y, i64 rows, i64 block_rows) {
  const i64 blocks = std::min(2 * kEnlargedPairs, rows / block_rows);
  const double width = kPictureWidth / static_cast<double>(blocks);
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

std::string halves(double y, i64 rows) {
  const double half = kPictureWidth / 2;
  return rectangle(0, y, half - 6, "gate") + rectangle(half + 6, y, half - 6, "up") +
         label(0, y + kBarHeight + 15, fmt::format("gate, {} rows", rows)) +
         label(half + 6, y + kBarHeight + 15, fmt::format("up, {} rows", rows));
}

}  // namespace

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

std::string row_picture(const ExpertBlock& block, const std::string& title, const std::string& id) {
  const i64 rows = block.intermediate_size;
  const std::string sentence = html(order_sentence(block));
  const std::string form =
      block.axes == Axes::InOut ? "Stored transposed: what is called a row here is a column of the tensor." : "";
  std::string drawing;
  double height = kBarHeight;
  const bool has_blocks = block.glu.kind == Glu::Kind::Contiguous || block.glu.kind == Glu::Kind::Interleaved;
  if (rows > 0 && block.glu.kind == Glu::Kind::Split) {
    drawing = halves(0, rows);
    height += kLabelHeight;
  } else if (rows > 0 && has_blocks) {
    drawing = bar(id + "-pattern", 0, 2 * rows, block_rows_of(block));
    height += 12 + 2 * kLabelHeight + kBarHeight;
    drawing += enlarged(kBarHeight + 12, 2 * rows, block_rows_of(block));
  } else {
    drawing = rectangle(0, 0, kPictureWidth, block.glu.kind == Glu::Kind::None ? "up" : "unknown");
  }
  return fmt::format(
             "<figure role=\"group\" tabindex=\"0\"><figcaption><strong>{}</strong>: {}. <span class=\"key "
             "g\">gate</span> <span class=\"key "
             "u\">up</span> {}</figcaption>\n",
             title, sentence, form) +
         fmt::format("<svg role=\"img\" aria-label=\"{}: {}\" viewBox=\"0 0 {:.0f} {:.0f}\">{}</svg></figure>\n", title,
                     sentence, kPictureWidth, height + 4, drawing);
}

}  // namespace glu_ckpt
