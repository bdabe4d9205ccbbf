#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "support/convert.hpp"
#include "support/mlp_cases.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

struct Call : MlpCall {
  using MlpCall::MlpCall;

  std::vector<std::byte> run(const Fc1Order& order, Dtype compute, int jobs = 1) const {
    const StoredExperts stored(shape, experts, order);
    const std::vector<std::byte> bytes = to_bytes(x, compute);
    std::vector<std::byte> out(bytes.size());
    grouped_mlp_host({shape.hidden, compute, shape.activation, stored.experts()}, bytes.data(), rows, splits,
                     probs.data(), out.data(), jobs);
    return out;
  }
};

const Fc1Order kSplit{"split", 0, false, false};

TEST(CpuForward, AgreesWithTheFormulasInDouble) {
  // In fp32: rounding of sums of some tens of terms. Else: five roundings to 8 or 11 bits on the way, of which each
  // is off by at most half a unit and 0.3 units in the mean.
  const auto bound = [](Dtype compute) {
    return compute == Dtype::F32 ? 1e-6 : 2 * std::ldexp(1.0, compute == Dtype::BF16 ? -8 : -11);
  };
  unsigned seed = 1;
  for (const ActivationKind kind : kActivationKinds)
    for (const Dtype dtype : kFloatDtypes)
      for (const bool bias : {false, true})
        for (const Dtype compute : {dtype, Dtype::F32}) {
          const Call call({37, {24, 9, 16, 33}, dtype, some_activation(kind), bias}, {3, 0, 5, 1}, seed++);
          SCOPED_TRACE(std::string(to_string(kind)) + " " + std::string(dtype_name(dtype)) + " in " +
                       std::string(dtype_name(compute)) + (bias ? ", biases" : ""));
          const double off = distance(to_doubles(call.run(kSplit, compute), compute), call.expected());
          EXPECT_LT(off, bound(compute));
          // Rounded to the compute dtype somewhere, too.
          EXPECT_GT(off, compute == Dtype::F32 ? 0 : bound(compute) / 100);
        }
}

TEST(CpuForward, EveryLayoutGivesTheSameBits) {
  unsigned seed = 100;
  for (const i64 width : {i64{1}, i64{6}, i64{24}, i64{40}})
    for (const Dtype dtype : kFloatDtypes)
      for (const bool bias : {false, true}) {
        const Call call(
            {width == 6 ? 16 : 21, {width, width, width}, dtype, some_activation(ActivationKind::Swiglu), bias},
            {2, 0, 7}, seed++);
        for (const Dtype compute : {dtype, Dtype::F32}) {
          const auto expected = call.run(kSplit, compute);
          for (const Fc1Order& order : fc1_orders(width))
            EXPECT_EQ(call.run(order, compute), expected) << order.name << ", F " << width;
        }
      }
}

TEST(CpuForward, AWrongOrderGivesOtherBits) {
  const Call call({16, {8, 8}, Dtype::BF16, {}, false}, {2, 2}, 7);
  const StoredExperts stored(call.shape, call.experts, {"interleaved:2", 2, false, false});
  std::vector<ExpertWeights> wrong = stored.experts();
  for (ExpertWeights& expert : wrong)
    for (StoredMatrix* const matrix : {&expert.gate, &expert.up}) {
      const i64 row_step = matrix->first.place.row_step;
      matrix->first.place = {matrix == &expert.up ? 8 * row_step : 0, 8, 16 * row_step, row_step, 2};
    }
  const auto x = to_bytes(call.x, Dtype::BF16);
  std::vector<std::byte> out(x.size());
  grouped_mlp_host({16, Dtype::BF16, {}, wrong}, x.data(), call.rows, call.splits, call.probs.data(), out.data(), 1);
  EXPECT_NE(out, call.run(kSplit, Dtype::BF16));
}

TEST(CpuForward, NeitherThreadsNorOtherTokensChangeABit) {
  const Call call({48, {40, 40, 40, 40}, Dtype::BF16, {}, true}, {9, 1, 0, 6}, 11);
  const auto together = call.run(kSplit, Dtype::BF16);
  EXPECT_EQ(call.run(kSplit, Dtype::BF16, 5), together);
  const StoredExperts stored(call.shape, call.experts, kSplit);
  const auto x = to_bytes(call.x, Dtype::BF16);
  const i64 row_bytes = 48 * 2;
  i64 row = 0;
  for (std::size_t e = 0; e < 4; ++e)
    for (i64 t = 0; t < call.splits[e]; ++t, ++row) {
      std::vector<i64> one(4, 0);
      one[e] = 1;
      std::vector<std::byte> out(static_cast<std::size_t>(row_bytes));
      grouped_mlp_host({48, Dtype::BF16, {}, stored.experts()}, x.data() + row * row_bytes, 1, one,
                       call.probs.data() + row, out.data(), 1);
      EXPECT_EQ(std::memcmp(out.data(), together.data() + row * row_bytes, out.size()), 0) << "row " << row;
    }
}

TEST(CpuForward, RowsPastTheLastSplitKeepWhatTheyHold) {
  const Call call({8, {8, 8}, Dtype::F32, {}, false}, {2, 3}, 13);
  const StoredExperts stored(call.shape, call.experts, kSplit);
  const auto x = to_bytes(call.x, Dtype::F32);
  std::vector<std::byte> out(x.size(), std::byte{0xa5});
  const std::vector<i64> splits{1, 0};
  grouped_mlp_host({8, Dtype::F32, {}, stored.experts()}, x.data(), call.rows, splits, call.probs.data(), out.data(),
                   2);
  for (std::size_t i = 8 * 4; i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0xa5}) << "byte " << i;
  EXPECT_NE(out[0], std::byte{0xa5});
  const std::vector<i64> none{0, 0};
  grouped_mlp_host({8, Dtype::F32, {}, stored.experts()}, nullptr, 0, none, nullptr, nullptr, 2);
}

/// The documented sum and rounding points, one scalar operation at a time, in bf16 with biases.
TEST(CpuForward, IsTheDocumentedSequenceOfRoundings) {
  Call call({37, {21}, Dtype::BF16, {ActivationKind::Reglu, 0, 0, 0}, true}, {3}, 17);
  call.probs = {0.333333F, 1.2345678F, -0.7071068F};  // bf16 has none of them
  const auto to_bf16 = [](float value) {
    return static_cast<float>(to_doubles(to_bytes({value}, Dtype::BF16), Dtype::BF16)[0]);
  };
  const auto dot = [](const double* w, const std::vector<float>& v) {
    volatile float lanes[16] = {};
    for (std::size_t k = 0; k < v.size(); ++k) {
      const volatile float product = static_cast<float>(w[k]) * v[k];
      lanes[k % 16] = lanes[k % 16] + product;
    }
    for (int half = 8; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
    return static_cast<float>(lanes[0]);
  };
  const PlainExpert& expert = call.experts[0];
  std::vector<double> expected;
  for (std::size_t t = 0; t < 3; ++t) {
    const std::vector<float> x(call.x.begin() + static_cast<std::ptrdiff_t>(t * 37),
                               call.x.begin() + static_cast<std::ptrdiff_t>(t * 37 + 37));
    std::vector<float> middle;
    for (std::size_t f = 0; f < 21; ++f) {
      const float a = to_bf16(dot(&expert.gate[f * 37], x) + static_cast<float>(expert.gate_bias[f]));
      const float u = to_bf16(dot(&expert.up[f * 37], x) + static_cast<float>(expert.up_bias[f]));
      const float act = (a < 0 ? 0 : a) * u;
      middle.push_back(to_bf16(act * to_bf16(call.probs[t])));
    }
    for (std::size_t h = 0; h < 37; ++h)
      expected.push_back(
          to_bf16(std::fma(static_cast<float>(expert.down_bias[h]), call.probs[t], dot(&expert.down[h * 21], middle))));
  }
  EXPECT_EQ(call.run(kSplit, Dtype::BF16), to_bytes(expected, Dtype::BF16));
}

TEST(CpuForward, NaNComesOutOfEveryActivation) {
  for (const ActivationKind kind : kActivationKinds)
    for (const bool in_gate : {true, false}) {
      const Activation activation = some_activation(kind);
      if (in_gate && !activation.is_gated()) continue;
      Call call({8, {4}, Dtype::F32, activation, false}, {1}, 19);
      (in_gate ? call.experts[0].gate : call.experts[0].up)[0] = std::nan("");
      for (const double value : to_doubles(call.run(kSplit, Dtype::F32), Dtype::F32))
        EXPECT_TRUE(std::isnan(value)) << to_string(kind) << (in_gate ? ", gate" : ", up");
    }
}

class CpuForwardRefuses : public ::testing::Test {
 protected:
  void expect(ErrorCode code, const std::string& word) {
    std::vector<std::byte> x(static_cast<std::size_t>(rows * 8 * 4));
    std::vector<std::byte> out(x.size(), std::byte{0x5a});
    const std::vector<float> probs(static_cast<std::size_t>(rows));
    expect_error(
        code,
        [&] {
          grouped_mlp_host({hidden, compute, activation, experts}, x.data(), rows, splits, probs.data(), out.data(), 1);
        },
        word);
    EXPECT_EQ(out, std::vector<std::byte>(x.size(), std::byte{0x5a}));
  }

  const Call call{{8, {4, 4}, Dtype::BF16, {}, true}, {2, 2}, 23};
  const StoredExperts stored{call.shape, call.experts, kSplit};
  std::vector<ExpertWeights> experts = stored.experts();
  std::vector<i64> splits{2, 2};
  Activation activation;
  Dtype compute = Dtype::BF16;
  i64 rows = 4;
  i64 hidden = 8;
};

TEST_F(CpuForwardRefuses, Splits) {
  splits = {2, -1};
  expect(ErrorCode::Usage, "split 1 is -1");
  splits = {2, 3};
  expect(ErrorCode::Usage, "2 + 3 rows; there are 4");
  splits = {1, std::numeric_limits<i64>::max()};
  expect(ErrorCode::Usage, "there are 4");
  splits = {2};
  expect(ErrorCode::Usage, "1 splits for 2 experts");
}

TEST_F(CpuForwardRefuses, Shapes) {
  experts[1].down.cols = 5;
  expect(ErrorCode::Usage, "expert 1, down: [8, 5], expected [8, 4]");
  experts = stored.experts();
  experts[0].gate.rows = 3;
  expect(ErrorCode::Usage, "expert 0, gate: [3, 8], expected [4, 8]");
  experts = stored.experts();
  experts[0].up_bias.rows = 5;
  expect(ErrorCode::Usage, "expert 0, up bias: [5, 1], expected [4, 1]");
  experts = stored.experts();
  experts[0].gate = {};
  expect(ErrorCode::Usage, "expert 0, gate: not there");
  experts = stored.experts();
  hidden = 9;
  expect(ErrorCode::Usage, "[4, 8], expected [4, 9]");
}

TEST_F(CpuForwardRefuses, BlocksThatDoNotDivideTheRows) {
  for (const i64 block_rows : {0, -1, 3}) {
    experts = stored.experts();
    experts[1].gate.first.place.block_rows = block_rows;
    expect(ErrorCode::Usage, "expert 1, gate: 4 rows in blocks of " + std::to_string(block_rows));
  }
}

TEST_F(CpuForwardRefuses, PartsThatAreNotThere) {
  experts[0].up.tail = experts[0].up.first;
  experts[0].up.tail_row = 2;
  experts[0].up.first = {};
  expect(ErrorCode::Usage, "expert 0, up: 4 rows whose tail begins at 2, and no first rows");
  experts = stored.experts();
  experts[0].up.tail_row = 2;
  expect(ErrorCode::Usage, "expert 0, up: 4 rows whose tail begins at 2");
  experts[0].up.tail_row = 5;
  expect(ErrorCode::Usage, "expert 0, up: 4 rows whose tail begins at 5");
  experts = stored.experts();
  experts[0].up.tail = experts[0].up.first;
  experts[0].up.tail.place.block_rows = 3;
  experts[0].up.tail_row = 2;
  expect(ErrorCode::Usage, "expert 0, up: 4 rows in blocks of 3");
}

TEST_F(CpuForwardRefuses, DtypesAndConstants) {
  compute = Dtype::F16;
  expect(ErrorCode::NotSupported, "BF16, but the computation is in F16");
  compute = Dtype::F64;
  expect(ErrorCode::NotSupported, "compute dtype F64");
  compute = Dtype::BF16;
  experts[1].up.dtype = Dtype::F8_E4M3;
  expect(ErrorCode::NotSupported, "F8_E4M3");
  experts = stored.experts();
  activation = {ActivationKind::SquaredRelu};
  expect(ErrorCode::Usage, "squared_relu takes no gate");
  activation = {ActivationKind::ClampedSwiglu, 1, 0, 0};
  expect(ErrorCode::Usage, "limit 0");
  activation = {ActivationKind::QuickGeglu, std::numeric_limits<float>::infinity(), 7, 0};
  expect(ErrorCode::Usage, "alpha inf");
  activation = {ActivationKind::SituGlu, 0, 25, 0};
  expect(ErrorCode::Usage, "alpha 0, the gate's bound");
  activation = {ActivationKind::SituGlu, 4, std::numeric_limits<float>::infinity(), 0};
  expect(ErrorCode::Usage, "limit inf");
}

}  // namespace
}  // namespace glu_ckpt
