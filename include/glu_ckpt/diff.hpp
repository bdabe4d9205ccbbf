#pragma once
/// Finds which logical matrices and tensors of two checkpoints differ, and by how much, in whatever layouts, namings
/// and formats the two are.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/config_difference.hpp"
#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"
#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// The result of comparing elements of A with those of B. Of one dtype, bits decide what differs: -0 differs from 0,
/// and a NaN from a NaN with another payload. Of two float dtypes, values decide. What is smaller than a byte is
/// counted in bytes.
struct ElementDiff {
  i64 elements = 0;
  i64 differing = 0;
  /// Index of the first of them; -1 where there is none.
  i64 first = -1;
  /// Largest |a - b|, and largest |a - b| / |a|; infinite where a is 0, or one of the two is infinite. Elements where
  /// either is a NaN do not count.
  double max_abs = 0;
  double max_rel = 0;
  /// This is the sum of (a - b)^2; a difference that is a NaN counts as 0.
  double sum_squares = 0;
  /// The sums of a^2 and of b^2, over the elements whose difference is finite.
  double squares_a = 0;
  double squares_b = 0;
  /// Elements that are a NaN in exactly one.
  i64 nan_in_one = 0;

  /// The root of the mean of (a - b)^2.
  double rms() const;
  /// |A - B| / |A|: infinite where A is 0 and B is not, a NaN where the squares are beyond double.
  double relative_norm() const;
  /// The cosine of the angle between A and B; a NaN where one is 0, or a difference is infinite.
  double cosine() const;
};

/// Makes `total` the result of its elements with those of `next` behind them.
void append(ElementDiff& total, const ElementDiff& next);

enum class Side { A, B };

/// The first element that differs.
struct ElementPlace {
  i64 row = 0;
  i64 column = 0;
  /// Bits as hexadecimal ("0x3f80"), and the number that they are ("1"); the latter is empty where the dtype has none.
  std::string a;
  std::string b;
  std::string number_a;
  std::string number_b;
};

/// One logical matrix, or one tensor that no map knows, that is not the same in A and in B.
struct TensorDiff {
  /// "layer 3 routed expert 7 gate weight", or the tensor's name.
  std::string name;
  /// "3", "mtp.0"; empty for what is in no layer.
  std::string layer;
  /// The expert; -1 for what is in none.
  i64 expert = -1;
  /// The tensor that holds it, or its first rows; empty on the side that lacks it.
  std::string tensor_a;
  std::string tensor_b;
  std::optional<Side> only_in;
  /// Meaningful on the sides that have it. Matrices are [out, in].
  Dtype dtype_a = Dtype::U8;
  Dtype dtype_b = Dtype::U8;
  std::vector<i64> shape_a;
  std::vector<i64> shape_b;
  /// Absent where elements cannot be compared: they are in one alone, shapes differ, or dtypes differ that are not both
  /// floats.
  std::optional<ElementDiff> elements;
  /// Says whether the elements are F64, F32, F16 or BF16, so that max_abs, max_rel and sum_squares mean something.
  /// Others, quantized ones among them, are compared as bits.
  bool has_numbers = false;
  std::optional<ElementPlace> first;
  /// The rows of a matrix in which an element differs: their number, and the first few of them.
  i64 differing_rows = 0;
  std::vector<i64> first_rows;
};

/// All that was compared of one layer, or outside of all layers.
struct LayerDiff {
  /// The layer's name; empty for what is in no layer.
  std::string layer;
  /// Matrices and tensors of either side.
  i64 tensors = 0;
  /// This many of them differ in any way, those of the next two counts included.
  i64 differing = 0;
  i64 only_in_one = 0;
  /// This many have another dtype or shape.
  i64 unlike = 0;
  /// Elements that were compared, all of them.
  i64 elements = 0;
  i64 differing_elements = 0;
  /// The figures of all elements that are numbers, which `numbers.elements` counts.
  ElementDiff numbers = {};
  /// The figures of the matrices and tensors that differ. The relative norm is taken of these alone, since equal ones
  /// may not have been read: their hashes agreed.
  ElementDiff changed = {};
};

struct Diff {
  bool equal = false;
  /// Layers and tensors with a difference, the largest first: what is in one alone, what has another dtype or shape,
  /// what differs as bits, then by max_abs.
  std::vector<LayerDiff> layers;
  std::vector<TensorDiff> tensors;
  /// Layers without a difference.
  i64 equal_layers = 0;
  /// Matrices and tensors that both have and that were compared; their bytes in A.
  i64 compared = 0;
  i64 bytes = 0;
  /// Fields of config.json that let the two compute differently, whatever their weights; where both have a file, and
  /// none has a tensor that the other lacks.
  std::vector<ConfigDifference> configs;
};

/// The differences of one expert, or of one tensor that belongs to no expert.
struct ChangedPart {
  /// "layer 3 routed expert 7", or the tensor's name.
  std::string name;
  /// The first of its matrices in `Diff::tensors`, and how many they are.
  std::size_t tensor = 0;
  i64 tensors = 0;
  /// The figures of those that are numbers.
  ElementDiff numbers = {};
  /// So many times the median of relative norms.
  double times = 0;
};

/// Gathers `Diff::tensors` by expert, in their order.
std::vector<ChangedPart> changed_parts(const std::vector<TensorDiff>& tensors);

/// Returns those with a NaN in only one of A and B, whose `times` is 0, and then those whose relative norm is more than
/// four times the median of all that changed, the furthest first; none of eight or fewer.
std::vector<ChangedPart> far_off(const std::vector<TensorDiff>& tensors, std::size_t most = 3);

struct DiffOptions {
  /// The caller knows this about A and B.
  SourceAnswers a;
  SourceAnswers b{.option_prefix = "--to-"};
  /// A pattern with *, ? and [...]: of what either checkpoint calls a tensor, or of TensorDiff::name. Empty:
  /// everything.
  std::string tensors = {};
};

/// Compares two models, which both outlive the call. Where the order of gate and up rows of an FC1 is unknown it is one
/// matrix in the order in which it is stored. Throws Usage where no tensor fits `pattern`.
Diff diff(const Model& a, const Model& b, const Backend& backend, const ExecuteOptions& options,
          const std::string& pattern = {});

/// Bytes that diff() will read at most.
i64 diff_bytes(const Model& a, const Model& b, const std::string& pattern = {});

/// Opens and compares two checkpoints. Throws UnknownGlu where the order of gate and up rows is known of one alone,
/// GluConflict, Usage, errors of the files, Interrupted.
Diff diff(const std::filesystem::path& path_a, const std::filesystem::path& path_b, const DiffOptions& options = {},
          const RunOptions& run = {});

}  // namespace glu_ckpt
