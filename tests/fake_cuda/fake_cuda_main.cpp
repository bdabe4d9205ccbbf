/// The GPU backend, and unit and property tests through it, over a fake CUDA runtime: needs neither nvcc nor a GPU. The
/// argument is the device to convert on.

#include <gtest/gtest.h>

#include "fake_cuda/fake_runtime.hpp"
#include "support/convert.hpp"

namespace {

/// What holds for every test: all is given back, and nothing was done that a GPU would not forgive.
class NothingLeft final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { glu_ckpt::fake_cuda::start(); }
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_EQ(glu_ckpt::fake_cuda::live_objects(), 0);
    for (const std::string& offence : glu_ckpt::fake_cuda::take_offences()) ADD_FAILURE() << offence;
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  glu_ckpt::support::test_device() = argc > 1 ? argv[1] : "cuda:all";
  testing::UnitTest::GetInstance()->listeners().Append(new NothingLeft);
  return RUN_ALL_TESTS();
}
