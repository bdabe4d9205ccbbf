#include "glu_ckpt/ops/device_forward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "device_experts.hpp"
#include "support/mlp_cases.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

const Fc1Order kSplit{"split", 0, false, false};
/// As many rows an expert as make every kernel and height of tiles run.
const std::vector<i64> kSplitsOfAllHeights[] = {
    {5, 0, 9, 1}, {17, 40, 0, 3}, {70, 0, 129, 1}, {128, 300, 2, 9}, {600, 1, 0, 300}};

/// A call on a GPU, whose results and guards are checked for being written whole and no farther.
struct DeviceCall : MlpCall {
  using MlpCall::MlpCall;

  /// Returns the output; FC1's rounded sums go to `saved_z` if that is there.
  std::vector<std::byte> run(const Fc1Order& order, Dtype compute, i64 shift = 0,
                             std::vector<std::byte>* saved_z = nullptr) const {
    const StoredExperts stored(shape, experts, order);
    const DeviceExperts weights(stored, shift);
    const GuardedArray device_x(to_bytes(x, compute));
    const GuardedArray device_splits(splits);
    const GuardedArray device_probs(probs);
    const GuardedArray out(device_x.bytes());
    const GuardedArray z(saved_z != nullptr ? z_bytes(compute) : 0);
    const DeviceGroupedMlp mlp({shape.hidden, compute, shape.activation, weights.experts()}, rows, nullptr);
    mlp.run(device_x.data(), rows, reinterpret_cast<const i64*>(device_splits.data()),
            reinterpret_cast<const float*>(device_probs.data()), out.data(), nullptr,
            saved_z != nullptr ? z.data() : nullptr);
    mlp.check_splits(nullptr);
    if (saved_z != nullptr) *saved_z = z.download();
    EXPECT_TRUE(z.guards_intact());
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(device_x.guards_intact());
    return out.download();
  }

  std::vector<double> host_z(Dtype compute) const {
    const StoredExperts stored(shape, experts, kSplit);
    std::vector<std::byte> z(static_cast<std::size_t>(z_bytes(compute)));
    std::vector<std::byte> out(x.size() * static_cast<std::size_t>(dtype_bits(compute) / 8));
    grouped_mlp_host({shape.hidden, compute, shape.activation, stored.experts()}, to_bytes(x, compute).data(), rows,
                     splits, probs.data(), out.data(), 2, z.data());
    return to_doubles(z, compute);
  }

 private:
  i64 z_bytes(Dtype compute) const {
    return rows * (shape.activation.is_gated() ? 2 : 1) * shape.widths[0] * (dtype_bits(compute) / 8);
  }
};

MlpShape shape_of(i64 hidden, i64 width, Dtype dtype, ActivationKind kind, bool bias) {
  return {hidden, std::vector<i64>(4, width), dtype, some_activation(kind), bias};
}

double bound(Dtype compute) {
  return compute == Dtype::F32 ? 1e-6 : 2 * std::ldexp(1.0, compute == Dtype::BF16 ? -8 : -11);
}

TEST(DeviceForward, EveryActivationAgreesWithTheFormulasInDouble) {
  unsigned seed = 1;
  for (const ActivationKind kind : kActivationKinds)
    for (const Dtype dtype : kFloatDtypes)
      for (const bool bias : {false, true})
        for (const Dtype compute : {dtype, Dtype::F32}) {
          const DeviceCall call(shape_of(40, 24, dtype, kind, bias), {3, 0, 5, 1}, seed++);
          SCOPED_TRACE(std::string(to_string(kind)) + " " + std::string(dtype_name(dtype)) + " in " +
                       std::string(dtype_name(compute)) + (bias ? ", biases" : ""));
          EXPECT_LT(distance(to_doubles(call.run(kSplit, compute), compute), call.expected()), bound(compute));
        }
}

TEST(DeviceForward, EveryHeightOfTilesAgreesWithTheFormulasInDouble) {
  unsigned seed = 200;
  for (const auto& splits : kSplitsOfAllHeights)
    for (const Dtype dtype : kFloatDtypes)
      for (const ActivationKind kind : {ActivationKind::Swiglu, ActivationKind::SquaredRelu})
        for (const bool bias : {false, true}) {
          // More than a tile of columns and of weight rows, and a rest of either.
          const DeviceCall call(shape_of(328, 200, dtype, kind, bias), splits, seed++);
          SCOPED_TRACE(std::to_string(call.rows) + " rows, " + std::string(dtype_name(dtype)));
          EXPECT_LT(distance(to_doubles(call.run(kSplit, dtype), dtype), call.expected()), bound(dtype));
        }
}

TEST(DeviceForward, MoreTilesThanMultiprocessors) {
  // In the last case either warpgroup of a cluster has several of both layers.
  struct Case {
    std::size_t experts;
    i64 rows_each, hidden, width;
  };
  for (const Case& c : {Case{150, 3, 136, 104}, {150, 40, 136, 104}, {150, 130, 136, 104}, {280, 130, 400, 64}}) {
    const MlpShape shape{c.hidden, std::vector<i64>(c.experts, c.width), Dtype::BF16,
                         some_activation(ActivationKind::Swiglu), true};
    const DeviceCall call(shape, std::vector<i64>(c.experts, c.rows_each), 300);
    EXPECT_LT(distance(to_doubles(call.run(kSplit, Dtype::BF16), Dtype::BF16), call.expected()), bound(Dtype::BF16))
        << c.experts << " experts, " << c.rows_each << " rows each";
  }
}

TEST(DeviceForward, ManyTilesOfUnevenExperts) {
  // Blocks take several tiles of both layers, and begin the second while others are in the first.
  for (const i64 most : {i64{12}, i64{40}, i64{100}, i64{200}}) {
    std::vector<i64> splits(100);
    for (std::size_t e = 0; e < splits.size(); ++e) splits[e] = e % 5 == 0 ? 0 : e % 2 == 0 ? most : most / 4;
    const MlpShape shape{264, std::vector<i64>(splits.size(), 200), Dtype::BF16,
                         some_activation(ActivationKind::Swiglu), true};
    const DeviceCall call(shape, splits, 350);
    EXPECT_LT(distance(to_doubles(call.run(kSplit, Dtype::BF16), Dtype::BF16), call.expected()), bound(Dtype::BF16))
        << "up to " << most << " rows";
  }
}

TEST(DeviceForward, EveryLayoutGivesTheSameBits) {
  unsigned seed = 400;
  for (const auto& splits : {kSplitsOfAllHeights[0], kSplitsOfAllHeights[2], kSplitsOfAllHeights[4]})
    for (const i64 width : {i64{64}, i64{24}, i64{192}})
      for (const Dtype dtype : {Dtype::BF16, Dtype::F32}) {
        const DeviceCall call(shape_of(72, width, dtype, ActivationKind::Swiglu, width == 24), splits, seed++);
        const auto expected = call.run(kSplit, dtype);
        for (const Fc1Order& order : fc1_orders(width))
          ASSERT_EQ(call.run(order, dtype), expected) << order.name << ", F " << width << ", " << call.rows << " rows";
      }
}

TEST(DeviceForward, SizesAndStartsOfAnyKindGiveTheSameBits) {
  // 37 columns begin at odd addresses, in x and in the result too; 2 bytes off, nothing is at a multiple of 16.
  for (const auto& [hidden, width] : {std::pair<i64, i64>{37, 21}, {40, 24}, {64, 128}}) {
    const DeviceCall call(shape_of(hidden, width, Dtype::BF16, ActivationKind::Swiglu, true), {3, 0, 150, 1}, 31);
    const auto expected = call.run(kSplit, Dtype::BF16);
    EXPECT_LT(distance(to_doubles(expected, Dtype::BF16), call.expected()), bound(Dtype::BF16));
    for (const Fc1Order& order : fc1_orders(width))
      for (const i64 shift : {i64{0}, i64{2}})
        ASSERT_EQ(call.run(order, Dtype::BF16, shift), expected) << order.name << ", shift " << shift;
  }
}

TEST(DeviceForward, RunTwiceGivesTheSameBits) {
  for (const auto& splits : kSplitsOfAllHeights) {
    const DeviceCall call(shape_of(136, 72, Dtype::BF16, ActivationKind::Swiglu, false), splits, 77);
    EXPECT_EQ(call.run(kSplit, Dtype::BF16), call.run(kSplit, Dtype::BF16));
  }
}

TEST(DeviceForward, ATokenHasTheSameBitsWhereverItsExpertBegins) {
  // The experts change places, with their tokens, in a call of as many rows an expert.
  for (const auto& splits : kSplitsOfAllHeights) {
    const DeviceCall call(shape_of(136, 72, Dtype::BF16, ActivationKind::Swiglu, true), splits, 77);
    const auto first = static_cast<std::ptrdiff_t>(splits[0]);
    DeviceCall turned = call;
    std::ranges::rotate(turned.experts, turned.experts.begin() + 1);
    std::ranges::rotate(turned.splits, turned.splits.begin() + 1);
    std::ranges::rotate(turned.probs, turned.probs.begin() + first);
    std::ranges::rotate(turned.x, turned.x.begin() + first * 136);
    auto expected = call.run(kSplit, Dtype::BF16);
    std::ranges::rotate(expected, expected.begin() + first * 136 * 2);
    EXPECT_EQ(turned.run(kSplit, Dtype::BF16), expected) << call.rows << " rows";
  }
}

/// Weights and buffers that stay, for several runs.
struct Fixture {
  Fixture(const DeviceCall& call, Dtype dtype)
      : stored(call.shape, call.experts, {"interleaved:8", 8, false, false}),
        weights(stored, 0),
        x(to_bytes(call.x, dtype)),
        probs(call.probs),
        out(x.bytes()),
        splits(call.splits),
        rows(call.rows),
        mlp({call.shape.hidden, dtype, call.shape.activation, weights.experts()}, call.rows, nullptr) {}

  void run(GpuStream stream) const {
    mlp.run(x.data(), rows, reinterpret_cast<const i64*>(splits.data()), reinterpret_cast<const float*>(probs.data()),
            out.data(), stream);
  }
  void poison() const { CUDA_CHECK(cudaMemset(out.data(), 0x5a, static_cast<std::size_t>(out.bytes()))); }

  StoredExperts stored;
  DeviceExperts weights;
  GuardedArray x, probs, out, splits;
  i64 rows;
  DeviceGroupedMlp mlp;
};

TEST(DeviceForward, WeightsAndBiasesThatChangedInPlaceAreReadAnew) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
    for (const Fc1Order& order : fc1_orders(36))
      for (const i64 shift : {i64{0}, i64{2}}) {
        if (dtype == Dtype::F32 && shift != 0) continue;
        DeviceCall call(shape_of(40, 36, dtype, ActivationKind::Swiglu, true), {3, 0, 5, 1}, 12);
        const StoredExperts first(call.shape, call.experts, order);
        DeviceExperts weights(first, shift);
        const GuardedArray x(to_bytes(call.x, dtype)), splits(call.splits), probs(call.probs), out(x.bytes());
        const DeviceGroupedMlp mlp({40, dtype, call.shape.activation, weights.experts()}, 0, nullptr);
        const GuardedArray workspace(mlp.workspace_bytes(call.rows));
        const auto run = [&](void* memory) {
          mlp.run(x.data(), call.rows, reinterpret_cast<const i64*>(splits.data()),
                  reinterpret_cast<const float*>(probs.data()), out.data(), nullptr, nullptr, memory);
          return out.download();
        };
        EXPECT_EQ(run(workspace.data()), call.run(order, dtype, shift)) << order.name;
        call.experts = random_experts(call.shape, call.random);
        weights.upload(StoredExperts(call.shape, call.experts, order));
        EXPECT_EQ(run(workspace.data()), call.run(order, dtype, shift)) << order.name << " after a change";
        EXPECT_TRUE(workspace.guards_intact());
        EXPECT_EQ(slug_of([&] { run(nullptr); }), "usage");
      }
}

TEST(DeviceForward, AGraphReplaysWithNewSplits) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
    for (const i64 rows : {i64{30}, i64{200}, i64{900}}) {
      const DeviceCall call(shape_of(72, 64, dtype, ActivationKind::Swiglu, true), {rows, 0, 0, 0}, 5);
      Fixture fixture(call, dtype);
      const CudaStream stream;
      cudaGraph_t graph{};
      cudaGraphExec_t executable{};
      CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
      fixture.run(stream.get());
      CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
      CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
      std::mt19937 random(9);
      for (int i = 0; i < 100; ++i) {
        std::vector<i64> splits;
        i64 left = rows;
        for (int e = 0; e < 4; ++e) {
          splits.push_back(std::uniform_int_distribution<i64>(0, left)(random));
          left -= splits.back();
        }
        std::ranges::shuffle(splits, random);
        fixture.splits.upload(splits);
        fixture.poison();
        CUDA_CHECK(cudaGraphLaunch(executable, stream.get()));
        fixture.mlp.check_splits(stream.get());
        const auto replayed = fixture.out.download();
        fixture.poison();
        fixture.run(stream.get());
        CUDA_CHECK(cudaStreamSynchronize(stream.get()));
        ASSERT_EQ(fixture.out.download(), replayed) << "replay " << i;
        // What no expert took keeps what it held.
        const auto tail = static_cast<std::size_t>((rows - left) * 72 * dtype_bits(dtype) / 8);
        for (std::size_t b = tail; b < replayed.size(); ++b) ASSERT_EQ(replayed[b], std::byte{0x5a}) << "byte " << b;
      }
      CUDA_CHECK(cudaGraphExecDestroy(executable));
      CUDA_CHECK(cudaGraphDestroy(graph));
    }
}

/// A launch begins while the one before it ends, and must not take the places of the run before for its own.
TEST(DeviceForward, RunsThatFollowOneAnotherReadTheirOwnSplits) {
  for (const i64 rows : {i64{30}, i64{200}, i64{900}}) {
    const DeviceCall call(shape_of(328, 200, Dtype::BF16, ActivationKind::Swiglu, true), {rows, 0, 0, 0}, 8);
    const Fixture fixture(call, Dtype::BF16);
    const std::vector<i64> splits[] = {call.splits, {1, 2, rows - 7, 4}, {0, 0, 0, 1}};
    std::vector<GuardedArray> on_device, outs;
    std::vector<std::vector<std::byte>> expected;
    for (const auto& own : splits) {
      on_device.emplace_back(own);
      outs.emplace_back(fixture.x.bytes());
    }
    const CudaStream stream;
    const auto run = [&](std::size_t i) {
      fixture.mlp.run(fixture.x.data(), rows, reinterpret_cast<const i64*>(on_device[i].data()),
                      reinterpret_cast<const float*>(fixture.probs.data()), outs[i].data(), stream.get());
    };
    for (std::size_t i = 0; i < outs.size(); ++i) {
      run(i);
      expected.push_back(outs[i].download());
    }
    for (int round = 0; round < 100; ++round)
      for (std::size_t i = 0; i < outs.size(); ++i) run(i);
    for (std::size_t i = 0; i < outs.size(); ++i) EXPECT_EQ(outs[i].download(), expected[i]) << rows << " rows, " << i;
  }
}

/// FC2 begins while FC1 ends, and has to wait for the rows of its experts: what the buffer between the two holds from
/// the run before is of other tokens. FC1's tiles are more than run at once, and take long enough for FC2 to begin.
TEST(DeviceForward, ThePartBetweenTheLayersIsThatOfTheSameRun) {
  struct Case {
    std::vector<i64> splits;
    i64 hidden = 2048, width = 712;
  };
  std::vector<Case> cases{{{2000}}, {{0, 1500, 0, 500}}, {{2500}}, {{60, 0, 64}}};
  // Of each height, so many tiles that some blocks are in FC2 while others take their second of FC1.
  for (const i64 each : {12, 20, 60, 100}) cases.push_back({std::vector<i64>(40, each), 512, 400});
  for (const auto& [splits, hidden, width] : cases)
    for (const bool saves : {false, true}) {
      const i64 rows = std::accumulate(splits.begin(), splits.end(), i64{0});
      const MlpShape shape{hidden, std::vector<i64>(splits.size(), width), Dtype::BF16,
                           some_activation(ActivationKind::Swiglu), false};
      DeviceCall call(shape, splits, 91);
      const Fixture fixture(call, Dtype::BF16);
      const GuardedArray z(rows * 2 * width * 2);
      std::ranges::reverse(call.x);
      const GuardedArray turned(to_bytes(call.x, Dtype::BF16));
      const GuardedArray* const xs[] = {&fixture.x, &turned};
      const GuardedArray outs[] = {GuardedArray(fixture.x.bytes()), GuardedArray(fixture.x.bytes())};
      const CudaStream stream;
      const auto run = [&](int i) {
        fixture.mlp.run(xs[i]->data(), rows, reinterpret_cast<const i64*>(fixture.splits.data()),
                        reinterpret_cast<const float*>(fixture.probs.data()), outs[i].data(), stream.get(),
                        saves ? z.data() : nullptr);
      };
      // A second run of the same finds its own rows there.
      std::vector<std::byte> expected[2];
      for (int i = 0; i < 2; ++i) {
        for (int twice = 0; twice < 2; ++twice) {
          run(i);
          CUDA_CHECK(cudaStreamSynchronize(stream.get()));
        }
        expected[i] = outs[i].download();
      }
      ASSERT_NE(expected[0], expected[1]);
      for (int round = 0; round < 20; ++round)
        for (int i = 0; i < 2; ++i) run(i);
      CUDA_CHECK(cudaStreamSynchronize(stream.get()));
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(outs[i].download(), expected[i]) << rows << " rows" << (saves ? ", z saved" : "");
    }
}

/// The CPU adds the products of a row in another order, so a sum may round to the value beside it.
TEST(DeviceForward, SavedSumsAreThoseOfTheCpu) {
  unsigned seed = 600;
  for (const auto& splits : kSplitsOfAllHeights)
    for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
      for (const ActivationKind kind : {ActivationKind::Swiglu, ActivationKind::SquaredRelu}) {
        // More than a tile of columns, and a rest of one and of a square.
        const DeviceCall call(shape_of(136, 296, dtype, kind, true), splits, seed++);
        const Fc1Order order{"interleaved:8", 8, false, false};
        std::vector<std::byte> z;
        EXPECT_EQ(call.run(order, dtype), call.run(order, dtype, 0, &z));
        const auto got = to_doubles(z, dtype);
        const auto expected = call.host_z(dtype);
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], expected[i], std::abs(expected[i]) * bound(dtype) + 1e-5)
              << i << " of " << call.rows << " rows, " << to_string(kind) << ", " << dtype_name(dtype);
      }
}

TEST(DeviceForward, WrongSplitsWriteNothing) {
  const DeviceCall call(shape_of(72, 64, Dtype::BF16, ActivationKind::Swiglu, false), {4, 4, 4, 4}, 6);
  Fixture fixture(call, Dtype::BF16);
  const auto message = [&](const std::vector<i64>& splits) -> std::string {
    fixture.splits.upload(splits);
    fixture.poison();
    fixture.run(nullptr);
    for (const std::byte value : fixture.out.download()) EXPECT_EQ(value, std::byte{0x5a});
    try {
      fixture.mlp.check_splits(nullptr);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Usage);
      return error.what();
    }
    return "";
  };
  const std::string negative = message({4, -2, 4, 4});
  EXPECT_NE(negative.find("-2"), std::string::npos) << negative;
  const std::string too_many = message({4, 4, 4, 5});
  EXPECT_NE(too_many.find("16"), std::string::npos) << too_many;
  EXPECT_EQ(message({0, 0, 0, 0}), "");
}

TEST(DeviceForward, WrongArgumentsAreRefusedWithTheNumbers) {
  const DeviceCall call(shape_of(72, 64, Dtype::BF16, ActivationKind::Swiglu, false), {4, 4, 4, 4}, 6);
  const Fixture fixture(call, Dtype::BF16);
  const auto run = [&](const std::byte* x, i64 rows) {
    fixture.mlp.run(x, rows, reinterpret_cast<const i64*>(fixture.splits.data()),
                    reinterpret_cast<const float*>(fixture.probs.data()), fixture.out.data(), nullptr);
  };
  EXPECT_EQ(slug_of([&] { run(fixture.x.data(), 17); }), "usage");
  EXPECT_EQ(slug_of([&] { run(fixture.x.data(), -1); }), "usage");
  EXPECT_EQ(slug_of([&] { run(fixture.x.data() + 2, 8); }), "usage");
  EXPECT_EQ(slug_of([&] { run(nullptr, 8); }), "usage");
  EXPECT_EQ(slug_of([&] { run(fixture.out.data(), 8); }), "usage");
  std::vector<ExpertWeights> experts(fixture.weights.experts().begin(), fixture.weights.experts().end());
  experts[2].up.rows = 32;
  EXPECT_EQ(slug_of([&] { const DeviceGroupedMlp mlp({72, Dtype::BF16, {}, experts}, 8, nullptr); }), "usage");
}

TEST(DeviceForward, NoRowsAndNoTokens) {
  const DeviceCall call(shape_of(72, 64, Dtype::BF16, ActivationKind::Swiglu, false), {0, 0, 9, 0}, 6);
  const Fixture fixture(call, Dtype::BF16);
  fixture.mlp.check_splits(nullptr);
  fixture.poison();
  GuardedArray none(std::vector<i64>{0, 0, 0, 0});
  fixture.mlp.run(nullptr, 0, reinterpret_cast<const i64*>(none.data()), nullptr, nullptr, nullptr);
  fixture.mlp.check_splits(nullptr);
  fixture.mlp.run(fixture.x.data(), 9, reinterpret_cast<const i64*>(none.data()),
                  reinterpret_cast<const float*>(fixture.probs.data()), fixture.out.data(), nullptr);
  for (const std::byte value : fixture.out.download()) ASSERT_EQ(value, std::byte{0x5a});
}

TEST(DeviceForward, NansStayNans) {
  for (const ActivationKind kind : kActivationKinds) {
    DeviceCall call(shape_of(72, 64, Dtype::BF16, kind, false), {2, 2, 2, 2}, 8);
    call.x[72 * 3 + 5] = std::nan("");
    const auto out = to_doubles(call.run(kSplit, Dtype::BF16), Dtype::BF16);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i / 72 == 3) << to_string(kind) << i;
  }
}

}  // namespace
}  // namespace glu_ckpt
