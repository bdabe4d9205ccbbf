#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "core/float_rows.hpp"
#include "device_experts.hpp"
#include "glu_ckpt/ops/grouped_mlp_backward.hpp"
#include "kernels/mlp/layer_tiles.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

const Fc1Order kTensorEach{"split", 0, false, false};
/// Heights of the forward's tiles, rests of the backward's, and experts without rows.
const std::vector<i64> kManySplits[] = {{5, 0, 9, 1}, {70, 0, 129, 1}, {256, 64, 2, 0}, {600, 1, 0, 300}};

struct BackwardRun {
  Dtype compute = Dtype::BF16;
  Dtype grad = Dtype::BF16;
  Fc1Order order = kTensorEach;
  Fc1Order grad_order = kTensorEach;
  double held = 3;
  bool accumulate = false;
  bool save_z = false;
  /// Bytes that all rows' addresses are behind a multiple of 256.
  i64 shift = 0;
  i64 tail_rows = 0;
};

struct BackwardResults {
  std::vector<std::byte> dx;
  std::vector<float> dprobs;
  std::vector<PlainExpert> experts;
};

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// One call's tensors and object, for several runs.
class BackwardFixture {
 public:
  BackwardFixture(const MlpCall& call, const std::vector<double>& dout, const BackwardRun& run)
      : run_(run),
        rows_(call.rows + run.tail_rows),
        stored_(call.shape, call.experts, run.order),
        weights_(stored_, 0),
        grad_shape_(grads_of(call.shape, run.grad)),
        stored_grads_(grad_shape_, filled_like(call.experts, run.held), run.grad_order),
        grads_(stored_grads_, 0),
        x_(padded(call.x, call.shape.hidden), run.shift),
        dout_(padded(dout, call.shape.hidden), run.shift),
        probs_(padded_probs(call.probs)),
        splits_(call.splits),
        dx_(x_.bytes(), run.shift),
        dprobs_(rows_ * static_cast<i64>(sizeof(float))),
        z_(rows_ * call.shape.widths[0] * (call.shape.activation.is_gated() ? 2 : 1) * dtype_bits(run.compute) / 8,
           run.shift),
        mlp_{call.shape.hidden, run.compute, call.shape.activation, weights_.experts()},
        backward_({mlp_, grads_.experts(), run.accumulate, run.accumulate}, nullptr),
        workspace_(backward_.workspace_bytes(rows_, !run.save_z)) {
    if (!run.save_z) return;
    const GuardedArray out(x_.bytes());
    const DeviceGroupedMlp forward(mlp_, rows_, nullptr);
    forward.run(x_.data(), rows_, splits(), probs(), out.data(), nullptr, z_.data());
  }

  const i64* splits() const { return reinterpret_cast<const i64*>(splits_.data()); }
  const float* probs() const { return reinterpret_cast<const float*>(probs_.data()); }
  void upload_splits(const std::vector<i64>& splits) { splits_.upload(splits); }

  MlpBackwardStep step() const {
    return {rows_,
            x_.data(),
            probs(),
            dout_.data(),
            run_.save_z ? z_.data() : nullptr,
            dx_.data(),
            reinterpret_cast<float*>(dprobs_.data())};
  }
  void run(GpuStream stream) const { backward_.run(step(), splits(), workspace_.data(), stream); }
  const DeviceGroupedMlpBackward& backward() const { return backward_; }
  void* workspace() const { return workspace_.data(); }

  BackwardResults results() const {
    EXPECT_TRUE(z_.guards_intact() && dx_.guards_intact() && dprobs_.guards_intact() && grads_.guards_intact() &&
                workspace_.guards_intact() && weights_.guards_intact());
    return {dx_.download(), floats_of(dprobs_.download()), grads_.download(stored_grads_)};
  }
  void poison() const {
    for (const GuardedArray* const array : {&dx_, &dprobs_, &workspace_})
      CUDA_CHECK(cudaMemset(array->data(), 0x5a, static_cast<std::size_t>(array->bytes())));
    CUDA_CHECK(cudaDeviceSynchronize());
  }

 private:
  static MlpShape grads_of(MlpShape shape, Dtype dtype) {
    shape.dtype = dtype;
    return shape;
  }
  std::vector<std::byte> padded(std::vector<double> values, i64 hidden) const {
    values.resize(static_cast<std::size_t>(rows_ * hidden), std::nan(""));
    return to_bytes(values, run_.compute);
  }
  std::vector<float> padded_probs(std::vector<float> probs) const {
    probs.resize(static_cast<std::size_t>(rows_), std::nanf(""));
    return probs;
  }

  BackwardRun run_;
  i64 rows_;
  StoredExperts stored_;
  DeviceExperts weights_;
  MlpShape grad_shape_;
  StoredExperts stored_grads_;
  DeviceExperts grads_;
  GuardedArray x_, dout_, probs_, splits_, dx_, dprobs_, z_;
  GroupedMlp mlp_;
  DeviceGroupedMlpBackward backward_;
  GuardedArray workspace_;
};

struct DeviceBackwardCall : MlpCall {
  DeviceBackwardCall(const MlpShape& mlp_shape, std::vector<i64> token_splits, unsigned seed)
      : MlpCall(mlp_shape, std::move(token_splits), seed),
        dout(random_values(static_cast<std::size_t>(rows * shape.hidden), 1, shape.dtype, random)) {}

  BackwardResults run(const BackwardRun& how) const {
    const BackwardFixture fixture(*this, dout, how);
    fixture.run(nullptr);
    fixture.backward().check_splits(nullptr);
    return fixture.results();
  }

  /// The CPU's.
  BackwardResults host(const BackwardRun& how) const {
    const StoredExperts stored(shape, experts, kTensorEach);
    MlpShape grad_shape = shape;
    grad_shape.dtype = how.grad;
    const StoredExperts grads(grad_shape, filled_like(experts, how.held), kTensorEach);
    const auto bytes = to_bytes(x, how.compute), dout_bytes = to_bytes(dout, how.compute);
    BackwardResults results{std::vector<std::byte>(bytes.size()), std::vector<float>(probs.size()), {}};
    grouped_mlp_backward_host(
        {{shape.hidden, how.compute, shape.activation, stored.experts()},
         grads.experts(),
         how.accumulate,
         how.accumulate},
        {rows, bytes.data(), probs.data(), dout_bytes.data(), nullptr, results.dx.data(), results.dprobs.data()},
        splits, 8);
    for (const ExpertWeights& expert : grads.experts()) results.experts.push_back(stored_values(expert));
    return results;
  }

  std::vector<double> dout;
};

MlpShape backward_shape(i64 hidden, i64 width, Dtype dtype, ActivationKind kind, bool bias, std::size_t experts = 4) {
  return {hidden, std::vector<i64>(experts, width), dtype, some_activation(kind), bias};
}

void expect_equal(const BackwardResults& got, const BackwardResults& want, const std::string& what) {
  EXPECT_EQ(got.dx, want.dx) << what;
  EXPECT_EQ(got.dprobs, want.dprobs) << what;
  for (std::size_t e = 0; e < want.experts.size(); ++e)
    for_each_matrix(got.experts[e], want.experts[e], [&](const char* name, const auto& a, const auto& b) {
      EXPECT_EQ(a, b) << what << ": expert " << e << ", " << name;
    });
}

void expect_close(const BackwardResults& got, const std::vector<double>& dx, const std::vector<double>& dprobs,
                  const std::vector<PlainExpert>& experts, Dtype compute, double bound) {
  EXPECT_LT(distance(to_doubles(got.dx, compute), dx), bound) << "dx";
  EXPECT_LT(distance({got.dprobs.begin(), got.dprobs.end()}, dprobs), bound) << "dprobs";
  for (std::size_t e = 0; e < experts.size(); ++e)
    for_each_matrix(got.experts[e], experts[e], [&](const char* name, const auto& a, const auto& b) {
      ASSERT_EQ(a.size(), b.size()) << name;
      if (rms(b) > 0) {
        EXPECT_LT(distance(a, b), bound) << "expert " << e << ", " << name;
      } else {
        EXPECT_EQ(a, b) << "expert " << e << ", " << name;
      }
    });
}

void expect_close(const BackwardResults& got, const BackwardResults& want, Dtype compute, double bound) {
  expect_close(got, to_doubles(want.dx, compute), {want.dprobs.begin(), want.dprobs.end()}, want.experts, compute,
               bound);
}

double backward_bound(Dtype compute) {
  return compute == Dtype::F32 ? 2e-6 : 3 * std::ldexp(1.0, compute == Dtype::BF16 ? -8 : -11);
}

TEST(DeviceBackward, EveryActivationAgreesWithTheFormulasInDouble) {
  unsigned seed = 1;
  for (const ActivationKind kind : kActivationKinds)
    for (const Dtype dtype : kFloatDtypes)
      for (const bool bias : {false, true}) {
        const DeviceBackwardCall call(backward_shape(40, 24, dtype, kind, bias), {3, 0, 20, 1}, seed++);
        SCOPED_TRACE(std::string(to_string(kind)) + " " + std::string(dtype_name(dtype)) + (bias ? ", biases" : ""));
        // A z next to a limit can fall on either side of it once it is rounded: one of some hundred values jumps.
        const bool jumps =
            dtype != Dtype::F32 && (kind == ActivationKind::ClampedSwiglu ||
                                    kind == ActivationKind::ClampedQuickGeglu || kind == ActivationKind::Reglu);
        const PlainGrads expected = call.expected_grads(call.dout);
        for (const Dtype grad : {dtype, Dtype::F32})
          expect_close(call.run({.compute = dtype, .grad = grad}), expected.dx, expected.dprobs, expected.experts,
                       dtype, jumps ? 0.1 : backward_bound(dtype));
      }
}

/// Splits by their number in kManySplits, and a dtype: each a test of its own, for racecheck takes minutes for all.
class BackwardOfSplits : public testing::TestWithParam<std::tuple<int, Dtype>> {};

TEST_P(BackwardOfSplits, TilesAndTheirRestsAgreeWithTheCpu) {
  const auto [number, dtype] = GetParam();
  unsigned seed = 200 + 16 * static_cast<unsigned>(number);
  for (const ActivationKind kind : {ActivationKind::Swiglu, ActivationKind::SquaredRelu})
    for (const bool bias : {false, true}) {
      // More than a tile of columns, and rests of tiles, of squares and of steps.
      const DeviceBackwardCall call(backward_shape(328, 296, dtype, kind, bias), kManySplits[number], seed++);
      SCOPED_TRACE(std::string(to_string(kind)) + (bias ? ", biases" : ""));
      for (const Dtype grad : {dtype, Dtype::F32}) {
        const BackwardRun run{.compute = dtype, .grad = grad, .save_z = bias};
        expect_close(call.run(run), call.host(run), dtype, backward_bound(dtype));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Device, BackwardOfSplits,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kManySplits))),
                                          testing::ValuesIn(kFloatDtypes)),
                         [](const testing::TestParamInfo<BackwardOfSplits::ParamType>& test) {
                           return "splits" + std::to_string(std::get<0>(test.param)) + "_" +
                                  std::string(dtype_name(std::get<1>(test.param)));
                         });

/// Clusters take their second and third tiles from a counter, which each of the two products has for itself.
TEST(DeviceBackward, MoreTilesThanClustersAgreeWithTheCpu) {
  int multiprocessors = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  const i64 clusters = multiprocessors / 2;
  // In six heights, two and a half times as many tiles as there are clusters, of the derivative and of the input.
  // The last one of the input has more than half of its columns.
  const i64 many = clusters * 5 / 12 * kInputGradCols + 136;
  for (const auto& [hidden, width] : {std::pair{i64{40}, many}, std::pair{many, i64{40}}}) {
    const DeviceBackwardCall call(backward_shape(hidden, width, Dtype::BF16, ActivationKind::Swiglu, false),
                                  {300, 0, 700, 1}, 247);
    const BackwardRun run{.save_z = true};
    expect_close(call.run(run), call.host(run), Dtype::BF16, backward_bound(Dtype::BF16));
  }
}

TEST(DeviceBackward, ManyExpertsMostOfThemWithoutRows) {
  // A cluster takes several tiles of the weight gradients. Those of experts without rows end at once: a warp that was
  // slower than the others could wait for ever.
  std::vector<i64> splits(100, 0);
  for (std::size_t e = 0; e < splits.size(); e += 7) splits[e] = e % 2 == 0 ? 70 : 3;
  const DeviceBackwardCall call(backward_shape(264, 200, Dtype::BF16, ActivationKind::Swiglu, true, splits.size()),
                                splits, 230);
  for (const bool accumulate : {false, true}) {
    const BackwardRun run{.grad = accumulate ? Dtype::F32 : Dtype::BF16, .accumulate = accumulate};
    const BackwardFixture fixture(call, call.dout, run);
    fixture.run(nullptr);
    expect_close(fixture.results(), call.host(run), Dtype::BF16, backward_bound(Dtype::BF16));
    for (int i = 0; i < 200; ++i) fixture.run(nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
  }
}

TEST(DeviceBackward, EveryLayoutGivesTheSameBits) {
  unsigned seed = 400;
  for (const auto& splits : {kManySplits[0], kManySplits[1]})
    for (const i64 width : {i64{64}, i64{24}, i64{192}})
      for (const Dtype dtype : {Dtype::BF16, Dtype::F32}) {
        const DeviceBackwardCall call(backward_shape(72, width, dtype, ActivationKind::Swiglu, width == 24), splits,
                                      seed++);
        // Layouts that TMA does not read take other kernels, whose sums have another order.
        std::map<bool, BackwardResults> expected;
        for (const Fc1Order& order : fc1_orders(width)) {
          const StoredExperts stored(call.shape, call.experts, order);
          const ExpertWeights& expert = stored.experts()[0];
          const bool mapped = tma_boxes(expert.gate).has_value() && tma_boxes(expert.up).has_value() &&
                              tma_boxes(expert.down).has_value();
          const BackwardResults got =
              call.run({.compute = dtype, .grad = dtype, .order = order, .grad_order = order, .save_z = true});
          const auto [first, is_new] = expected.try_emplace(dtype == Dtype::F32 || mapped, got);
          if (!is_new) expect_equal(got, first->second, order.name + ", F " + std::to_string(width));
        }
      }
}

TEST(DeviceBackward, SavedAndRecomputedPreActivationsGiveTheSameBits) {
  for (const auto& splits : kManySplits)
    for (const ActivationKind kind : {ActivationKind::Swiglu, ActivationKind::SquaredRelu})
      for (const Dtype dtype : {Dtype::BF16, Dtype::F32}) {
        const DeviceBackwardCall call(backward_shape(136, 72, dtype, kind, true), splits, 500);
        expect_equal(call.run({.compute = dtype, .grad = dtype, .save_z = true}),
                     call.run({.compute = dtype, .grad = dtype, .save_z = false}), std::to_string(call.rows) + " rows");
      }
}

TEST(DeviceBackward, AccumulationAddsTheOldValueLast) {
  for (const i64 width : {i64{64}, i64{21}})
    for (const Dtype grad : {Dtype::BF16, Dtype::F32}) {
      const DeviceBackwardCall call(backward_shape(72, width, Dtype::BF16, ActivationKind::Swiglu, true),
                                    {130, 0, 40, 3}, 600);
      BackwardRun run{.grad = Dtype::F32, .held = 1.0 / 3};
      const BackwardResults fresh = call.run(run);
      run.grad = grad;
      run.accumulate = true;
      const BackwardResults added = call.run(run);
      EXPECT_EQ(added.dx, fresh.dx);
      for (std::size_t e = 0; e < added.experts.size(); ++e)
        for_each_matrix(added.experts[e], fresh.experts[e], [&](const char* name, const auto& got, const auto& sums) {
          const float held = round_to(static_cast<float>(run.held), grad);
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_EQ(static_cast<float>(got[i]), round_to(static_cast<float>(sums[i]) + held, grad))
                << "expert " << e << ", " << name << " " << i << ", F " << width;
        });
    }
}

TEST(DeviceBackward, SizesAndStartsOfAnyKind) {
  for (const auto& [hidden, width] : {std::pair<i64, i64>{37, 21}, {40, 24}})
    for (const i64 shift : {i64{0}, i64{2}}) {
      const DeviceBackwardCall call(backward_shape(hidden, width, Dtype::BF16, ActivationKind::Swiglu, true),
                                    {3, 0, 150, 1}, 31);
      const BackwardRun run{.shift = shift};
      expect_close(call.run(run), call.host(run), Dtype::BF16, backward_bound(Dtype::BF16));
    }
}

TEST(DeviceBackward, RunTwiceAndAfterOthersGivesTheSameBits) {
  for (const auto& splits : kManySplits) {
    const DeviceBackwardCall call(backward_shape(328, 296, Dtype::BF16, ActivationKind::Swiglu, true), splits, 77);
    const BackwardFixture fixture(call, call.dout, {});
    fixture.run(nullptr);
    const BackwardResults first = fixture.results();
    for (int i = 0; i < 3; ++i) {
      fixture.poison();
      fixture.run(nullptr);
      expect_equal(fixture.results(), first, "again");
    }
  }
}

TEST(DeviceBackward, RowsPastTheLastSplitAreNeitherReadNorWritten) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
    for (const bool save_z : {false, true}) {
      const DeviceBackwardCall call(backward_shape(72, 64, dtype, ActivationKind::Swiglu, true), {70, 0, 129, 1}, 320);
      BackwardRun run{.compute = dtype, .grad = dtype, .save_z = save_z};
      const BackwardResults expected = call.run(run);
      run.tail_rows = 7;
      BackwardResults got = call.run(run);
      for (std::size_t i = expected.dx.size(); i < got.dx.size(); ++i) ASSERT_EQ(got.dx[i], std::byte{0xa5});
      got.dx.resize(expected.dx.size());
      got.dprobs.resize(expected.dprobs.size());
      expect_equal(got, expected, "tail");
    }
}

TEST(DeviceBackward, AGraphReplaysWithNewSplits) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
    for (const i64 rows : {i64{30}, i64{900}}) {
      const DeviceBackwardCall call(backward_shape(72, 64, dtype, ActivationKind::Swiglu, true), {rows, 0, 0, 0}, 5);
      BackwardFixture fixture(call, call.dout, {.compute = dtype, .grad = dtype});
      const CudaStream stream;
      fixture.run(stream.get());
      cudaGraph_t graph{};
      cudaGraphExec_t executable{};
      CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
      fixture.run(stream.get());
      CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
      CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
      std::mt19937 random(9);
      for (int i = 0; i < 20; ++i) {
        std::vector<i64> splits;
        i64 left = rows;
        for (int e = 0; e < 4; ++e) {
          splits.push_back(std::uniform_int_distribution<i64>(0, left)(random));
          left -= splits.back();
        }
        std::ranges::shuffle(splits, random);
        fixture.upload_splits(splits);
        fixture.poison();
        CUDA_CHECK(cudaGraphLaunch(executable, stream.get()));
        fixture.backward().check_splits(stream.get());
        const BackwardResults replayed = fixture.results();
        fixture.poison();
        fixture.run(stream.get());
        CUDA_CHECK(cudaStreamSynchronize(stream.get()));
        expect_equal(fixture.results(), replayed, "replay " + std::to_string(i));
        const auto used = static_cast<std::size_t>((rows - left) * 72 * dtype_bits(dtype) / 8);
        for (std::size_t b = used; b < replayed.dx.size(); ++b) ASSERT_EQ(replayed.dx[b], std::byte{0x5a});
      }
      CUDA_CHECK(cudaGraphExecDestroy(executable));
      CUDA_CHECK(cudaGraphDestroy(graph));
    }
}

TEST(DeviceBackward, WrongSplitsWriteNothing) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32}) {
    const DeviceBackwardCall call(backward_shape(72, 64, dtype, ActivationKind::Swiglu, true), {4, 4, 4, 4}, 6);
    BackwardFixture fixture(call, call.dout, {.compute = dtype, .grad = dtype, .held = -7});
    for (const std::vector<i64>& wrong : {std::vector<i64>{4, -2, 4, 4}, {4, 4, 4, 5}}) {
      fixture.upload_splits(wrong);
      fixture.poison();
      fixture.run(nullptr);
      EXPECT_EQ(slug_of([&] { fixture.backward().check_splits(nullptr); }), "usage");
      const BackwardResults got = fixture.results();
      for (const std::byte value : got.dx) ASSERT_EQ(value, std::byte{0x5a});
      for (const PlainExpert& expert : got.experts)
        for_each_matrix(expert, expert, [](const char* name, const auto& values, const auto&) {
          for (const double value : values) ASSERT_EQ(value, -7) << name;
        });
    }
  }
}

TEST(DeviceBackward, ExpertsWithoutRowsAndNoRowsAtAll) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
    for (const bool accumulate : {false, true}) {
      const DeviceBackwardCall call(backward_shape(72, 64, dtype, ActivationKind::Swiglu, true), {0, 9, 0, 0}, 6);
      const BackwardFixture fixture(call, call.dout,
                                    {.compute = dtype, .grad = dtype, .held = -7, .accumulate = accumulate});
      fixture.run(nullptr);
      const auto expect_held = [&](const PlainExpert& expert) {
        for_each_matrix(expert, expert, [&](const char* name, const auto& values, const auto&) {
          for (const double value : values) ASSERT_EQ(value, accumulate ? -7 : 0) << name;
        });
      };
      const BackwardResults some = fixture.results();
      for (const std::size_t e : {0, 2, 3}) expect_held(some.experts[e]);
      if (accumulate) continue;
      const GuardedArray none(std::vector<i64>{0, 0, 0, 0});
      fixture.backward().run({}, reinterpret_cast<const i64*>(none.data()), fixture.workspace(), nullptr);
      fixture.backward().check_splits(nullptr);
      for (const PlainExpert& expert : fixture.results().experts) expect_held(expert);
    }
}

TEST(DeviceBackward, OnlyWhatIsWantedIsWritten) {
  const DeviceBackwardCall call(backward_shape(72, 64, Dtype::BF16, ActivationKind::Swiglu, true), {70, 0, 129, 1}, 8);
  const BackwardResults all = call.run({});
  const StoredExperts stored(call.shape, call.experts, kTensorEach);
  const DeviceExperts weights(stored, 0);
  const StoredExperts stored_grads(call.shape, filled_like(call.experts, 5), kTensorEach);
  const DeviceExperts grads(stored_grads, 0);
  std::vector<ExpertWeights> up_only(4);
  for (std::size_t e = 0; e < 4; ++e) up_only[e].up = grads.experts()[e].up;
  const DeviceGroupedMlpBackward backward(
      {{72, Dtype::BF16, call.shape.activation, weights.experts()}, up_only, false, false}, nullptr);
  const GuardedArray x(to_bytes(call.x, Dtype::BF16)), dout(to_bytes(call.dout, Dtype::BF16)), probs(call.probs);
  const GuardedArray splits(call.splits), workspace(backward.workspace_bytes(call.rows, true));
  backward.run(
      {call.rows, x.data(), reinterpret_cast<const float*>(probs.data()), dout.data(), nullptr, nullptr, nullptr},
      reinterpret_cast<const i64*>(splits.data()), workspace.data(), nullptr);
  const std::vector<PlainExpert> got = grads.download(stored_grads);
  for (std::size_t e = 0; e < 4; ++e) {
    EXPECT_EQ(got[e].up, all.experts[e].up);
    EXPECT_EQ(got[e].gate, std::vector<double>(got[e].gate.size(), 5));
    EXPECT_EQ(got[e].down_bias, std::vector<double>(got[e].down_bias.size(), 5));
  }
}

TEST(DeviceBackward, WrongArgumentsAreRefusedWithTheNumbers) {
  const DeviceBackwardCall call(backward_shape(72, 64, Dtype::BF16, ActivationKind::Swiglu, false), {4, 4, 4, 4}, 6);
  const BackwardFixture fixture(call, call.dout, {});
  const auto slug = [&](MlpBackwardStep step, const i64* splits, void* workspace) {
    return slug_of([&] { fixture.backward().run(step, splits, workspace, nullptr); });
  };
  MlpBackwardStep step = fixture.step();
  step.rows = -1;
  EXPECT_EQ(slug(step, fixture.splits(), fixture.workspace()), "usage");
  step = fixture.step();
  step.dout = nullptr;
  EXPECT_EQ(slug(step, fixture.splits(), fixture.workspace()), "usage");
  EXPECT_EQ(slug(fixture.step(), nullptr, fixture.workspace()), "usage");
  EXPECT_EQ(slug(fixture.step(), fixture.splits(), nullptr), "usage");
}

}  // namespace
}  // namespace glu_ckpt
