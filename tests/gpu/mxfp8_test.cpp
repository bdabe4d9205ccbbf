/// MXFP8 on the device against the functions for the host: the same bits, padding and guards untouched.

#include "glu_ckpt/ops/mxfp8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "core/float_rows.hpp"
#include "gpu/guarded_array.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using u8 = std::uint8_t;
using Bytes = std::vector<u8>;

constexpr u8 kPoison = 0xa5;

/// The case, and how far its arrays are shifted from multiples of 256.
struct MxCase {
  MxFormat format;
  Dtype values = Dtype::BF16;
  /// Behind each row of scales.
  i64 more_step = 0;
  i64 shift = 0;

  i64 count() const { return format.rows * format.cols; }
  i64 scale_step() const { return mx_compact_extents(format).cols + more_step; }
  i64 scale_bytes() const { return mx_compact_extents(format).rows * scale_step(); }
  std::string describe() const {
    return std::to_string(format.rows) + " x " + std::to_string(format.cols) +
           (format.axis == MxAxis::Row ? " rows " : " columns ") + std::string(dtype_name(format.element)) + " from " +
           std::string(dtype_name(values)) + ", step +" + std::to_string(more_step) + ", shift " +
           std::to_string(shift);
  }
};

Bytes bytes_of(const GuardedArray& array) {
  const auto all = array.download();
  Bytes bytes(all.size());
  std::memcpy(bytes.data(), all.data(), all.size());
  return bytes;
}

/// Values as they are stored: blocks of ordinary ones, and of zeros, subnormals, NaNs and infinities.
std::vector<std::byte> values_for(const MxCase& c, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(c.count()));
  const auto bits = [](u32 word) { return std::bit_cast<float>(word); };
  for (std::size_t i = 0; i < values.size(); ++i) {
    const u32 kind = static_cast<u32>(i / 32 % 11);
    const auto any = static_cast<u32>(random());
    switch (kind) {
      case 0: values[i] = any % 2 == 0 ? 0.0F : -0.0F; break;
      case 1: values[i] = bits(any & 0x807f'ffff); break;
      case 2: values[i] = any % 5 == 0 ? bits(0x7fc0'0000 | (any & 0x8000'0000)) : 1.0F; break;
      case 3: values[i] = any % 7 == 0 ? bits(0x7f80'0000 | (any & 0x8000'0000)) : 3.0F; break;
      case 4: values[i] = bits(any); break;
      default:
        values[i] =
            std::ldexp(static_cast<float>(static_cast<int>(any % 2001) - 1000), static_cast<int>(kind) * 3 - 20);
    }
  }
  std::vector<std::byte> stored(values.size() * static_cast<std::size_t>(dtype_bits(c.values) / 8));
  narrow_row(values, c.values, stored.data());
  return stored;
}

struct Expected {
  Bytes data;
  Bytes scales;
};

Expected on_host(const MxCase& c, const std::vector<std::byte>& values) {
  Expected expected{Bytes(static_cast<std::size_t>(c.count())),
                    Bytes(static_cast<std::size_t>(c.scale_bytes()), kPoison)};
  mx_quantize_host(c.format, values.data(), c.values, expected.data.data(), expected.scales.data(), c.scale_step());
  return expected;
}

void expect_quantized(const MxCase& c, const std::vector<std::byte>& values) {
  SCOPED_TRACE(c.describe());
  const CudaStream stream;
  const GuardedArray in(values, c.shift * 4);
  const GuardedArray data(c.count(), c.shift);
  const GuardedArray scales(c.scale_bytes(), c.shift);
  mx_quantize(c.format, in.data(), c.values, reinterpret_cast<u8*>(data.data()), reinterpret_cast<u8*>(scales.data()),
              c.scale_step(), stream.get());
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  const Expected expected = on_host(c, values);
  EXPECT_EQ(bytes_of(data), expected.data);
  EXPECT_EQ(bytes_of(scales), expected.scales) << "padding is left as it is";
  EXPECT_TRUE(data.guards_intact() && scales.guards_intact() && in.guards_intact());
}

void expect_dequantized(const MxCase& c, const Bytes& codes, const Bytes& scale_bytes, Dtype to) {
  SCOPED_TRACE(c.describe() + " to " + std::string(dtype_name(to)));
  const CudaStream stream;
  const GuardedArray data(codes, c.shift);
  const GuardedArray scales(scale_bytes, c.shift);
  const GuardedArray out(c.count() * (dtype_bits(to) / 8), c.shift * 4);
  mx_dequantize(c.format, reinterpret_cast<const u8*>(data.data()), reinterpret_cast<const u8*>(scales.data()),
                c.scale_step(), out.data(), to, stream.get());
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  Bytes expected(static_cast<std::size_t>(out.bytes()));
  mx_dequantize_host(c.format, codes.data(), scale_bytes.data(), c.scale_step(), expected.data(), to);
  EXPECT_EQ(bytes_of(out), expected);
  EXPECT_TRUE(out.guards_intact());
}

/// Both axes, whole tiles and not, one block, many; columns that no vector fits.
std::vector<MxCase> cases() {
  std::vector<MxCase> all;
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (const Dtype values : {Dtype::BF16, Dtype::F16, Dtype::F32}) {
      for (const auto& [rows, cols] :
           {std::pair<i64, i64>{1, 32}, {32, 32}, {33, 96}, {128, 128}, {300, 1056}, {7, 4128}})
        all.push_back({{rows, cols, MxAxis::Row, element}, values});
      for (const auto& [rows, cols] :
           {std::pair<i64, i64>{32, 1}, {32, 8}, {64, 64}, {96, 72}, {128, 33}, {320, 1032}, {32, 4104}})
        all.push_back({{rows, cols, MxAxis::Column, element}, values});
    }
  const std::vector<MxCase> plain = all;
  for (MxCase c : plain) {
    c.shift = 1;
    all.push_back(c);
    c.shift = 0;
    c.more_step = 3;
    all.push_back(c);
  }
  return all;
}

TEST(Mxfp8OnDevice, QuantizesLikeTheHost) {
  unsigned seed = 0;
  for (const MxCase& c : cases()) expect_quantized(c, values_for(c, ++seed));
}

/// Each of the 65536 values, beside itself, beside a value 100 times as large, and beside a NaN.
TEST(Mxfp8OnDevice, QuantizesEveryBf16Value) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (const MxAxis axis : {MxAxis::Row, MxAxis::Column}) {
      const MxCase c = axis == MxAxis::Row ? MxCase{{65536, 32, axis, element}} : MxCase{{32, 65536, axis, element}};
      std::vector<std::uint16_t> values(static_cast<std::size_t>(c.count()));
      for (std::size_t v = 0; v < 65536; ++v)
        for (std::size_t i = 0; i < 32; ++i) {
          const std::size_t at = axis == MxAxis::Row ? v * 32 + i : i * 65536 + v;
          const auto bits = static_cast<std::uint16_t>(v);
          const auto shifted = static_cast<std::uint16_t>((v & 0x807f) | (v & 0x7f80) / 2);
          values[at] = i % 8 == 0 ? bits : i % 8 == 1 ? shifted : static_cast<std::uint16_t>(v * 31 + i * 977);
          if (i >= 16 && v % 3 == 0) values[at] = static_cast<std::uint16_t>(bits ^ 0x8000);
          if (i == 31 && v % 5 == 0) values[at] = 0xffc1;
        }
      std::vector<std::byte> stored(values.size() * 2);
      std::memcpy(stored.data(), values.data(), stored.size());
      expect_quantized(c, stored);
    }
}

/// Blocks of one value each: the scale is then that value's own.
TEST(Mxfp8OnDevice, QuantizesBlocksOfOneValue) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2}) {
    const MxCase c{{65536, 32, MxAxis::Row, element}};
    std::vector<std::byte> stored(static_cast<std::size_t>(c.count()) * 2);
    for (std::size_t i = 0; i < stored.size() / 2; ++i) {
      const auto bits = static_cast<std::uint16_t>(i / 32);
      std::memcpy(stored.data() + 2 * i, &bits, 2);
    }
    expect_quantized(c, stored);
  }
}

TEST(Mxfp8OnDevice, DequantizesEveryCodeUnderEveryScale) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (const Dtype to : {Dtype::F32, Dtype::BF16})
      for (const i64 shift : {0, 1}) {
        MxCase c{{256 * 8, 32, MxAxis::Row, element}, to, 0, shift};
        Bytes codes(static_cast<std::size_t>(c.count()));
        std::iota(codes.begin(), codes.end(), u8{0});
        Bytes scales(static_cast<std::size_t>(c.scale_bytes()));
        for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<u8>(i / 4 / 8);
        expect_dequantized(c, codes, scales, to);
        c.format = {32, 65536, MxAxis::Column, element};
        codes.resize(static_cast<std::size_t>(c.count()));
        for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<u8>(i / 65536 * 8 + i % 8);
        scales.resize(static_cast<std::size_t>(c.scale_bytes()));
        for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<u8>(i / 8);
        expect_dequantized(c, codes, scales, to);
      }
}

TEST(Mxfp8OnDevice, DequantizesLikeTheHost) {
  unsigned seed = 100;
  for (const MxCase& c : cases()) {
    if (c.values == Dtype::F16) continue;
    const Expected stored = on_host(c, values_for(c, ++seed));
    expect_dequantized(c, stored.data, stored.scales, c.values);
  }
}

TEST(Mxfp8OnDevice, SwizzlesLikeTheHost) {
  const CudaStream stream;
  for (const MxAxis axis : {MxAxis::Row, MxAxis::Column})
    for (const auto& [rows, cols] :
         {std::pair<i64, i64>{128, 128}, {32, 32}, {160, 96}, {416, 288}, {64, 4160}, {4160, 64}})
      for (const i64 shift : {0, 4, 1}) {
        const MxFormat format{rows, cols, axis, Dtype::F8_E4M3};
        const MxExtents compact = mx_compact_extents(format);
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + ", shift " + std::to_string(shift));
        Bytes scales(static_cast<std::size_t>(compact.rows * compact.cols));
        for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<u8>(1 + i * 131 % 251);
        Bytes swizzled(scales.size()), back(scales.size());
        mx_swizzle_host(format, scales.data(), swizzled.data());
        mx_unswizzle_host(format, swizzled.data(), back.data());
        const GuardedArray in(scales, shift);
        const GuardedArray middle(std::ssize(scales), shift);
        const GuardedArray out(std::ssize(scales), shift);
        mx_swizzle(format, reinterpret_cast<const u8*>(in.data()), reinterpret_cast<u8*>(middle.data()), stream.get());
        mx_unswizzle(format, reinterpret_cast<const u8*>(middle.data()), reinterpret_cast<u8*>(out.data()),
                     stream.get());
        CUDA_CHECK(cudaStreamSynchronize(stream.get()));
        EXPECT_EQ(bytes_of(middle), swizzled);
        EXPECT_EQ(bytes_of(out), back);
        EXPECT_TRUE(middle.guards_intact() && out.guards_intact());
      }
}

TEST(Mxfp8OnDevice, MistakesAreFoundBeforeTheLaunch) {
  const CudaStream stream;
  const GuardedArray memory(4096);
  auto* bytes = reinterpret_cast<u8*>(memory.data());
  const MxFormat format{32, 32, MxAxis::Row, Dtype::F8_E4M3};
  const auto quantize = [&](const MxFormat& of, const void* values, Dtype from, i64 step) {
    return slug_of([&] { mx_quantize(of, values, from, bytes, bytes, step, stream.get()); });
  };
  EXPECT_EQ(quantize(format, nullptr, Dtype::BF16, 4), "usage");
  EXPECT_EQ(quantize(format, bytes + 1, Dtype::BF16, 4), "usage");
  for (const Dtype dtype : {Dtype::I32, Dtype::U8, Dtype::F8_E4M3, Dtype::F64})
    EXPECT_EQ(quantize(format, bytes, dtype, 4), "usage");
  EXPECT_EQ(quantize(format, bytes, Dtype::BF16, 0), "usage");
  EXPECT_EQ(quantize({32, 33, MxAxis::Row, Dtype::F8_E4M3}, bytes, Dtype::BF16, 4), "usage");
  EXPECT_EQ(quantize({33, 32, MxAxis::Column, Dtype::F8_E4M3}, bytes, Dtype::BF16, 64), "usage");
  EXPECT_EQ(quantize({32, 32, MxAxis::Row, Dtype::U8}, bytes, Dtype::BF16, 4), "usage");
  for (const Dtype dtype : {Dtype::F16, Dtype::U8})
    EXPECT_EQ(slug_of([&] { mx_dequantize(format, bytes, bytes, 4, bytes, dtype, stream.get()); }), "usage");
  EXPECT_EQ(slug_of([&] { mx_swizzle(format, bytes, nullptr, stream.get()); }), "usage");
  // Nothing to do is no mistake.
  EXPECT_EQ(quantize({0, 32, MxAxis::Row, Dtype::F8_E4M3}, nullptr, Dtype::BF16, 4), "none");
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(memory.download(), std::vector<std::byte>(4096, std::byte{kPoison}));
}

}  // namespace
}  // namespace glu_ckpt
