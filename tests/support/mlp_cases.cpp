#include "support/mlp_cases.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "core/float_rows.hpp"

namespace glu_ckpt::support {
namespace {

std::size_t bytes_of(Dtype dtype) { return static_cast<std::size_t>(dtype_bits(dtype) / 8); }

double f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

}  // namespace

std::vector<std::byte> to_bytes(const std::vector<double>& values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const u32 wide = std::bit_cast<u32>(static_cast<float>(values[i]));
    const std::uint16_t narrow = dtype == Dtype::BF16 ? round_to_bf16(wide) : round_to_f16(wide);
    if (dtype == Dtype::F32)
      std::memcpy(bytes.data() + i * sizeof wide, &wide, sizeof wide);
    else
      std::memcpy(bytes.data() + i * sizeof narrow, &narrow, sizeof narrow);
  }
  return bytes;
}

std::vector<double> to_doubles(std::span<const std::byte> bytes, Dtype dtype) {
  std::vector<double> values(bytes.size() / bytes_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    u32 bits = 0;
    std::memcpy(&bits, bytes.data() + i * bytes_of(dtype), bytes_of(dtype));
    if (dtype == Dtype::BF16) bits <<= 16;
    values[i] = dtype == Dtype::F16 ? f16_value(static_cast<std::uint16_t>(bits)) : std::bit_cast<float>(bits);
  }
  return values;
}

std::vector<double> random_values(std::size_t count, double scale, Dtype dtype, std::mt19937& random) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return to_doubles(to_bytes(values, dtype), dtype);
}

std::vector<Fc1Order> fc1_orders(i64 width) {
  std::vector<Fc1Order> orders{{"split", 0, false, false},
                               {"split, transposed", 0, true, false},
                               {"contiguous", width, false, false},
                               {"contiguous, transposed", width, true, false}};
  for (i64 k = 1; k < width; ++k)
    if (width % k == 0)
      for (const bool transposed : {false, true})
        orders.push_back(
            {"interleaved:" + std::to_string(k) + (transposed ? ", transposed" : ""), k, transposed, false});
  for (const i64 k : {i64{1}, width})
    if (k == width || width % 2 == 0) orders.push_back({"halves of " + std::to_string(k), k, false, true});
  return orders;
}

std::vector<PlainExpert> random_experts(const MlpShape& shape, std::mt19937& random) {
  std::vector<PlainExpert> experts;
  const auto values = [&](i64 count, double scale) {
    return random_values(static_cast<std::size_t>(count), scale, shape.dtype, random);
  };
  for (const i64 width : shape.widths) {
    PlainExpert expert;
    const double in = 1.5 / std::sqrt(static_cast<double>(shape.hidden));
    const double out = 1 / std::sqrt(static_cast<double>(width));
    if (shape.activation.is_gated()) expert.gate = values(width * shape.hidden, in);
    expert.up = values(width * shape.hidden, in);
    expert.down = values(shape.hidden * width, out);
    if (shape.bias) {
      if (shape.activation.is_gated()) expert.gate_bias = values(width, 0.5);
      expert.up_bias = values(width, 0.5);
      expert.down_bias = values(shape.hidden, 0.5);
    }
    experts.push_back(expert);
  }
  return experts;
}

StoredExperts::StoredExperts(const MlpShape& shape, const std::vector<PlainExpert>& experts, const Fc1Order& order)
    : dtype_(shape.dtype) {
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const i64 width = shape.widths[e];
    ExpertWeights weights;
    weights.down = store(experts[e].down, shape.hidden, order.transposed);
    weights.down_bias = store(experts[e].down_bias, shape.hidden, false);
    if (order.block_rows == 0 || experts[e].gate.empty()) {
      weights.gate = store(experts[e].gate, width, order.transposed);
      weights.up = store(experts[e].up, width, order.transposed);
      weights.gate_bias = store(experts[e].gate_bias, width, false);
      weights.up_bias = store(experts[e].up_bias, width, false);
    } else {
      Fc1Order of_expert = order;
      of_expert.block_rows = std::min(order.block_rows, width);
      store_fused(experts[e], weights, of_expert, width, false);
      if (shape.bias) store_fused(experts[e], weights, of_expert, width, true);
    }
    experts_.push_back(weights);
  }
}

const std::byte* StoredExperts::keep(const std::vector<double>& values) {
  return buffers_.emplace_back(to_bytes(values, dtype_)).data();
}

StoredMatrix StoredExperts::store(const std::vector<double>& values, i64 rows, bool transposed) {
  if (values.empty()) return {};
  const i64 cols = static_cast<i64>(values.size()) / rows;
  const auto size = static_cast<i64>(bytes_of(dtype_));
  std::vector<double> stored(values.size());
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < cols; ++c)
      stored[static_cast<std::size_t>(transposed ? c * rows + r : r * cols + c)] =
          values[static_cast<std::size_t>(r * cols + c)];
  Placement place{0, rows, 0, transposed ? size : cols * size, transposed ? rows * size : size};
  place.block_step = rows * place.row_step;
  return {dtype_, rows, cols, {keep(stored), place}, {}, rows};
}

void StoredExperts::store_fused(const PlainExpert& expert, ExpertWeights& weights, const Fc1Order& order, i64 width,
                                bool bias) {
  const std::vector<double>& gate = bias ? expert.gate_bias : expert.gate;
  const std::vector<double>& up = bias ? expert.up_bias : expert.up;
  const i64 cols = static_cast<i64>(gate.size()) / width;
  const i64 k = order.block_rows;
  const bool transposed = order.transposed && !bias;
  std::vector<double> fused(gate.size() * 2);
  for (i64 p = 0; p < 2 * width; ++p) {
    const std::vector<double>& from = p / k % 2 == 0 ? gate : up;
    for (i64 c = 0; c < cols; ++c)
      fused[static_cast<std::size_t>(transposed ? c * 2 * width + p : p * cols + c)] =
          from[static_cast<std::size_t>((p / (2 * k) * k + p % k) * cols + c)];
  }
  const auto size = static_cast<i64>(bytes_of(dtype_));
  Placement place{0, k, 0, transposed ? size : cols * size, transposed ? 2 * width * size : size};
  place.block_step = 2 * k * place.row_step;
  Placement up_place = place;
  up_place.offset = k * place.row_step;
  StoredMatrix& to_gate = bias ? weights.gate_bias : weights.gate;
  StoredMatrix& to_up = bias ? weights.up_bias : weights.up;
  if (!order.halved) {
    const std::byte* const data = keep(fused);
    to_gate = {dtype_, width, cols, {data, place}, {}, width};
    to_up = {dtype_, width, cols, {data, up_place}, {}, width};
    return;
  }
  const auto middle = static_cast<std::ptrdiff_t>(fused.size() / 2);
  const std::byte* const first = keep({fused.begin(), fused.begin() + middle});
  const std::byte* const second = keep({fused.begin() + middle, fused.end()});
  const auto tail = [&](Placement at) {
    at.offset -= width * at.row_step;
    return at;
  };
  // Of `width` rows in the first half, every other one is the gate's, or all are where there is one block.
  const i64 head = k == width ? width : width / 2;
  to_gate = {dtype_, width, cols, {first, place}, {second, tail(place)}, head};
  to_up = {dtype_, width, cols, {first, up_place}, {second, tail(up_place)}, k == width ? 0 : width / 2};
}

MlpCall::MlpCall(const MlpShape& mlp_shape, std::vector<i64> token_splits, unsigned seed)
    : random(seed), shape(mlp_shape), splits(std::move(token_splits)), experts(random_experts(shape, random)) {
  for (const i64 split : splits) rows += split;
  x = random_values(static_cast<std::size_t>(rows * shape.hidden), 1, shape.dtype, random);
  for (const double p : random_values(static_cast<std::size_t>(rows), 0.5, shape.dtype, random))
    probs.push_back(static_cast<float>(p));
}

std::vector<double> stored_values(const StoredMatrix& matrix) {
  if (!matrix.is_there()) return {};
  std::vector<double> values;
  for (i64 r = 0; r < matrix.rows; ++r)
    for (i64 c = 0; c < matrix.cols; ++c) {
      const StoredMatrix::Part& part = r < matrix.tail_row ? matrix.first : matrix.tail;
      const Placement& place = part.place;
      const std::byte* const at = part.data + place.offset + r / place.block_rows * place.block_step +
                                  r % place.block_rows * place.row_step + c * place.col_step;
      values.push_back(to_doubles({at, bytes_of(matrix.dtype)}, matrix.dtype)[0]);
    }
  return values;
}

PlainExpert stored_values(const ExpertWeights& expert) {
  return {stored_values(expert.gate),      stored_values(expert.up),      stored_values(expert.down),
          stored_values(expert.gate_bias), stored_values(expert.up_bias), stored_values(expert.down_bias)};
}

std::vector<PlainExpert> filled_like(const std::vector<PlainExpert>& experts, double value) {
  std::vector<PlainExpert> filled = experts;
  for (PlainExpert& expert : filled)
    for (std::vector<double>* const matrix :
         {&expert.gate, &expert.up, &expert.down, &expert.gate_bias, &expert.up_bias, &expert.down_bias})
      std::fill(matrix->begin(), matrix->end(), value);
  return filled;
}

namespace {

PlainActivation plain_of(const Activation& activation) {
  return {std::string(to_string(activation.kind)), activation.alpha, activation.limit, activation.offset};
}

}  // namespace

PlainGrads MlpCall::expected_grads(const std::vector<double>& dout) const {
  PlainGrads grads{{}, {}, filled_like(experts, 0)};
  const PlainActivation plain = plain_of(shape.activation);
  i64 row = 0;
  const auto of_row = [&](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + row * shape.hidden, all.begin() + (row + 1) * shape.hidden);
  };
  for (std::size_t e = 0; e < splits.size(); ++e)
    for (i64 t = 0; t < splits[e]; ++t, ++row) {
      const PlainTokenGrads token = add_plain_grads(experts[e], plain, of_row(x), probs[static_cast<std::size_t>(row)],
                                                    of_row(dout), grads.experts[e]);
      grads.dx.insert(grads.dx.end(), token.dx.begin(), token.dx.end());
      grads.dprobs.push_back(token.dp);
    }
  return grads;
}

std::vector<double> MlpCall::expected() const {
  const PlainActivation plain = plain_of(shape.activation);
  std::vector<double> out;
  i64 row = 0;
  for (std::size_t e = 0; e < splits.size(); ++e)
    for (i64 t = 0; t < splits[e]; ++t, ++row) {
      const auto begin = x.begin() + row * shape.hidden;
      const auto y = plain_mlp(experts[e], plain, {begin, begin + shape.hidden}, probs[static_cast<std::size_t>(row)]);
      out.insert(out.end(), y.begin(), y.end());
    }
  return out;
}

double rms(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return rms(difference) / rms(b);
}

}  // namespace glu_ckpt::support
