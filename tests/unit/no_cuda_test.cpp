#include <gtest/gtest.h>

#include "glu_ckpt/cuda.hpp"
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

}  // namespace
}  // namespace glu_ckpt
