#include <gtest/gtest.h>

#include "bench/bench.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/device_forward.hpp"
#include "glu_ckpt/ops/token_padding.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

/// With and without nvcc, with and without a driver: asking for what is not there says so.
TEST(NoCuda, WithoutADeviceTheReasonIsGiven) {
  EXPECT_EQ(slug_of([] { cuda_device(cuda_device_count()); }), "no-device");
  EXPECT_EQ(why_no_cuda().empty(), cuda_device_count() > 0);
  if (!built_with_cuda()) {
    EXPECT_EQ(cuda_device_count(), 0);
  }
}

TEST(NoCuda, WhatNeedsADeviceRefuses) {
  if (cuda_device_count() > 0) return;
  EXPECT_EQ(slug_of([] { bench_forward({}); }), "no-device");
  if (built_with_cuda()) return;
  EXPECT_EQ(slug_of([] { pad_rows_device({}, nullptr, 1, nullptr, nullptr); }), "no-device");
  EXPECT_EQ(slug_of([] { DeviceGroupedMlp({}, 0, nullptr); }), "no-device");
  EXPECT_EQ(slug_of([] { (void)capture_number(nullptr); }), "no-device");
  EXPECT_EQ(slug_of([] { const BesideCaptures beside; }), "no-device");
}

}  // namespace
}  // namespace glu_ckpt
