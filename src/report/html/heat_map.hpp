#pragma once
/// Layers by experts, a colour each for a figure's size.

#include <string>
#include <vector>

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
  /// A difference: 0 is its own colour, and the scale is logarithmic.
  bool is_difference = false;
};

/// A number of a heat map as the page has it.
std::string heat_number(double value);

/// All figures, of which one is shown at a time.
std::string heat_maps(const std::vector<HeatFigure>& figures);

}  // namespace glu_ckpt
