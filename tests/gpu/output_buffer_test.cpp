/// The grouped MLP of a GPU into a caller's buffer.

#include "glu_ckpt/ops/output_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "gpu/guarded_array.hpp"
#include "support/mlp_cases.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr i64 kRows = 70, kWritten = 61, kHidden = 64, kWidth = 96;

/// Three experts of bf16 values in device memory, one tensor each, and tokens of two of them.
class DeviceMlpInto : public testing::Test {
 protected:
  DeviceMlpInto() {
    for (int e = 0; e < 3; ++e) {
      ExpertWeights& expert = experts_.emplace_back();
      expert.gate = on_device(kWidth, kHidden);
      expert.up = on_device(kWidth, kHidden);
      expert.down = on_device(kHidden, kWidth);
    }
    std::vector<float> probs;
    for (i64 t = 0; t < kRows; ++t) probs.push_back(0.01F * static_cast<float>(t + 1));
    probs_.upload(probs);
    tensors_.x = {x_.data(), Dtype::BF16, {kRows, kHidden}, {}, "cuda", false};
    tensors_.splits = {splits_.data(), Dtype::I64, {3}, {}, "cuda:0", false};
    tensors_.probs = {probs_.data(), Dtype::F32, {kRows}, {}, "cuda:0", false};
    buffer_ = {out_.data(), Dtype::BF16, {kRows, kHidden}, {kHidden, 1}, "cuda:0", false};
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  std::vector<std::byte> random_bytes(i64 count, double scale) {
    return to_bytes(random_values(static_cast<std::size_t>(count), scale, Dtype::BF16, random_), Dtype::BF16);
  }

  StoredMatrix on_device(i64 rows, i64 cols) {
    const GuardedArray& array = weights_.emplace_back(random_bytes(rows * cols, 0.2));
    return {Dtype::BF16, rows, cols, {array.data(), {0, rows, rows * cols * 2, cols * 2, 2}}, {}, rows};
  }

  GroupedMlp mlp() const { return {kHidden, Dtype::BF16, {}, experts_}; }

  CudaStream stream_;
  std::mt19937 random_{11};
  std::vector<GuardedArray> weights_;
  std::vector<ExpertWeights> experts_;
  GuardedArray x_{random_bytes(kRows * kHidden, 1)};
  GuardedArray splits_{std::vector<i64>{40, 0, 21}};
  GuardedArray probs_{kRows * 4};
  GuardedArray out_{kRows * kHidden * 2};
  GuardedArray other_{kRows * kHidden * 2};
  int allocations_ = 0;
  AllocateOutput allocate_ = [this](i64 bytes, const std::string& device) {
    ++allocations_;
    EXPECT_EQ(bytes, other_.bytes());
    EXPECT_EQ(device, "cuda:0");
    return other_.data();
  };
  MlpTensors tensors_;
  TensorView buffer_;
};

TEST_F(DeviceMlpInto, TheBufferIsTheOutputAndItsTailStays) {
  const DeviceGroupedMlp run(mlp(), kRows, stream_.get());
  tensors_.out = &buffer_;
  EXPECT_EQ(grouped_mlp_into(run, mlp(), tensors_, allocate_, stream_.get()).data, out_.data());
  EXPECT_EQ(allocations_, 0);
  run.check_splits(stream_.get());
  tensors_.out = nullptr;
  EXPECT_EQ(grouped_mlp_into(run, mlp(), tensors_, allocate_, stream_.get()).data, other_.data());
  EXPECT_EQ(allocations_, 1);
  const auto out = out_.download();
  EXPECT_TRUE(out == other_.download());
  EXPECT_TRUE(out_.guards_intact() && other_.guards_intact());

  const GuardedArray direct(kRows * kHidden * 2);
  run.run(x_.data(), kRows, reinterpret_cast<const i64*>(splits_.data()), reinterpret_cast<const float*>(probs_.data()),
          direct.data(), stream_.get());
  EXPECT_TRUE(out == direct.download());
  for (std::size_t i = kWritten * kHidden * 2; i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0xa5}) << i;
  const auto is_written = [](std::byte value) { return value != std::byte{0xa5}; };
  EXPECT_GT(std::count_if(out.begin(), out.end(), is_written), kWritten * kHidden);
}

TEST_F(DeviceMlpInto, WhatIsWrongLaunchesNothing) {
  const DeviceGroupedMlp run(mlp(), kRows, stream_.get());
  const auto slug_after = [&](auto&& plant) {
    MlpTensors tensors = tensors_;
    TensorView buffer = buffer_;
    tensors.out = &buffer;
    plant(tensors, buffer);
    return slug_of([&] { grouped_mlp_into(run, mlp(), tensors, allocate_, stream_.get()); });
  };
  EXPECT_EQ(slug_after([](MlpTensors& t, TensorView&) { t.x.device = "cpu"; }), "usage");
  EXPECT_EQ(slug_after([](MlpTensors& t, TensorView&) { t.x.dtype = Dtype::F32; }), "usage");
  EXPECT_EQ(slug_after([](MlpTensors& t, TensorView&) { t.splits.device = "cpu"; }), "usage");
  EXPECT_EQ(slug_after([](MlpTensors& t, TensorView&) { t.probs.device = "cuda:1"; }), "usage");
  EXPECT_EQ(slug_after([](MlpTensors&, TensorView& b) { b.shape = {kRows + 1, kHidden}; }), "usage");
  EXPECT_EQ(slug_after([](MlpTensors&, TensorView& b) { b.device = "cuda:1"; }), "usage");
  EXPECT_EQ(slug_after([](MlpTensors&, TensorView& b) { b.strides = {2 * kHidden, 1}; }), "usage");
  EXPECT_EQ(slug_after([](MlpTensors&, TensorView& b) { b.requires_grad = true; }), "usage");
  EXPECT_EQ(slug_after([&](MlpTensors&, TensorView& b) { b.data = x_.data(); }), "usage");
  EXPECT_EQ(allocations_, 0);
  for (const std::byte value : out_.download()) ASSERT_EQ(value, std::byte{0xa5});
}

}  // namespace
}  // namespace glu_ckpt
