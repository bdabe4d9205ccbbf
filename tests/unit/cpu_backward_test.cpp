#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_rows.hpp"
#include "forward/activation.hpp"
#include "glu_ckpt/ops/grouped_mlp_backward.hpp"
#include "support/convert.hpp"
#include "support/mlp_cases.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

const Fc1Order kOneTensorEach{"split", 0, false, false};

/// How a backward is run.
struct Choices {
  Dtype compute = Dtype::F32;
  Dtype grad = Dtype::F32;
  /// Of the weights and of their gradients.
  Fc1Order order = kOneTensorEach;
  Fc1Order grad_order = kOneTensorEach;
  /// What gradients hold before.
  double held = 3;
  bool accumulate = false;
  bool save_z = false;
  int jobs = 1;
  /// Rows behind the last split.
  i64 tail_rows = 0;
};

struct Results {
  std::vector<std::byte> dx;
  std::vector<float> dprobs;
  std::vector<PlainExpert> experts;
};

struct BackwardCall : MlpCall {
  BackwardCall(const MlpShape& mlp_shape, std::vector<i64> token_splits, unsigned seed)
      : MlpCall(mlp_shape, std::move(token_splits), seed),
        dout(random_values(static_cast<std::size_t>(rows * shape.hidden), 1, shape.dtype, random)) {}

  Results run(const Choices& choices) const {
    const StoredExperts stored(shape, experts, choices.order);
    MlpShape grad_shape = shape;
    grad_shape.dtype = choices.grad;
    const StoredExperts grads(grad_shape, filled_like(experts, choices.held), choices.grad_order);
    const GroupedMlp mlp{shape.hidden, choices.compute, shape.activation, stored.experts()};
    const i64 all_rows = rows + choices.tail_rows;
    const auto padded = [&](std::vector<double> values) {
      values.resize(static_cast<std::size_t>(all_rows * shape.hidden), std::nan(""));
      return to_bytes(values, choices.compute);
    };
    const auto bytes = padded(x), dout_bytes = padded(dout);
    std::vector<float> all_probs = probs;
    all_probs.resize(static_cast<std::size_t>(all_rows), std::nanf(""));
    const std::size_t z_halves = shape.activation.is_gated() ? 2 : 1;
    std::vector<std::byte> z(static_cast<std::size_t>(all_rows * shape.widths[0]) * 4 * z_halves), out(bytes.size());
    if (choices.save_z)
      grouped_mlp_host(mlp, bytes.data(), all_rows, splits, all_probs.data(), out.data(), 1, z.data());
    Results results{std::vector<std::byte>(bytes.size(), std::byte{0xa5}),
                    std::vector<float>(static_cast<std::size_t>(all_rows), -77),
                    {}};
    grouped_mlp_backward_host({mlp, grads.experts(), choices.accumulate, choices.accumulate},
                              {all_rows, bytes.data(), all_probs.data(), dout_bytes.data(),
                               choices.save_z ? z.data() : nullptr, results.dx.data(), results.dprobs.data()},
                              splits, choices.jobs);
    for (const ExpertWeights& expert : grads.experts()) results.experts.push_back(stored_values(expert));
    return results;
  }

  std::vector<double> dout;
};

void expect_equal(const Results& got, const Results& want, const std::string& what) {
  EXPECT_EQ(got.dx, want.dx) << what;
  EXPECT_EQ(got.dprobs, want.dprobs) << what;
  for (std::size_t e = 0; e < want.experts.size(); ++e)
    for_each_matrix(got.experts[e], want.experts[e], [&](const char* name, const auto& a, const auto& b) {
      EXPECT_EQ(a, b) << what << ": expert " << e << ", " << name;
    });
}

void expect_close(const Results& got, const PlainGrads& want, Dtype compute, double bound) {
  EXPECT_LT(distance(to_doubles(got.dx, compute), want.dx), bound) << "dx";
  EXPECT_LT(distance({got.dprobs.begin(), got.dprobs.end()}, want.dprobs), bound) << "dprobs";
  for (std::size_t e = 0; e < want.experts.size(); ++e)
    for_each_matrix(got.experts[e], want.experts[e], [&](const char* name, const auto& a, const auto& b) {
      ASSERT_EQ(a.size(), b.size()) << name;
      if (rms(b) > 0) {
        EXPECT_LT(distance(a, b), bound) << "expert " << e << ", " << name;
      } else {
        EXPECT_EQ(a, b) << "expert " << e << ", " << name;
      }
    });
}

/// The judge of the other tests: derivatives of the whole MLP in double, each parameter moved a little by itself.
TEST(CpuBackward, GradientsAreFiniteDifferencesOfTheForwardInDouble) {
  unsigned seed = 1;
  for (const ActivationKind kind : kActivationKinds) {
    BackwardCall call({5, {4, 4}, Dtype::F32, some_activation(kind), true}, {2, 1}, seed++);
    const Results got = call.run({});
    const auto loss = [&] {
      const std::vector<double> out = call.expected();
      double sum = 0;
      for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * call.dout[i];
      return sum;
    };
    const auto check = [&](const std::string& what, double& at, double grad) {
      constexpr double kStep = 1e-5;
      const double value = at;
      at = value + kStep;
      const double above = loss();
      at = value - kStep;
      const double below = loss();
      at = value;
      EXPECT_NEAR((above - below) / (2 * kStep), grad, 2e-5) << to_string(kind) << ", " << what;
    };
    const std::vector<double> dx = to_doubles(got.dx, Dtype::F32);
    for (std::size_t i = 0; i < dx.size(); ++i) check("dx", call.x[i], dx[i]);
    for (std::size_t t = 0; t < call.probs.size(); ++t) {
      // Probabilities are floats: a step that they have.
      const float value = call.probs[t];
      call.probs[t] = value + 0x1p-10F;
      const double above = loss();
      call.probs[t] = value - 0x1p-10F;
      EXPECT_NEAR((above - loss()) * 0x1p9, static_cast<double>(got.dprobs[t]), 2e-5) << to_string(kind);
      call.probs[t] = value;
    }
    for (std::size_t e = 0; e < 2; ++e)
      for_each_matrix(call.experts[e], got.experts[e], [&](const char* name, const auto& values, const auto& grads) {
        for (std::size_t i = 0; i < values.size(); ++i)
          check(std::string(name) + " " + std::to_string(i), const_cast<double&>(values[i]), grads[i]);
      });
  }
}

TEST(CpuBackward, AgreesWithTheFormulasInDouble) {
  // In fp32: rounding of sums of some tens of terms. Else: da, du and y have 8 or 11 bits, and so has dx.
  const auto bound = [](Dtype compute) {
    return compute == Dtype::F32 ? 2e-6 : 3 * std::ldexp(1.0, compute == Dtype::BF16 ? -8 : -11);
  };
  unsigned seed = 50;
  for (const ActivationKind kind : kActivationKinds)
    for (const Dtype dtype : kFloatDtypes)
      for (const bool bias : {false, true}) {
        const BackwardCall call({37, {24, 24, 24, 24}, dtype, some_activation(kind), bias}, {3, 0, 20, 1}, seed++);
        SCOPED_TRACE(std::string(to_string(kind)) + " " + std::string(dtype_name(dtype)) + (bias ? ", biases" : ""));
        // A probability and a z next to a limit can fall on either side of it once they are rounded.
        const bool jumps =
            dtype != Dtype::F32 && (kind == ActivationKind::ClampedSwiglu ||
                                    kind == ActivationKind::ClampedQuickGeglu || kind == ActivationKind::Reglu);
        const double factor = jumps ? 8 : 1;
        expect_close(call.run({.compute = dtype, .grad = dtype}), call.expected_grads(call.dout), dtype,
                     factor * bound(dtype));
        expect_close(call.run({.compute = dtype, .grad = Dtype::F32}), call.expected_grads(call.dout), dtype,
                     factor * bound(dtype));
      }
}

TEST(CpuBackward, EveryLayoutGivesTheSameBits) {
  unsigned seed = 100;
  for (const i64 width : {i64{1}, i64{6}, i64{24}})
    for (const Dtype dtype : kFloatDtypes) {
      const BackwardCall call({21, {width, width, width}, dtype, {}, width == 6}, {2, 0, 7}, seed++);
      const Choices plain{.compute = dtype, .grad = dtype};
      const Results expected = call.run(plain);
      for (const Fc1Order& order : fc1_orders(width)) {
        Choices choices = plain;
        choices.order = order;
        expect_equal(call.run(choices), expected, "weights " + order.name);
        choices.grad_order = order;
        expect_equal(call.run(choices), expected, "weights and gradients " + order.name);
      }
    }
}

TEST(CpuBackward, SavedAndRecomputedPreActivationsGiveTheSameBits) {
  unsigned seed = 200;
  for (const ActivationKind kind : {ActivationKind::Swiglu, ActivationKind::SquaredRelu})
    for (const Dtype dtype : kFloatDtypes) {
      const BackwardCall call({19, {10, 10}, dtype, some_activation(kind), true}, {4, 9}, seed++);
      Choices choices{.compute = dtype, .grad = dtype};
      const Results expected = call.run(choices);
      choices.save_z = true;
      choices.order = {"interleaved:2", 2, false, false};
      expect_equal(call.run(choices), expected, std::string(dtype_name(dtype)));
    }
}

TEST(CpuBackward, AccumulationAddsTheOldValueLast) {
  for (const Dtype grad : {Dtype::BF16, Dtype::F32}) {
    const BackwardCall call({9, {8, 8, 8}, Dtype::BF16, {}, true}, {3, 0, 40}, 300);
    // 1/3 has no end in binary, and the sum is rounded once: to bf16 after the addition.
    Choices choices{.compute = Dtype::BF16, .grad = Dtype::F32, .held = 1.0 / 3};
    const Results fresh = call.run(choices);
    choices.grad = grad;
    choices.accumulate = true;
    const Results added = call.run(choices);
    EXPECT_EQ(added.dx, fresh.dx);
    for (std::size_t e = 0; e < 3; ++e)
      for_each_matrix(added.experts[e], fresh.experts[e], [&](const char* name, const auto& got, const auto& sums) {
        const float held = round_to(static_cast<float>(choices.held), grad);
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_EQ(static_cast<float>(got[i]), round_to(static_cast<float>(sums[i]) + held, grad)) << name << " " << i;
      });
  }
}

TEST(CpuBackward, ExpertsWithoutTokensGetZerosOrKeepWhatTheyHold) {
  const BackwardCall call({9, {8, 8}, Dtype::F32, {}, true}, {0, 5}, 310);
  for (const bool accumulate : {false, true}) {
    const Results got = call.run({.held = -7, .accumulate = accumulate});
    for_each_matrix(got.experts[0], got.experts[0], [&](const char* name, const auto& values, const auto&) {
      for (const double value : values) ASSERT_EQ(value, accumulate ? -7 : 0) << name;
    });
  }
}

TEST(CpuBackward, RowsPastTheLastSplitAreNeitherReadNorWritten) {
  const BackwardCall call({9, {8, 8}, Dtype::BF16, {}, true}, {2, 5}, 320);
  Choices choices{.compute = Dtype::BF16};
  const Results expected = call.run(choices);
  for (const bool save_z : {false, true}) {
    choices.tail_rows = 3;
    choices.save_z = save_z;
    Results got = call.run(choices);
    const std::size_t used = expected.dx.size();
    for (std::size_t i = used; i < got.dx.size(); ++i) ASSERT_EQ(got.dx[i], std::byte{0xa5}) << "byte " << i;
    for (std::size_t t = 7; t < 10; ++t) ASSERT_EQ(got.dprobs[t], -77);
    got.dx.resize(used);
    got.dprobs.resize(7);
    expect_equal(got, expected, "tail");
  }
}

TEST(CpuBackward, PaddedTokensWithProbabilityZeroChangeNothingButTheOrder) {
  const BackwardCall call({9, {8, 8}, Dtype::F32, {}, true}, {3, 5}, 330);
  BackwardCall padded = call;
  padded.splits = {16, 16};
  padded.rows = 32;
  const auto pad = [&](auto& values, std::size_t each) {
    std::remove_reference_t<decltype(values)> rows(32 * each);
    std::copy_n(values.begin(), 3 * each, rows.begin());
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(3 * each), 5 * each,
                rows.begin() + static_cast<std::ptrdiff_t>(16 * each));
    values = rows;
  };
  pad(padded.x, 9);
  pad(padded.dout, 9);
  pad(padded.probs, 1);
  const Results got = padded.run({}), want = call.run({});
  for (std::size_t e = 0; e < 2; ++e)
    for_each_matrix(got.experts[e], want.experts[e],
                    [&](const char* name, const auto& a, const auto& b) { EXPECT_LT(distance(a, b), 1e-6) << name; });
}

TEST(CpuBackward, NeitherThreadsNorRepetitionChangeABit) {
  const BackwardCall call({48, {40, 40}, Dtype::BF16, {}, true}, {9, 6}, 340);
  Choices choices{.compute = Dtype::BF16};
  const Results expected = call.run(choices);
  choices.jobs = 5;
  expect_equal(call.run(choices), expected, "5 threads");
}

TEST(CpuBackward, DerivativesAtBordersAndOfNaN) {
  const Activation clamped{ActivationKind::ClampedQuickGeglu, 1.3F, 2, 0.5F};
  EXPECT_NE(activation_grad(clamped, 2, 2).by_gate, 0);
  EXPECT_NE(activation_grad(clamped, 2, 2).by_linear, 0);
  EXPECT_NE(activation_grad(clamped, 2, -2).by_linear, 0);
  EXPECT_EQ(activation_grad(clamped, 2.01F, 2).by_gate, 0);
  EXPECT_EQ(activation_grad(clamped, 2, 2.01F).by_linear, 0);
  EXPECT_EQ(activation_grad(clamped, 2, -2.01F).by_linear, 0);
  EXPECT_EQ(activation_grad({ActivationKind::Reglu}, 0, 3).by_gate, 0);
  EXPECT_EQ(activation_grad({ActivationKind::SquaredRelu}, 0, -3).by_linear, 0);
  EXPECT_EQ(activation_grad({ActivationKind::SituGlu, 4, 25, 0}, 1, HUGE_VALF).by_linear, 0);
  EXPECT_EQ(activation_grad({ActivationKind::SituGlu, 4, 25, 0}, HUGE_VALF, 1).by_gate, 0);
  EXPECT_EQ(activation_grad({ActivationKind::SituGlu, 4, 25, 0}, 0, 5e-9F).by_gate, 0.5F * 5e-9F);
  for (const ActivationKind kind : kActivationKinds) {
    const ActivationGrad far = activation_grad({kind}, -3e38F, 1);
    EXPECT_TRUE(std::isfinite(far.by_gate) && std::isfinite(far.by_linear)) << to_string(kind);
    const float nan = std::nanf("");
    if (kind == ActivationKind::SquaredRelu) {
      EXPECT_TRUE(std::isnan(activation_grad({kind}, 1, nan).by_linear));
      continue;
    }
    EXPECT_TRUE(std::isnan(activation_grad({kind}, nan, 1).by_gate)) << to_string(kind);
    EXPECT_TRUE(std::isnan(activation_grad({kind}, nan, 1).by_linear)) << to_string(kind);
  }
}

class CpuBackwardRefuses : public ::testing::Test {
 protected:
  void expect(ErrorCode code, const std::string& word) {
    const MlpBackwardStep step{rows, x.data(), probs.data(), dout.data(), z, dx.data(), dprobs.data()};
    expect_error(
        code,
        [&] {
          grouped_mlp_backward_host({{8, Dtype::BF16, {}, experts}, grads, false, false}, step, splits, 1);
        },
        word);
    EXPECT_EQ(dx, std::vector<std::byte>(dx.size(), std::byte{0x5a}));
  }

  const BackwardCall call{{8, {4, 4}, Dtype::BF16, {}, true}, {2, 2}, 400};
  const StoredExperts stored{call.shape, call.experts, kOneTensorEach};
  const StoredExperts stored_grads{call.shape, call.experts, kOneTensorEach};
  std::vector<ExpertWeights> experts = stored.experts(), grads = stored_grads.experts();
  std::vector<std::byte> x = to_bytes(call.x, Dtype::BF16), dout = x;
  std::vector<std::byte> dx = std::vector<std::byte>(x.size() + 1, std::byte{0x5a});
  std::vector<float> probs = call.probs, dprobs = probs;
  std::vector<i64> splits{2, 2};
  const void* z = nullptr;
  i64 rows = 4;
};

TEST_F(CpuBackwardRefuses, Gradients) {
  grads[1].down.cols = 5;
  expect(ErrorCode::Usage, "expert 1, gradient of down: [8, 5], expected [8, 4]");
  grads = stored_grads.experts();
  grads[1].up_bias = {};
  expect(ErrorCode::Usage, "expert 1, gradient of up bias: not there");
  grads = stored_grads.experts();
  grads.pop_back();
  expect(ErrorCode::Usage, "gradients for 1 experts, of 2");
  grads = stored_grads.experts();
  grads[0].gate.dtype = Dtype::F16;
  expect(ErrorCode::NotSupported, "gradient of gate: F16; gradients are BF16 or F32");
  grads = stored_grads.experts();
  grads[0].gate.first.place.row_step = 0;
  expect(ErrorCode::Usage, "gradient of gate: steps of 0");
  grads = stored_grads.experts();
  grads[0].gate.first.place.offset = 1;
  expect(ErrorCode::Usage, "expert 0, gradient of gate: an address");
  grads = stored_grads.experts();
  grads[1].up.dtype = Dtype::F32;
  grads[1].up.first.place = {0, 4, 4 * 32, 32, 4};
  expect(ErrorCode::Usage, "expert 1, gradient of up: F32, but that of expert 0 is BF16");
}

TEST_F(CpuBackwardRefuses, ExpertsAndRows) {
  splits = {2, 3};
  expect(ErrorCode::Usage, "2 + 3 rows; there are 4");
  splits = {2, 2};
  experts[1].gate.rows = 3;
  expect(ErrorCode::Usage, "expert 1, gate: [3, 8], expected [4, 8]");
  experts = stored.experts();
  rows = -1;
  expect(ErrorCode::Usage, "-1 rows");
  rows = 4;
  z = dx.data() + 1;
  expect(ErrorCode::Usage, "z at");
}

class BackwardBuffersTest : public ::testing::Test {
 protected:
  MlpInputGrads run() {
    return grouped_mlp_backward_into(
        {{8, Dtype::BF16, {}, stored.experts()}, {}, false, false}, tensors,
        [&](i64 bytes, const std::string&) {
          made.emplace_back(static_cast<std::size_t>(bytes));
          return made.back().data();
        },
        1);
  }

  BackwardCall call{{8, {4, 4}, Dtype::BF16, {}, false}, {2, 2}, 500};
  const StoredExperts stored{call.shape, call.experts, kOneTensorEach};
  std::vector<std::byte> x = to_bytes(call.x, Dtype::BF16), dout = to_bytes(call.dout, Dtype::BF16);
  std::vector<std::byte> buffer = std::vector<std::byte>(x.size());
  std::vector<std::vector<std::byte>> made;
  TensorView out{buffer.data(), Dtype::BF16, {4, 8}, {}, "cpu", false};
  MlpBackwardTensors tensors{{{x.data(), Dtype::BF16, {4, 8}, {}, "cpu", false},
                              {reinterpret_cast<std::byte*>(call.splits.data()), Dtype::I64, {2}, {}, "cpu", false},
                              {reinterpret_cast<std::byte*>(call.probs.data()), Dtype::F32, {4}, {}, "cpu", false},
                              nullptr},
                             {dout.data(), Dtype::BF16, {4, 8}, {}, "cpu", false},
                             nullptr,
                             true,
                             true};
};

TEST_F(BackwardBuffersTest, TheCallersBufferGetsTheSameBits) {
  const MlpInputGrads own = run();
  EXPECT_EQ(own.dprobs.shape, std::vector<i64>{4});
  tensors.forward.out = &out;
  const MlpInputGrads given = run();
  EXPECT_EQ(given.dx.data, buffer.data());
  EXPECT_EQ(std::memcmp(own.dx.data, buffer.data(), buffer.size()), 0);
  EXPECT_EQ(std::memcmp(own.dprobs.data, given.dprobs.data, 16), 0);
  const Results expected = call.run({.compute = Dtype::BF16});
  EXPECT_EQ(buffer, expected.dx);
  tensors.want_dx = false;
  tensors.want_dprobs = false;
  EXPECT_EQ(run().dx.data, nullptr);
}

TEST_F(BackwardBuffersTest, WrongTensorsAreRefusedBeforeAnythingIsAllocated) {
  const auto expect = [&](const std::string& word) {
    expect_error(
        ErrorCode::Usage, [&] { run(); }, word);
    EXPECT_TRUE(made.empty());
  };
  tensors.forward.out = &out;
  out.shape = {8, 4};
  expect("output buffer: shape [8, 4], expected [4, 8]");
  out.shape = {4, 8};
  out.requires_grad = true;
  expect("requires a gradient");
  out.requires_grad = false;
  out.data = dout.data();
  expect("overlap the 64 of dout");
  out.data = buffer.data();
  tensors.dout.dtype = Dtype::F16;
  expect("dout: dtype F16, expected BF16");
  tensors.dout.dtype = Dtype::BF16;
  TensorView z{buffer.data(), Dtype::BF16, {4, 4}, {}, "cpu", false};
  tensors.z = &z;
  expect("z: shape [4, 4], expected [4, 8]");
}

}  // namespace
}  // namespace glu_ckpt
