/// The grouped linear layer on a GPU: fp32 against the host bit for bit, 16-bit dtypes against the definition in
/// double, and that nothing but what a product writes is written.

#include "glu_ckpt/ops/grouped_linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "gpu/guarded_array.hpp"
#include "support/linear_cases.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using support::LinearCase;
using support::LinearData;
using Bytes = std::vector<std::byte>;

constexpr LinearProduct kProducts[] = {LinearProduct::Forward, LinearProduct::InputGrad, LinearProduct::WeightGrad};
constexpr Dtype kDtypes[] = {Dtype::BF16, Dtype::F16, Dtype::F32};

/// How a case lies in device memory.
struct Placing {
  /// Matrices by their addresses instead of a first one and a step.
  bool indexed = false;
  /// Bytes by which every tensor is off a multiple of 256.
  i64 shift = 0;
};

/// A case on the device, each tensor between guards.
class DeviceCase {
 public:
  DeviceCase(const LinearCase& c, const LinearData& data, const Placing& placing = {})
      : case_(c),
        initial_(data.output),
        x_(data.x, placing.shift),
        dy_(data.dy, placing.shift),
        weights_(data.weights, placing.shift),
        output_(data.output, placing.shift),
        splits_(c.splits, 8),
        addresses_(support::addresses_at(c, matrices())),
        weight_addresses_(addresses_.begin(), addresses_.end()),
        linear_(support::linear_at(c, matrices())) {
    if (!placing.indexed) return;
    linear_.weights = {};
    linear_.grads = {};
    if (c.product == LinearProduct::WeightGrad) {
      linear_.grads.each = addresses_;
    } else {
      linear_.weights.each = weight_addresses_;
    }
  }

  const GroupedLinear& linear() const { return linear_; }
  LinearRows rows() const { return support::rows_at(case_, x_.data(), dy_.data(), output_.data()); }
  const i64* splits() const { return reinterpret_cast<const i64*>(splits_.data()); }
  void replace_splits(const std::vector<i64>& splits) { splits_.upload(splits); }
  void reset_output() { output_.upload(initial_); }

  Bytes output() const {
    EXPECT_TRUE(output_.guards_intact());
    EXPECT_TRUE(x_.guards_intact() && dy_.guards_intact() && weights_.guards_intact() && splits_.guards_intact());
    return output_.download();
  }

 private:
  void* matrices() const { return case_.product == LinearProduct::WeightGrad ? output_.data() : weights_.data(); }

  LinearCase case_;
  Bytes initial_;
  GuardedArray x_, dy_, weights_, output_, splits_;
  std::vector<void*> addresses_;
  std::vector<const void*> weight_addresses_;
  GroupedLinear linear_;
};

Bytes device_output(const LinearCase& c, const LinearData& data, const Placing& placing = {}) {
  const CudaStream stream;
  const DeviceCase on_device(c, data, placing);
  const DeviceGroupedLinear linear(on_device.linear(), stream.get());
  linear.run(on_device.rows(), on_device.splits(), stream.get());
  linear.check_splits(stream.get());
  return on_device.output();
}

/// Right, and the same bits again: in tensors of their own, off 16 bytes, and in a second run.
void expect_right(const LinearCase& c) {
  SCOPED_TRACE(c.describe());
  std::mt19937 random(1);
  const LinearData data(c, random);
  const Bytes once = device_output(c, data);
  if (c.dtype == Dtype::F32) {
    EXPECT_TRUE(once == support::host_output(c, data, 8));
  } else {
    EXPECT_EQ(support::linear_fault(c, data, once), "");
  }
  EXPECT_TRUE(device_output(c, data) == once) << "a second run";
  EXPECT_TRUE(device_output(c, data, {true, 0}) == once) << "indexed";
  EXPECT_TRUE(device_output(c, data, {false, 4}) == once) << "off 16 bytes";
}

TEST(GroupedLinear, EveryProductDtypeAndNumberOfExperts) {
  std::mt19937 random(2);
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : kDtypes)
      for (const std::size_t experts : {1, 3, 8, 130}) {
        expect_right({product, dtype, 40, 24, support::uneven_splits(experts, 300, random), 5});
        expect_right({product, dtype, 7, 5, support::uneven_splits(experts, 40, random), 5});
      }
}

TEST(GroupedLinear, TilesAndTheirEdges) {
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : kDtypes) {
      expect_right({product, dtype, 264, 392, {129, 1, 0, 257}, 3});
      expect_right({product, dtype, 128, 256, {128, 128}, 0});
      // Few rows an expert take the small tile.
      expect_right({product, dtype, 264, 392, {1, 0, 40, 3, 8, 2}, 3});
      expect_right({product, dtype, 1024, 136, {0, 0, 0, 7}, 0});
    }
}

TEST(GroupedLinear, NoRows) {
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : kDtypes) {
      expect_right({product, dtype, 40, 24, {0, 0, 0}, 0});
      expect_right({product, dtype, 40, 24, {0, 0, 0}, 9});
    }
}

TEST(GroupedLinear, Gradients) {
  std::mt19937 random(3);
  for (const Dtype dtype : kDtypes)
    for (const bool accumulate : {false, true})
      for (const bool fp32 : {false, true})
        for (const auto& [in, out] : {std::pair<i64, i64>{40, 24}, {7, 5}, {136, 264}})
          expect_right(
              {LinearProduct::WeightGrad, dtype, in, out, support::uneven_splits(8, 300, random), 4, accumulate, fp32});
}

/// A row's bits do not depend on the rows beside it, nor on the tile that their number chooses.
TEST(GroupedLinear, ARowHasTheSameBitsAmongManyAndAlone) {
  for (const LinearProduct product : {LinearProduct::Forward, LinearProduct::InputGrad})
    for (const Dtype dtype : kDtypes) {
      std::mt19937 random(4);
      const LinearCase many = {product, dtype, 264, 392, {300}, 0};
      const LinearData data(many, random);
      const Bytes all = device_output(many, data);
      const LinearCase alone = {product, dtype, 264, 392, {1}, 0};
      const i64 row_bytes = std::ssize(all) / 300;
      for (const i64 row : {0, 131, 299}) {
        LinearData one = data;
        const auto cut = [row](const Bytes& bytes) {
          const i64 size = std::ssize(bytes) / 300;
          return Bytes(bytes.begin() + row * size, bytes.begin() + (row + 1) * size);
        };
        one.x = cut(data.x);
        one.dy = cut(data.dy);
        one.output.resize(static_cast<std::size_t>(row_bytes));
        EXPECT_TRUE(device_output(alone, one) == cut(all)) << many.describe() << " row " << row;
      }
    }
}

/// Captured once; each launch of the graph reads the splits that are there by then.
class CapturedRun {
 public:
  template <typename Run>
  CapturedRun(const Run& run, GpuStream stream) {
    cudaGraph_t graph = nullptr;
    // In the global mode any call that allocates or waits would make the capture fail.
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    run();
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&graph_, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
  CapturedRun(const CapturedRun&) = delete;
  CapturedRun& operator=(const CapturedRun&) = delete;
  ~CapturedRun() { (void)cudaGraphExecDestroy(graph_); }

  void replay(GpuStream stream) const { CUDA_CHECK(cudaGraphLaunch(graph_, stream)); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

/// Splits that take at most `rows` rows.
std::vector<i64> random_splits(std::size_t experts, i64 rows, std::mt19937& random) {
  std::vector<i64> splits(experts);
  for (i64 left = static_cast<i64>(random() % static_cast<u64>(rows + 1)); left > 0;) {
    const i64 some = std::min<i64>(left, 1 + static_cast<i64>(random() % 60));
    splits[random() % experts] += some;
    left -= some;
  }
  return splits;
}

TEST(GroupedLinear, ACapturedGraphReplaysWithNewSplits) {
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : kDtypes) {
      std::mt19937 random(5);
      LinearCase c = {product, dtype, 72, 136, {100, 0, 50, 1, 129}, 20};
      const i64 rows = c.rows();
      const LinearData data(c, random);
      const CudaStream stream;
      DeviceCase captured(c, data), plain(c, data);
      const DeviceGroupedLinear in_graph(captured.linear(), stream.get()), alone(plain.linear(), stream.get());
      const CapturedRun graph([&] { in_graph.run(captured.rows(), captured.splits(), stream.get()); }, stream.get());
      for (int i = 0; i < 100; ++i) {
        c.splits = random_splits(5, rows, random);
        for (DeviceCase* const each : {&captured, &plain}) {
          each->replace_splits(c.splits);
          each->reset_output();
        }
        graph.replay(stream.get());
        in_graph.check_splits(stream.get());
        alone.run(plain.rows(), plain.splits(), stream.get());
        const Bytes output = captured.output();
        ASSERT_TRUE(output == plain.output()) << c.describe();
        if (i >= 3) continue;
        c.rows_behind = 0;
        c.rows_behind = rows - c.rows();
        EXPECT_EQ(support::linear_fault(c, data, output), "") << c.describe();
      }
    }
}

std::string complaint_of(const DeviceGroupedLinear& linear, GpuStream stream) {
  try {
    linear.check_splits(stream);
  } catch (const Error& error) {
    return std::string(slug(error.code())) + ": " + error.what();
  }
  return "none";
}

TEST(GroupedLinear, WrongSplitsWriteNothingAndAreNamed) {
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : {Dtype::BF16, Dtype::F32}) {
      std::mt19937 random(6);
      const LinearCase c = {product, dtype, 40, 24, {3, 4, 5}, 2};
      const LinearData data(c, random);
      const CudaStream stream;
      DeviceCase on_device(c, data);
      const DeviceGroupedLinear linear(on_device.linear(), stream.get());
      EXPECT_EQ(complaint_of(linear, stream.get()), "none");  // there was no run yet
      const auto run = [&](const std::vector<i64>& splits) {
        on_device.replace_splits(splits);
        linear.run(on_device.rows(), on_device.splits(), stream.get());
        return complaint_of(linear, stream.get());
      };
      EXPECT_EQ(run({3, -4, 5}), "usage: split 1 is -4");
      EXPECT_EQ(run({3, 4, 8}), "usage: splits up to number 2 take 7 + 8 rows; there are 14");
      EXPECT_EQ(run({INT64_MAX, 1, 1}), "usage: splits up to number 0 take 0 + 9223372036854775807 rows; there are 14");
      EXPECT_TRUE(on_device.output() == data.output);
      EXPECT_EQ(run({3, 4, 5}), "none");
      EXPECT_EQ(support::linear_fault(c, data, on_device.output()), "");
    }
}

TEST(GroupedLinear, MistakesAreFoundBeforeTheLaunch) {
  std::mt19937 random(7);
  const LinearCase c = {LinearProduct::Forward, Dtype::BF16, 40, 24, {3, 4, 5}, 2};
  const LinearData data(c, random);
  const CudaStream stream;
  const DeviceCase on_device(c, data);
  const DeviceGroupedLinear linear(on_device.linear(), stream.get());
  LinearRows rows = on_device.rows();
  EXPECT_EQ(slug_of([&] { linear.run(rows, nullptr, stream.get()); }), "usage");
  EXPECT_EQ(slug_of([&] {
              linear.run(rows, reinterpret_cast<const i64*>(reinterpret_cast<std::uintptr_t>(on_device.splits()) + 4),
                         stream.get());
            }),
            "usage");
  rows.out = nullptr;
  EXPECT_EQ(slug_of([&] { linear.run(rows, on_device.splits(), stream.get()); }), "usage");
  EXPECT_TRUE(on_device.output() == data.output);
}

Bytes host_splits_output(const LinearCase& c, const LinearData& data, LinearEngine engine) {
  const CudaStream stream;
  const DeviceCase on_device(c, data, {true, 0});
  const GroupedLinearHostSplits linear(on_device.linear(), engine, stream.get());
  linear.run(on_device.rows(), c.splits, stream.get());
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  return on_device.output();
}

std::vector<LinearCase> host_split_cases() {
  std::mt19937 random(8);
  std::vector<LinearCase> cases;
  for (const LinearProduct product : kProducts)
    for (const Dtype dtype : kDtypes) {
      cases.push_back({product, dtype, 40, 24, support::uneven_splits(8, 300, random), 5});
      cases.push_back({product, dtype, 264, 392, {129, 1, 0, 257}, 3});
      cases.push_back({product, dtype, 7, 5, support::uneven_splits(3, 40, random), 5});
      if (product != LinearProduct::WeightGrad) continue;
      cases.push_back({product, dtype, 40, 24, {3, 0, 65}, 2, true, false});
      cases.push_back({product, dtype, 40, 24, {3, 0, 65}, 2, true, true});
      cases.push_back({product, dtype, 40, 24, {3, 0, 65}, 2, false, true});
    }
  return cases;
}

TEST(GroupedLinearHostSplits, TheKernelsGiveTheBitsOfDeviceSplits) {
  std::mt19937 random(9);
  auto cases = host_split_cases();
  cases.push_back({LinearProduct::Forward, Dtype::BF16, 16, 8, support::uneven_splits(600, 3, random), 1});
  for (const LinearCase& c : cases) {
    const LinearData data(c, random);
    EXPECT_TRUE(host_splits_output(c, data, LinearEngine::Kernels) == device_output(c, data)) << c.describe();
  }
}

TEST(GroupedLinearHostSplits, NothingIsUnderWayOnceItIsMade) {
  std::mt19937 random(11);
  const LinearCase c = {LinearProduct::Forward, Dtype::BF16, 40, 24, {3, 4, 5}, 2};
  const LinearData data(c, random);
  const CudaStream stream;
  const DeviceCase on_device(c, data);
  for (int i = 0; i < 20; ++i) {
    const GroupedLinearHostSplits linear(on_device.linear(), LinearEngine::Kernels, stream.get());
    // A run on another stream would race with it.
    ASSERT_EQ(cudaStreamQuery(stream.get()), cudaSuccess);
  }
}

TEST(GroupedLinearHostSplits, WrongSplitsAreRefusedBeforeTheLaunch) {
  std::mt19937 random(10);
  const LinearCase c = {LinearProduct::Forward, Dtype::BF16, 40, 24, {3, 4, 5}, 2};
  const LinearData data(c, random);
  const CudaStream stream;
  const DeviceCase on_device(c, data);
  const GroupedLinearHostSplits linear(on_device.linear(), LinearEngine::Auto, stream.get());
  for (const std::vector<i64>& splits : {std::vector<i64>{3, -1, 5}, {3, 4, 8}, {3, 4}})
    EXPECT_EQ(slug_of([&] { linear.run(on_device.rows(), splits, stream.get()); }), "usage");
  EXPECT_TRUE(on_device.output() == data.output);
}

/// Whether the tests of cuBLAS can run; says so if not, for Meson counts a skipped test as passed.
bool has_cublas() {
  const std::string why = why_no_cublas();
  if (!why.empty()) std::printf("NOT RUN, no cuBLAS: %s\n", why.c_str());
  return why.empty();
}

TEST(GroupedLinearCublas, AgreesWithTheDefinition) {
  if (!has_cublas()) GTEST_SKIP();
  std::mt19937 random(11);
  for (const LinearCase& c : host_split_cases()) {
    const LinearData data(c, random);
    EXPECT_EQ(support::linear_fault(c, data, host_splits_output(c, data, LinearEngine::Cublas), true), "")
        << c.describe();
  }
}

/// The documented tolerance, between the two ways rather than to the truth.
TEST(GroupedLinearCublas, AgreesWithTheKernels) {
  if (!has_cublas()) GTEST_SKIP();
  std::mt19937 random(12);
  for (const LinearCase& c : host_split_cases()) {
    const LinearData data(c, random);
    const auto ours = support::output_values(c, device_output(c, data));
    const auto theirs = support::output_values(c, host_splits_output(c, data, LinearEngine::Cublas));
    const auto expected = support::float64_linear(c, data);
    for (std::size_t i = 0; i < ours.size(); ++i)
      if (expected.written[i] != 0) {
        ASSERT_NEAR(ours[i], theirs[i],
                    support::linear_tolerance(c.output_dtype(), std::fabs(ours[i]) + expected.before[i],
                                              expected.magnitudes[i]))
            << c.describe() << " element " << i;
      }
  }
}

TEST(GroupedLinearCublas, TwoRunsAndACapturedGraphGiveTheSameBits) {
  if (!has_cublas()) GTEST_SKIP();
  std::mt19937 random(13);
  for (const LinearProduct product : kProducts) {
    const LinearCase c = {product, Dtype::BF16, 264, 392, {129, 1, 0, 257}, 3};
    const LinearData data(c, random);
    const Bytes once = host_splits_output(c, data, LinearEngine::Cublas);
    EXPECT_TRUE(host_splits_output(c, data, LinearEngine::Cublas) == once);
    const CudaStream stream;
    DeviceCase on_device(c, data);
    const GroupedLinearHostSplits linear(on_device.linear(), LinearEngine::Cublas, stream.get());
    const auto run = [&] { linear.run(on_device.rows(), c.splits, stream.get()); };
    // cuBLAS loads its kernels when they first run, which a capture does not allow.
    run();
    on_device.output();
    const CapturedRun graph(run, stream.get());
    on_device.reset_output();
    graph.replay(stream.get());
    EXPECT_TRUE(on_device.output() == once);
  }
}

}  // namespace
}  // namespace glu_ckpt
