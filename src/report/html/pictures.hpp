#pragma once
/// The figures of the page: heat maps (layers by experts, a colour each), rows of an FC1 to scale, and tables of bytes.

#include <string>
#include <utility>
#include <vector>

#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

struct HeatRow {
  std::string layer;
  /// The figure of each expert; NaN where there is none.
  std::vector<double> values;
};

struct HeatFigure {
  /// "Norm of the weights".
  std::string title;
  /// A sentence about what it is.
  std::string about;
  std::vector<HeatRow> rows;
  /// Says that 0 means equal, which has its own colour.
  bool is_difference = false;
};

/// A number of a heat map as the page has it.
std::string heat_number(double value);

/// All figures, of which one is shown at a time.
std::string heat_maps(const std::vector<HeatFigure>& figures);

/// A figure about one of the block's experts. `title` and `id` are HTML already; the latter is unique on the page.
std::string row_picture(const ExpertBlock& block, const std::string& title, const std::string& id);

/// What a picture of the block says in words: "contiguous: all 768 gate rows, then all 768 up rows. One tensor holds
/// all experts (grouped)."
std::string picture_sentence(const ExpertBlock& block);

/// A name and how many bytes, the most first.
using ByteCounts = std::vector<std::pair<std::string, i64>>;

/// Counts the bytes of the stored tensors.
ByteCounts bytes_by_dtype(const Inspection& inspection);
/// "routed experts", "attention", "optimizer state", ... What is no logical matrix is "other tensors"; all together are
/// the bytes of the tensors.
ByteCounts bytes_by_kind(const Inspection& inspection);

/// In the order of the model; "no layer" is what is in none.
ByteCounts bytes_by_layer(const Inspection& inspection);

/// A table with bars, of A and, where it is there, of B.
std::string byte_table(const std::string& caption, const std::string& what, const ByteCounts& a, const ByteCounts* b);

}  // namespace glu_ckpt
