/// Padding in device memory against padding in host memory.

#include "glu_ckpt/ops/token_padding.hpp"

#include <gtest/gtest.h>

#include <random>

#include "gpu/guarded_array.hpp"

namespace glu_ckpt {
namespace {

TEST(DeviceTokenPadding, AsOnTheHost) {
  const CudaStream stream;
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    std::vector<i64> splits(1 + random() % 9);
    for (i64& split : splits) split = random() % 3 == 0 ? 0 : static_cast<i64>(random() % 300);
    const i64 alignment = std::vector<i64>{0, 16, 32, 128, 256}[random() % 5];
    const i64 row_bytes = 1 + static_cast<i64>(random() % 4100);
    const TokenPadding padding = make_token_padding(splits, alignment);
    SCOPED_TRACE(shape_text(splits) + " to multiples of " + std::to_string(alignment));
    std::vector<std::byte> rows(static_cast<std::size_t>(padding.rows * row_bytes));
    for (std::byte& byte : rows) byte = static_cast<std::byte>(random());
    std::vector<std::byte> expected(static_cast<std::size_t>(padding.padded_rows * row_bytes));
    pad_rows(padding, rows, row_bytes, expected);

    const GuardedArray device_rows(rows), padded(std::ssize(expected)), back(std::ssize(rows));
    pad_rows_device(padding, device_rows.data(), row_bytes, padded.data(), stream.get());
    unpad_rows_device(padding, padded.data(), row_bytes, back.data(), stream.get());
    EXPECT_TRUE(padded.download() == expected);
    EXPECT_TRUE(back.download() == rows);
    EXPECT_TRUE(padded.guards_intact() && back.guards_intact());
  }
}

}  // namespace
}  // namespace glu_ckpt
