/// The experts' way to a GPU and back: what it uploads, holds and says when a call fails.

#include <algorithm>

#include "fake_cuda/fake_runtime.hpp"
#include "support/convert.hpp"
#include "support/mlp_cases.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

struct Call {
  MlpShape shape{16, {8, 8, 8}, Dtype::BF16, {}, true};
  std::mt19937 random{3};
  std::vector<PlainExpert> experts = random_experts(shape, random);
  std::vector<i64> splits{2, 0, 3};
  i64 rows = 7;
  std::vector<std::byte> x = to_bytes(random_values(7 * 16, 1, Dtype::BF16, random), Dtype::BF16);
  std::vector<float> probs{0.5F, 0.25F, 1, 0.125F, 0.75F, 1, 1};

  std::vector<std::byte> run(MlpRunner& runner, const Fc1Order& order) const {
    const StoredExperts stored(shape, experts, order);
    std::vector<std::byte> out(x.size(), std::byte{0xa5});
    runner.run({16, Dtype::BF16, {}, stored.experts()}, x.data(), rows, splits, probs.data(), out.data(), 1);
    return out;
  }
};

/// Rows behind the last split included.
TEST(CudaForward, GivesWhatTheKernelsGive) {
  const Call call;
  const auto cpu = make_mlp_runner("cpu");
  const auto cuda = make_mlp_runner("cuda:1");
  EXPECT_EQ(cuda->name(), "cuda:1");
  for (const Fc1Order& order : fc1_orders(8)) EXPECT_EQ(call.run(*cuda, order), call.run(*cpu, order)) << order.name;
}

TEST(CudaForward, ExpertsOfSeveralWidths) {
  Call call;
  call.shape.widths = {8, 24, 24, 8, 16};
  call.experts = random_experts(call.shape, call.random);
  call.splits = {1, 2, 0, 1, 2};
  const auto cpu = make_mlp_runner("cpu");
  const auto cuda = make_mlp_runner("cuda");
  for (const Fc1Order& order : {Fc1Order{"split", 0, false, false}, {"interleaved:4", 4, false, false}})
    EXPECT_EQ(call.run(*cuda, order), call.run(*cpu, order)) << order.name;
}

TEST(CudaForward, NoRowsAtAll) {
  Call call;
  const auto cuda = make_mlp_runner("cuda");
  call.rows = 0;
  call.x.clear();
  call.splits = {0, 0, 0};
  EXPECT_TRUE(call.run(*cuda, {"split", 0, false, false}).empty());
}

/// More than one half of the page-locked memory, several times over.
TEST(CudaForward, ManyBytes) {
  Call call;
  call.shape = {512, {2048, 2048, 2048}, Dtype::F32, {}, false};
  call.experts = random_experts(call.shape, call.random);
  call.x = to_bytes(random_values(7 * 512, 1, Dtype::F32, call.random), Dtype::F32);
  const StoredExperts stored(call.shape, call.experts, {"interleaved:32", 32, false, false});
  const auto answer = [&](MlpRunner& runner) {
    std::vector<std::byte> out(call.x.size());
    runner.run({512, Dtype::F32, {}, stored.experts()}, call.x.data(), 7, call.splits, call.probs.data(), out.data(),
               1);
    return out;
  };
  const auto cuda = make_mlp_runner("cuda");
  const auto cpu = make_mlp_runner("cpu");
  EXPECT_EQ(answer(*cuda), answer(*cpu));
  EXPECT_EQ(answer(*cuda), answer(*cpu));
  // Gate and up are uploaded once, though they share their bytes.
  constexpr i64 kWeights = i64{3} * 3 * 512 * 2048 * 4;
  EXPECT_LT(fake_cuda::device_usage(0).peak_bytes, kWeights + (i64{1} << 20));
  EXPECT_LE(fake_cuda::pinned_usage().peak_bytes, i64{16} << 20);
}

TEST(CudaForward, FailuresNameTheCallAndLeaveNothing) {
  const Call call;
  for (const auto& [name, status, code] :
       {std::tuple{"cudaMalloc", cudaErrorMemoryAllocation, ErrorCode::NoMemory},
        std::tuple{"cudaMemcpyAsync", cudaErrorLaunchFailure, ErrorCode::DeviceFailed},
        std::tuple{"grouped_mlp", cudaErrorLaunchFailure, ErrorCode::DeviceFailed},
        std::tuple{"cudaStreamSynchronize", cudaErrorLaunchFailure, ErrorCode::DeviceFailed}}) {
    SCOPED_TRACE(name);
    for (int nth = 1; nth < 100; ++nth) {
      fake_cuda::start();
      const auto cuda = make_mlp_runner("cuda");
      fake_cuda::fail_call(name, nth, status);
      try {
        call.run(*cuda, {"interleaved:2", 2, false, false});
        EXPECT_FALSE(fake_cuda::call_failed());
        EXPECT_GT(nth, 1);
        break;
      } catch (const Error& error) {
        EXPECT_EQ(slug(error.code()), slug(code)) << error.what();
      }
    }
  }
}

TEST(CudaForward, RefusesDevicesThatAreNotThere) {
  expect_error(
      ErrorCode::NoDevice, [] { make_mlp_runner("cuda:2"); }, "cuda:2");
  expect_error(
      ErrorCode::Usage, [] { make_mlp_runner("cuda:all"); }, "one GPU");
  expect_error(
      ErrorCode::Usage, [] { make_mlp_runner("gpu"); }, "'gpu'");
  fake_cuda::start(0);
  expect_error(
      ErrorCode::NoDevice, [] { make_mlp_runner("cuda"); }, "--device cpu");
}

}  // namespace
}  // namespace glu_ckpt
