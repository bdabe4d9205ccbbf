#pragma once
/// Weights to encode: position-coded ones, numbers in the middle between two codes, subnormals, zeros of both signs,
/// saturation, and what the CPU refuses or has to look at; and what the CPU makes of them.

#include <string>
#include <vector>

#include "core/weight_device.hpp"
#include "quant/encode_row.hpp"

namespace glu_ckpt::support {

/// A matrix and the encoder that it is for.
struct CellCase {
  Encoder encoder;
  Dtype dtype = Dtype::BF16;
  CellBatch batch;
  std::vector<std::byte> weights;
  /// It has a weight that a device leaves to the CPU.
  bool is_watched = false;

  std::string describe() const;
};

/// Every encoder with every dtype that it takes, over matrices whose cells are whole and, where it has such ones, cut
/// short; of each also some with a weight that is NaN, infinite or nearly so.
std::vector<CellCase> cell_cases();

/// Codes and scales by the CPU's own loops, and by a search among the values of the codes.
struct HostCells {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<std::byte> searched_codes;
  /// The error that the CPU throws; empty: it makes codes.
  std::string refused;
};
HostCells host_cells(const CellCase& one);

}  // namespace glu_ckpt::support
