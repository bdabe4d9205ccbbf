/// Groups of elements compared on the device and on the host: the same numbers to the last bit, sums included.

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "gpu/odd_elements.hpp"
#include "verify/compare_elements.hpp"

namespace glu_ckpt {
namespace {

class CompareParts : public testing::Test {
 protected:
  void expect_same(Dtype dtype_a, const Bytes& a, Dtype dtype_b, const Bytes& b, i64 group) {
    const std::vector<ElementDiff> on_gpu = gpu_->compare(dtype_a, a, dtype_b, b, group);
    const std::vector<ElementDiff> on_cpu = cpu_->compare(dtype_a, a, dtype_b, b, group);
    ASSERT_EQ(on_gpu.size(), on_cpu.size());
    for (std::size_t i = 0; i < on_cpu.size(); ++i) {
      const ElementDiff &x = on_gpu[i], &y = on_cpu[i];
      SCOPED_TRACE(testing::Message() << dtype_name(dtype_a) << " " << dtype_name(dtype_b) << " group " << i << " of "
                                      << group);
      EXPECT_EQ(x.elements, y.elements);
      EXPECT_EQ(x.differing, y.differing);
      EXPECT_EQ(x.first, y.first);
      EXPECT_EQ(x.max_abs, y.max_abs);
      EXPECT_EQ(x.max_rel, y.max_rel);
      EXPECT_EQ(std::bit_cast<u64>(x.sum_squares), std::bit_cast<u64>(y.sum_squares));
      EXPECT_EQ(std::bit_cast<u64>(x.squares_a), std::bit_cast<u64>(y.squares_a));
      EXPECT_EQ(std::bit_cast<u64>(x.squares_b), std::bit_cast<u64>(y.squares_b));
      EXPECT_EQ(x.nan_in_one, y.nan_in_one);
      differing_ += x.differing;
    }
  }

  std::unique_ptr<Backend> cuda_ = make_backend("cuda"), host_ = make_backend("cpu");
  std::unique_ptr<GroupComparer> gpu_ = make_comparer(*cuda_, 0), cpu_ = make_comparer(*host_, 0);
  std::mt19937_64 random_{7};
  i64 differing_ = 0;
};

TEST_F(CompareParts, OneDtype) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F64, Dtype::F8_E4M3, Dtype::I16, Dtype::I32,
                            Dtype::I64, Dtype::BOOL, Dtype::C64})
    for (const i64 count : {1, 7, 1023, 1024, 1025, 70'001})
      for (const i64 group : {1024, 1600, 7168}) {
        const Bytes a = random_bytes(count, dtype, random_);
        expect_same(dtype, a, dtype, a, group);
        expect_same(dtype, a, dtype, altered(a, dtype, 3, random_), group);
        expect_same(dtype, a, dtype, altered(a, dtype, 5000, random_), group);
      }
  EXPECT_GT(differing_, 1000);
}

TEST_F(CompareParts, TwoDtypes) {
  const Dtype numbers[] = {Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F64};
  for (const Dtype a : numbers)
    for (const Dtype b : numbers)
      if (a != b) expect_same(a, random_bytes(9001, a, random_), b, random_bytes(9001, b, random_), 2048);
  EXPECT_GT(differing_, 1000);
}

/// More than the device takes at a time.
TEST_F(CompareParts, ManyBatches) {
  constexpr i64 kCount = 9'000'001;
  Bytes a(static_cast<std::size_t>(kCount) * 2, std::byte{0x3f});
  Bytes b = a;
  b.back() = std::byte{0x40};
  b[2 * 5'000'000] = std::byte{0x3e};
  expect_same(Dtype::BF16, a, Dtype::BF16, b, 7168);
  EXPECT_EQ(differing_, 2);
}

}  // namespace
}  // namespace glu_ckpt
