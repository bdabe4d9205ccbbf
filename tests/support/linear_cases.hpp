#pragma once
/// Grouped linear layers with random values, and what they should compute.

#include <random>
#include <string>
#include <vector>

#include "glu_ckpt/ops/grouped_linear.hpp"

namespace glu_ckpt::support {

struct LinearCase {
  LinearProduct product = LinearProduct::Forward;
  Dtype dtype = Dtype::BF16;
  i64 in = 8;
  i64 out = 8;
  std::vector<i64> splits = {1};
  /// Rows behind the last split.
  i64 rows_behind = 0;
  bool accumulate = false;
  bool fp32_grads = false;

  i64 num_experts() const { return std::ssize(splits); }
  i64 rows() const;
  Dtype output_dtype() const;
  /// Elements of y, dx or all dW.
  i64 output_size() const;
  std::string describe() const;
};

/// A case's tensors as bytes. The output holds old gradients where they are added to, else a poison of 0xa5.
struct LinearData {
  std::vector<std::byte> x, dy, weights, output;

  LinearData(const LinearCase& c, std::mt19937& random);
};

/// Matrices at `matrices`, [E, out, in] dense: W or dW.
GroupedLinear linear_at(const LinearCase& c, void* matrices);
/// Addresses of its matrices one by one.
std::vector<void*> addresses_at(const LinearCase& c, void* matrices);
LinearRows rows_at(const LinearCase& c, const void* x, const void* dy, void* out);

/// The output that grouped_linear_host() leaves.
std::vector<std::byte> host_output(const LinearCase& c, const LinearData& data, int jobs = 1);

/// In double, from the definition alone, not rounded.
struct Float64Linear {
  std::vector<double> values;
  /// Of each element the sum of its products' absolute values.
  std::vector<double> magnitudes;
  /// 0 where nothing is written.
  std::vector<char> written;
  /// Absolute values of what was accumulated to; else zeros.
  std::vector<double> before;
};
Float64Linear float64_linear(const LinearCase& c, const LinearData& data);

std::vector<double> output_values(const LinearCase& c, const std::vector<std::byte>& output);

/// What is wrong with `output`, element by element, as a sentence about the first; empty if nothing is. Elements that
/// are not written must hold what data.output does.
/// `by_cublas`: by its tolerance, which is wider where it accumulates.
std::string linear_fault(const LinearCase& c, const LinearData& data, const std::vector<std::byte>& output,
                         bool by_cublas = false);

/// The tolerance of grouped_linear.hpp.
double linear_tolerance(Dtype dtype, double value, double magnitude);

/// Splits for `experts`: 0, 1, 129 and others up to `most`.
std::vector<i64> uneven_splits(std::size_t experts, i64 most, std::mt19937& random);

}  // namespace glu_ckpt::support
