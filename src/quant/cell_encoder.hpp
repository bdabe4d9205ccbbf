#pragma once
/// The cells of a weight that is encoded, and their codes and scales. A cell is the part of a matrix that has one
/// scale.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/weight_device.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/tensor.hpp"
#include "quant/cell_tables.hpp"
#include "quant/encode_row.hpp"
#include "quant/encoded_source.hpp"

namespace glu_ckpt {

/// A weight, its cells, and the tensors that it becomes.
class WeightCells {
 public:
  WeightCells(const Encoder& encoder, const TensorRef& weight, bool turned)
      : encoder_(encoder),
        row_(encoder.row),
        weight_(weight),
        turned_(turned),
        cell_cols_(row_.cell_cols == 0 ? cols() : row_.cell_cols) {}

  const TensorRef& weight() const { return weight_; }
  bool turned() const { return turned_; }
  i64 rows() const { return weight_.shape[turned_ ? 1 : 0]; }
  i64 cols() const { return weight_.shape[turned_ ? 0 : 1]; }
  i64 cell_rows() const { return row_.cell_rows; }
  i64 cell_cols() const { return cell_cols_; }
  i64 grid_rows() const { return (rows() + cell_rows() - 1) / cell_rows(); }
  i64 grid_cols() const { return (cols() + cell_cols_ - 1) / cell_cols_; }
  Dtype scale_dtype() const { return row_.scale_dtype == Dtype::BF16 ? weight_.dtype : row_.scale_dtype; }
  i64 stored_row_bytes() const { return cols() * dtype_bits(weight_.dtype) / 8; }
  i64 code_row_bytes() const;
  i64 scale_row_bytes() const { return grid_cols() * dtype_bits(scale_dtype()) / 8; }

  TensorRef codes() const;
  TensorRef scales() const;
  TensorRef second() const;
  TensorRef shape() const;

 private:
  TensorRef like(TensorKind kind) const;

  const Encoder& encoder_;
  const EncoderRow& row_;
  const TensorRef& weight_;
  bool turned_;
  i64 cell_cols_;
};

/// So many rows of the weight, as a WeightDevice takes them.
CellBatch cells_to_encode(const Encoder& encoder, const WeightCells& cells, i64 rows, float second);

/// Sums over weights that were encoded and decoded again.
struct EncodeErrors {
  double squares = 0;
  double error_squares = 0;
  /// The greatest error, as a part of the greatest magnitude of its cell.
  double greatest = 0;
  i64 weights = 0;
  i64 lost = 0;

  void add_cell(std::span<const float> cell, std::span<const float> decoded, float greatest_weight);
  void add(const EncodeErrors& other);
};

/// Encodes rows of cells of one weight. One call uses it.
class CellEncoder {
 public:
  /// `device` may be null; what it declines, the CPU encodes: turned weights always, since the CPU turns them.
  CellEncoder(const Source& source, const Encoder& encoder, const EncodedWeight& weight, EncodePath path,
              SimdLevel level, float second, std::shared_ptr<WeightDevice> device = nullptr)
      : source_(source),
        encoder_(encoder),
        tensor_(weight.tensor),
        cells_(encoder, source.inventory().tensors[weight.tensor], weight.turned),
        path_(path),
        level_(level),
        second_(second),
        device_(weight.turned ? nullptr : std::move(device)),
        place_(device_ != nullptr ? device_->take_place() : nullptr) {}

  /// Reads rows of cells [begin, end) and makes their scales. Throws NotExact where a weight, or what its code decodes
  /// to, is no finite number.
  void load(i64 begin, i64 end);
  /// How many rows of cells are loaded at once: as many as stay in a core's cache until their codes are made.
  i64 batch() const;
  /// The scales of all rows of cells that were loaded.
  void put_scales(std::byte* out) const;
  /// The codes of a row of the weight, which was loaded.
  void put_codes(i64 row, std::byte* out) const;
  /// The errors of all rows that were loaded, by an encoder without a device.
  EncodeErrors measure() const;

 private:
  Dtype dtype() const { return cells_.weight().dtype; }
  const std::byte* stored_row(i64 of_row) const { return weights_ + of_row * cells_.stored_row_bytes(); }
  std::byte* own_memory(i64 bytes);
  void read_weights();
  void set_scales();
  float scale_of(std::size_t cell) const;
  void check_cells() const;
  [[noreturn]] void fail_special(i64 cell) const;

  const Source& source_;
  const Encoder& encoder_;
  std::size_t tensor_;
  WeightCells cells_;
  EncodePath path_;
  SimdLevel level_;
  float second_;
  i64 first_row_ = 0;
  i64 rows_ = 0;
  std::shared_ptr<WeightDevice> device_;
  std::unique_ptr<WeightDevice::Place> place_;
  /// Of the rows that were loaded, by the device; none where the CPU makes them.
  std::optional<MadeCells> made_;
  /// Those rows: memory of the place, or else this object's. That is not filled with zeros: all of it is read.
  std::byte* weights_ = nullptr;
  std::unique_ptr<std::byte[]> own_;
  i64 own_bytes_ = 0;
  std::vector<u32> scales_;
  std::vector<float> factors_;
  CellTables tables_;
  std::vector<float> greatest_;
};

}  // namespace glu_ckpt
