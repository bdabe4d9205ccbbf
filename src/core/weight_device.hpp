#pragma once
/// A place other than the calling thread where weights become codes and scales, or get the products of an adapter
/// added: a GPU.

#include <cstddef>
#include <memory>
#include <span>

#include "core/encode_bits.hpp"
#include "core/product_lines.hpp"

namespace glu_ckpt {

/// Whole rows of cells of one weight. The last rows and columns of cells may be cut short.
struct CellBatch {
  CellRule rule;
  i64 rows = 0;
  i64 cols = 0;
  /// A scale is for so many rows and columns; stored in so many bytes, 1, 2 or 4.
  i64 cell_rows = 1;
  i64 cell_cols = 0;
  i64 scale_bytes = 4;
  /// The second scale of the matrix, where the rule has one.
  float second = 1;

  i64 weight_bytes() const { return rows * cols * (rule.bf16 ? 2 : 4); }
  i64 code_bytes() const { return rule.codes == Codes::E4m3 ? rows * cols : rows * cols / 2; }
  i64 grid_rows() const { return (rows + cell_rows - 1) / cell_rows; }
  i64 grid_cols() const { return (cols + cell_cols - 1) / cell_cols; }
  i64 scales_bytes() const { return grid_rows() * grid_cols() * scale_bytes; }
};

/// Codes and scales, row-major, until the place is used again.
struct MadeCells {
  std::span<const std::byte> codes;
  std::span<const std::byte> scales;
};

/// Any thread may take a place; one uses it at a time.
class WeightDevice {
 public:
  class Place {
   public:
    virtual ~Place() = default;
    /// Memory for the weights of the batch, row-major; null where the device does not take it. Throws NoMemory,
    /// DeviceFailed.
    virtual std::byte* weights_of(const CellBatch& batch) = 0;
    /// Makes codes and scales, with the bits of encode_row() and cell_scales(), of the weights that were put there.
    /// Returns false, and has made nothing, where the CPU must look first: a cell has a weight that is not finite, one
    /// of kLeastWatched or more, or a scale by which codes would be NaN. Throws DeviceFailed.
    virtual bool encode(const CellBatch& batch, MadeCells& made) = 0;
    /// Does what add_product() does (src/adapters/add_product.hpp), with its bits. Returns false, and has changed
    /// nothing, where the CPU must do it: a weight becomes NaN, whose bits are not the same everywhere, or there are
    /// too many bytes. Throws NoMemory, DeviceFailed.
    virtual bool add_product(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging,
                             Dtype dtype, i64 count) = 0;
  };

  virtual ~WeightDevice() = default;
  /// Stored bytes that are worth the way there.
  virtual i64 batch_bytes() const = 0;
  /// Null where all places are taken, or none is there yet. The device outlives the place. Throws NoDevice,
  /// DeviceFailed.
  virtual std::unique_ptr<Place> take_place() = 0;
};

}  // namespace glu_ckpt
