/// Products of factors that are added to weights: every level of instructions gives the bits of one element after the
/// other, and any cut of a read gives the bytes of the whole.

#include "adapters/merged_source.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "adapters/add_product.hpp"
#include "core/float_rows.hpp"
#include "support/memory_checkpoint.hpp"

namespace glu_ckpt {
namespace {

using support::MemorySource;
using support::MemoryTensor;

std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<std::byte> stored(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(dtype_bits(dtype) / 8));
  narrow_row(values, dtype, bytes.data());
  return bytes;
}

TEST(AddProduct, EveryLevelGivesTheBitsOfOneElementAfterTheOther) {
  int differing_forms = 0;
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
    for (const i64 rank : {1, 5, 16, 64})
      for (const i64 count : {1, 7, 16, 33, 511, 512, 513, 1400}) {
        constexpr std::size_t kLines = 7;
        const auto values = numbers(static_cast<std::size_t>(rank) * 1500, 2);
        const ProductVectors vectors{values.data(), rank, 1500};
        std::vector<std::byte> forms[2];
        for (const bool rounds : {false, true}) {
          const Merging merging{1.7F, rounds};
          const std::vector<std::byte> start = stored(numbers(kLines * static_cast<std::size_t>(count), 3), dtype);
          const std::vector<float> coefficients = numbers(kLines * static_cast<std::size_t>(rank), 1);
          const auto lines_in = [&](std::vector<std::byte>& bytes) {
            std::vector<ProductLine> lines;
            for (i64 line = 0; line < static_cast<i64>(kLines); ++line)
              // DoRA's numbers, one for each element or one for the line, or none.
              lines.push_back({coefficients.data() + line * rank,
                               bytes.data() + line * count * (dtype_bits(dtype) / 8),
                               {line % 3 == 0 ? nullptr : values.data() + line, line % 3 == 1 ? 1 : 0}});
            return lines;
          };
          auto expected = start;
          add_product_one_by_one(lines_in(expected), vectors, merging, dtype, count);
          for (const SimdLevel level : simd_levels())
            for (const std::size_t first : {std::size_t{0}, std::size_t{3}}) {
              auto got = start;
              const std::vector<ProductLine> lines = lines_in(got);
              add_product(std::span(lines).first(first), vectors, merging, dtype, count, level);
              add_product(std::span(lines).subspan(first), vectors, merging, dtype, count, level);
              ASSERT_EQ(got, expected) << dtype_name(dtype) << " " << rank << " " << count;
            }
          forms[rounds] = expected;
        }
        differing_forms += forms[0] != forms[1] ? 1 : 0;
      }
  EXPECT_GT(differing_forms, 20);
}

/// Two experts of [rows, cols] in one tensor, gate and up in turn, as they lie and turned.
std::vector<MergedMatrix> two_experts(i64 rows, i64 cols, bool by_columns) {
  std::vector<MergedMatrix> matrices;
  for (i64 expert = 0; expert < 2; ++expert)
    for (const Role role : {Role::Gate, Role::Up}) {
      MergedMatrix one;
      const i64 first = role == Role::Up ? 1 : 0, offset = expert * 2 * rows * cols * 2;
      one.matrix = {.tensor = 0,
                    .role = role,
                    .dtype = Dtype::BF16,
                    .expert = expert,
                    .rows = rows,
                    .cols = cols,
                    .element_bytes = 2,
                    .place = {},
                    .tail = {}};
      one.matrix.place = by_columns ? Placement{offset + first * 2, rows, 0, 4, 2 * rows * 2}
                                    : Placement{offset + first * cols * 2, rows, 0, 2 * cols * 2, 2};
      one.factors = {.a = 0,
                     .b = 1,
                     .rank = 3,
                     .inputs = cols,
                     .outputs = rows,
                     .expert = expert,
                     .experts = 2,
                     .first_row = first,
                     .block_rows = 1};
      one.merging = {0.5F, true};
      matrices.push_back(one);
    }
  return matrices;
}

TEST(MergedSource, AnyCutOfAReadGivesTheBytesOfTheWhole) {
  constexpr i64 kRows = 6, kCols = 10, kBytes = 2 * 2 * kRows * kCols * 2;
  for (const bool by_columns : {false, true}) {
    const std::vector<i64> shape =
        by_columns ? std::vector<i64>{2, kCols, 2 * kRows} : std::vector<i64>{2, 2 * kRows, kCols};
    const auto open = [&](MergePath path, SimdLevel level) {
      std::unique_ptr<Source> base = std::make_unique<MemorySource>(
          std::vector<MemoryTensor>{{"experts", Dtype::BF16, shape, stored(numbers(kBytes / 2, 5), Dtype::BF16)}});
      auto adapter = std::make_unique<MemorySource>(
          std::vector<MemoryTensor>{{"a", Dtype::F32, {6, kCols}, stored(numbers(6 * kCols, 6), Dtype::F32)},
                                    {"b", Dtype::F32, {2 * kRows, 6}, stored(numbers(2 * kRows * 6, 7), Dtype::F32)}});
      merge_source(base, std::move(adapter), two_experts(kRows, kCols, by_columns), "peft", path, level);
      return base;
    };
    const auto source = open(MergePath::Fast, simd_levels().front()), plain = open(MergePath::Plain, SimdLevel::Plain);
    std::vector<std::byte> whole(kBytes), other(kBytes);
    plain->read(0, 0, whole);
    for (const SimdLevel level : simd_levels()) {
      open(MergePath::Fast, level)->read(0, 0, other);
      EXPECT_EQ(whole, other) << static_cast<int>(level);
    }
    EXPECT_NE(whole, stored(numbers(kBytes / 2, 5), Dtype::BF16));
    for (i64 begin = 0; begin < kBytes; begin += 3)
      for (const i64 length : {1, 2, 5, 24, 77}) {
        std::vector<std::byte> part(static_cast<std::size_t>(std::min(length, kBytes - begin)));
        const auto middle = part.begin() + static_cast<std::ptrdiff_t>(part.size() / 2);
        const std::span<std::byte> pieces[] = {{part.begin(), middle}, {middle, part.end()}};
        source->read_scattered(0, begin, pieces);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin, part.size()), 0) << begin << " " << length;
      }
  }
}

/// A finite weight that becomes infinite or NaN is refused by name; those that are so by themselves are moved.
TEST(MergedSource, NoWeightBecomesInfiniteOrNan) {
  constexpr i64 kRows = 3, kCols = 4;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
    for (const MergePath path : {MergePath::Fast, MergePath::Plain})
      for (const bool by_columns : {false, true}) {
        const auto read = [&](float weight, float factor) {
          std::vector<float> weights(kRows * kCols, 1), a(kCols, 0), b(kRows, 1);
          weights[by_columns ? 7 : 6] = weight;
          a[2] = factor;
          const i64 size = dtype_bits(dtype) / 8;
          std::unique_ptr<Source> source = std::make_unique<MemorySource>(std::vector<MemoryTensor>{
              {"w", dtype, by_columns ? std::vector<i64>{kCols, kRows} : std::vector<i64>{kRows, kCols},
               stored(weights, dtype)}});
          MergedMatrix one;
          one.matrix = {.tensor = 0,
                        .role = Role::Up,
                        .dtype = dtype,
                        .rows = kRows,
                        .cols = kCols,
                        .element_bytes = size,
                        .place = by_columns ? Placement{0, kRows, 0, size, kRows * size}
                                            : Placement{0, kRows, 0, kCols * size, size},
                        .tail = {}};
          one.factors = {.a = 0, .b = 1, .rank = 1, .inputs = kCols, .outputs = kRows};
          one.merging = {1.0F, false};
          merge_source(source,
                       std::make_unique<MemorySource>(
                           std::vector<MemoryTensor>{{"a", Dtype::F32, {1, kCols}, stored(a, Dtype::F32)},
                                                     {"b", Dtype::F32, {kRows, 1}, stored(b, Dtype::F32)}}),
                       {one}, "peft", path);
          std::vector<std::byte> whole(static_cast<std::size_t>(kRows * kCols * size));
          source->read(0, 0, whole);
          return count_not_finite(whole, dtype);
        };
        const float most = dtype == Dtype::F16 ? 65504 : dtype == Dtype::BF16 ? 0x1.FEp127F : 0x1.FFFFFEp127F;
        const std::string at = by_columns ? "element [2, 1] is " : "element [1, 2] is ";
        for (const float factor : {most, kInfinity, std::numeric_limits<float>::quiet_NaN()}) try {
            (void)read(most, factor);
            ADD_FAILURE() << factor;
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::NotExact);
            EXPECT_EQ(error.tensor(), "w");
            const std::string what = error.what();
            // The first of those that are infinite or NaN is another one where the factor is.
            if (factor == most) {
              EXPECT_NE(what.find(at), what.npos) << what;
            }
            EXPECT_NE(what.find(std::isnan(factor) ? ", and NaN with" : ", and infinite with"), what.npos) << what;
          }
        EXPECT_EQ(read(most, 0), 0);
        EXPECT_EQ(read(kInfinity, 1), 1);
        EXPECT_EQ(read(std::numeric_limits<float>::quiet_NaN(), 1), 1);
      }
}

}  // namespace
}  // namespace glu_ckpt
