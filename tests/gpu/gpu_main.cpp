/// GPU tests where there is a GPU; elsewhere status 77, which Meson shows as skipped. Some of the unit and property
/// suites are built into this program too, and convert through all GPUs here.

#include <gtest/gtest.h>

#include <cstdio>

#include "glu_ckpt/ops/cuda.hpp"
#include "support/convert.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (glu_ckpt::cuda_device_count() == 0) {
    std::printf("skipped: %s\n", glu_ckpt::why_no_cuda().c_str());
    return 77;
  }
  glu_ckpt::support::test_device() = "cuda:all";
  return RUN_ALL_TESTS();
}
