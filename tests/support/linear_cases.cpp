#include "support/linear_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/mlp_cases.hpp"

namespace glu_ckpt::support {
namespace {

i64 bytes_of(Dtype dtype) { return dtype_bits(dtype) / 8; }

std::vector<std::byte> random_tensor(i64 size, Dtype dtype, std::mt19937& random) {
  return to_bytes(random_values(static_cast<std::size_t>(size), 1.0, dtype, random), dtype);
}

}  // namespace

i64 LinearCase::rows() const {
  i64 rows = rows_behind;
  for (const i64 split : splits) rows += split;
  return rows;
}

Dtype LinearCase::output_dtype() const { return fp32_grads ? Dtype::F32 : dtype; }

i64 LinearCase::output_size() const {
  if (product == LinearProduct::WeightGrad) return num_experts() * in * out;
  return rows() * (product == LinearProduct::Forward ? out : in);
}

std::string LinearCase::describe() const {
  const char* const names[] = {"TN", "NN", "NT"};
  std::string text =
      fmt::format("{} {} in {} out {} {} rows behind{}{}; splits", names[static_cast<int>(product)], dtype_name(dtype),
                  in, out, rows_behind, accumulate ? " accumulate" : "", fp32_grads ? " fp32 grads" : "");
  for (const i64 split : splits) text += fmt::format(" {}", split);
  return text;
}

LinearData::LinearData(const LinearCase& c, std::mt19937& random)
    : x(random_tensor(c.rows() * c.in, c.dtype, random)),
      dy(random_tensor(c.rows() * c.out, c.dtype, random)),
      weights(random_tensor(c.num_experts() * c.in * c.out, c.dtype, random)),
      output(static_cast<std::size_t>(c.output_size() * bytes_of(c.output_dtype())), std::byte{0xa5}) {
  // No rows have an address too, for kernels count on from it.
  x.reserve(1);
  dy.reserve(1);
  if (!c.accumulate) return;
  output = random_tensor(c.output_size(), c.output_dtype(), random);
  // Some are -0, which shows whether 0 was added where nothing is.
  const i64 bytes = bytes_of(c.output_dtype());
  for (i64 i = 0; i < c.output_size(); i += 7) {
    std::fill_n(output.begin() + i * bytes, bytes, std::byte{0});
    output[static_cast<std::size_t>((i + 1) * bytes - 1)] = std::byte{0x80};
  }
}

GroupedLinear linear_at(const LinearCase& c, void* matrices) {
  GroupedLinear linear;
  linear.product = c.product;
  linear.dtype = c.dtype;
  linear.num_experts = c.num_experts();
  linear.in_features = c.in;
  linear.out_features = c.out;
  linear.grad_dtype = c.output_dtype();
  linear.accumulate = c.accumulate;
  if (c.product == LinearProduct::WeightGrad) {
    linear.grads.first = matrices;
    linear.grads.step_bytes = c.in * c.out * bytes_of(c.output_dtype());
  } else {
    linear.weights.first = matrices;
    linear.weights.step_bytes = c.in * c.out * bytes_of(c.dtype);
  }
  return linear;
}

std::vector<void*> addresses_at(const LinearCase& c, void* matrices) {
  const Dtype dtype = c.product == LinearProduct::WeightGrad ? c.output_dtype() : c.dtype;
  std::vector<void*> addresses;
  for (i64 e = 0; e < c.num_experts(); ++e)
    addresses.push_back(static_cast<std::byte*>(matrices) + e * c.in * c.out * bytes_of(dtype));
  return addresses;
}

LinearRows rows_at(const LinearCase& c, const void* x, const void* dy, void* out) {
  switch (c.product) {
    case LinearProduct::Forward: return {c.rows(), x, nullptr, out};
    case LinearProduct::InputGrad: return {c.rows(), nullptr, dy, out};
    case LinearProduct::WeightGrad: return {c.rows(), x, dy, nullptr};
  }
  return {};
}

std::vector<std::byte> host_output(const LinearCase& c, const LinearData& data, int jobs) {
  std::vector<std::byte> output = data.output;
  std::vector<std::byte> weights = data.weights;
  void* const matrices = c.product == LinearProduct::WeightGrad ? output.data() : weights.data();
  grouped_linear_host(linear_at(c, matrices), rows_at(c, data.x.data(), data.dy.data(), output.data()), c.splits, jobs);
  return output;
}

Float64Linear float64_linear(const LinearCase& c, const LinearData& data) {
  const auto x = to_doubles(data.x, c.dtype), dy = to_doubles(data.dy, c.dtype), w = to_doubles(data.weights, c.dtype);
  const auto size = static_cast<std::size_t>(c.output_size());
  Float64Linear result{std::vector<double>(size, 0), std::vector<double>(size, 0), std::vector<char>(size, 0)};
  const bool by_experts = c.product == LinearProduct::WeightGrad;
  if (by_experts) std::fill(result.written.begin(), result.written.end(), 1);
  const auto add = [&](i64 at, double a, double b) {
    const auto index = static_cast<std::size_t>(at);
    result.values[index] += a * b;
    result.magnitudes[index] += std::fabs(a * b);
    result.written[index] = 1;
  };
  const auto at = [](const std::vector<double>& values, i64 index) { return values[static_cast<std::size_t>(index)]; };
  i64 row = 0;
  for (i64 e = 0; e < c.num_experts(); ++e)
    for (i64 t = 0; t < c.splits[static_cast<std::size_t>(e)]; ++t, ++row)
      for (i64 o = 0; o < c.out; ++o)
        for (i64 i = 0; i < c.in; ++i) {
          const i64 weight = (e * c.out + o) * c.in + i;
          if (c.product == LinearProduct::Forward) add(row * c.out + o, at(x, row * c.in + i), at(w, weight));
          if (c.product == LinearProduct::InputGrad) add(row * c.in + i, at(dy, row * c.out + o), at(w, weight));
          if (by_experts) add(weight, at(dy, row * c.out + o), at(x, row * c.in + i));
        }
  if (c.accumulate) {
    const auto old = to_doubles(data.output, c.output_dtype());
    for (std::size_t i = 0; i < size; ++i) {
      result.values[i] += old[i];
      result.magnitudes[i] += std::fabs(old[i]);
    }
  }
  return result;
}

std::vector<double> output_values(const LinearCase& c, const std::vector<std::byte>& output) {
  return to_doubles(output, c.output_dtype());
}

double linear_tolerance(Dtype dtype, double value, double magnitude) {
  const double relative = dtype == Dtype::BF16 ? 1.6e-2 : dtype == Dtype::F16 ? 1e-3 : 1.3e-6;
  return relative * std::fabs(value) + std::max(1e-5, std::ldexp(magnitude, -21));
}

std::string linear_fault(const LinearCase& c, const LinearData& data, const std::vector<std::byte>& output) {
  if (output.size() != data.output.size()) return fmt::format("{} bytes", output.size());
  const Float64Linear expected = float64_linear(c, data);
  const auto values = to_doubles(output, c.output_dtype());
  const auto bytes = static_cast<std::size_t>(bytes_of(c.output_dtype()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (expected.written[i] == 0) {
      if (std::memcmp(output.data() + i * bytes, data.output.data() + i * bytes, bytes) != 0)
        return fmt::format("element {} was written: {}", i, values[i]);
      continue;
    }
    const double off = std::fabs(values[i] - expected.values[i]);
    // Not a comparison with >, which a NaN would pass.
    if (!(off <= linear_tolerance(c.output_dtype(), expected.values[i], expected.magnitudes[i])))
      return fmt::format("element {} is {}, expected {}", i, values[i], expected.values[i]);
  }
  return {};
}

std::vector<i64> uneven_splits(std::size_t experts, i64 most, std::mt19937& random) {
  std::vector<i64> splits(experts);
  for (i64& split : splits) {
    const auto kind = random() % 4;
    split = kind == 0   ? 0
            : kind == 1 ? 1
            : kind == 2 ? std::min<i64>(129, most)
                        : static_cast<i64>(random() % static_cast<u64>(most + 1));
  }
  return splits;
}

}  // namespace glu_ckpt::support
