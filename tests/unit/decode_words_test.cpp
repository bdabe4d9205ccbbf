/// Words of AWQ and GPTQ: by table and one by one, for any rows, and one element by hand.

#include "quant/decode_words.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_rows.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kRows = 24;
constexpr i64 kCols = 64;
constexpr i64 kGroups = 4;

struct WordCase {
  std::vector<std::byte> words;
  std::vector<std::byte> zeros;
  std::vector<std::byte> scales;
  WordMatrix matrix;
};

/// Every byte tells its place; scales are of all sizes, one infinite and one NaN.
WordCase make_case(Codes codes, Dtype scale_dtype, bool has_zeros, bool reordered) {
  WordCase made;
  made.words.resize(kRows * kCols / 2);
  for (std::size_t i = 0; i < made.words.size(); ++i) made.words[i] = static_cast<std::byte>(i * 37 + i / 11);
  made.zeros.resize(kGroups * kRows / 2);
  for (std::size_t i = 0; i < made.zeros.size(); ++i) made.zeros[i] = static_cast<std::byte>(i * 53 + 5);
  std::vector<float> scales(static_cast<std::size_t>(kGroups * kRows));
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = std::ldexp(1.0F + static_cast<float>(i) / 97, static_cast<int>(i % 29) - 20);
  scales[7] = std::numeric_limits<float>::infinity();
  scales[30] = std::numeric_limits<float>::quiet_NaN();
  made.scales.resize(scales.size() * static_cast<std::size_t>(dtype_bits(scale_dtype)) / 8);
  narrow_row(scales, scale_dtype, made.scales.data());
  made.matrix = {.codes = codes,
                 .rows = kRows,
                 .cols = kCols,
                 .words = made.words.data(),
                 .scales = made.scales.data(),
                 .scale_dtype = scale_dtype,
                 .zeros = has_zeros ? made.zeros.data() : nullptr,
                 .zero_offset = codes == Codes::Gptq ? 1 : 0,
                 .groups = kGroups,
                 .group_of = std::vector<i64>(kCols)};
  for (i64 col = 0; col < kCols; ++col)
    made.matrix.group_of[static_cast<std::size_t>(col)] = reordered ? col * 7 % kGroups : col / (kCols / kGroups);
  return made;
}

TEST(DecodeWords, BothRoadsAgreeForAnyRows) {
  for (const Codes codes : {Codes::Awq, Codes::Gptq, Codes::Int4})
    for (const Dtype scale_dtype : {Dtype::F16, Dtype::BF16, Dtype::F32})
      for (const Dtype to : {Dtype::BF16, Dtype::F32})
        for (const bool has_zeros : {false, true})
          for (const bool reordered : {false, true}) {
            const WordCase made = make_case(codes, scale_dtype, has_zeros, reordered);
            const auto size = static_cast<std::size_t>(dtype_bits(to) / 8);
            for (i64 begin = 0; begin < kRows; ++begin)
              for (i64 end = begin + 1; end <= kRows; end += 3) {
                std::vector<std::byte> fast(static_cast<std::size_t>((end - begin) * kCols) * size), plain(fast.size());
                decode_words(made.matrix, begin, end, to, fast.data());
                decode_words_one_by_one(made.matrix, begin, end, to, plain.data());
                ASSERT_EQ(fast, plain) << static_cast<int>(codes) << " rows " << begin << " to " << end;
              }
          }
}

/// Words of zero points that GPTQModel's subtraction on words made: a 0 borrows from its neighbour.
TEST(DecodeWords, ZeroPointsOfGptqsFirstVersionBorrow) {
  WordCase made = make_case(Codes::Gptq, Dtype::F32, true, false);
  std::vector<u32> words(made.zeros.size() / 4);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = 0x80070F00U * static_cast<u32>(i + 1);
  std::memcpy(made.zeros.data(), words.data(), made.zeros.size());
  made.matrix.zero_offset = 0;
  std::vector<std::byte> second(kRows * kCols * 4), first(second.size());
  decode_words(made.matrix, 0, kRows, Dtype::F32, second.data());
  for (u32& word : words) word -= 0x11111111U;
  std::memcpy(made.zeros.data(), words.data(), made.zeros.size());
  made.matrix.zero_offset = 1;
  decode_words(made.matrix, 0, kRows, Dtype::F32, first.data());
  EXPECT_EQ(first, second);
}

/// The operator on whole arrays, of two matrices that differ.
TEST(DecodeWords, TheOperatorTakesMatricesOneBehindTheOther) {
  for (const Codes codes : {Codes::Awq, Codes::Gptq, Codes::Int4})
    for (const Dtype to : {Dtype::BF16, Dtype::F32})
      for (const bool reordered : {false, true}) {
        WordCase one = make_case(codes, Dtype::F16, true, reordered), other = one;
        for (auto* const bytes : {&other.words, &other.zeros}) std::ranges::reverse(*bytes);
        other.matrix.words = other.words.data();
        other.matrix.zeros = other.zeros.data();
        other.matrix.scales = other.scales.data();
        const auto bytes = static_cast<std::size_t>(kRows * kCols * dtype_bits(to) / 8);
        std::vector<std::byte> expected(2 * bytes), got(2 * bytes);
        decode_words_one_by_one(one.matrix, 0, kRows, to, expected.data());
        decode_words_one_by_one(other.matrix, 0, kRows, to, expected.data() + bytes);
        const auto joined = [](auto first, const auto& second) {
          first.insert(first.end(), second.begin(), second.end());
          return first;
        };
        const auto words = joined(one.words, other.words), zeros = joined(one.zeros, other.zeros);
        const auto scales = joined(one.scales, other.scales);
        std::vector<u32> groups;
        for (const i64 group : joined(one.matrix.group_of, one.matrix.group_of))
          groups.push_back(static_cast<u32>(group));
        CodedWeight weight{.codes = codes, .matrices = 2, .rows = kRows, .cols = kCols, .data = words.data()};
        weight.cell_cols = kCols / kGroups;
        weight.scales = scales.data();
        weight.scale_dtype = Dtype::F16;
        weight.zeros = reinterpret_cast<const u32*>(zeros.data());
        weight.zero_offset = one.matrix.zero_offset;
        weight.column_groups = reordered ? groups.data() : nullptr;
        decode_codes_host(weight, to, got.data());
        EXPECT_EQ(got, expected) << static_cast<int>(codes);
        groups[70] = kGroups;
        weight.column_groups = groups.data();
        EXPECT_EQ(slug_of([&] { decode_codes_host(weight, to, got.data()); }), "usage");
      }
}

TEST(DecodeWords, TheOperatorRefusesWhatIsNoWeight) {
  std::vector<u32> memory(4096);
  CodedWeight sound{.codes = Codes::Awq, .matrices = 1, .rows = 16, .cols = 32, .data = memory.data()};
  sound.cell_cols = 16;
  sound.scales = memory.data();
  sound.scale_dtype = Dtype::F16;
  sound.zeros = memory.data();
  std::vector<float> out(16 * 32);
  const auto refused = [&](auto&& change) {
    CodedWeight weight = sound;
    change(weight);
    return slug_of([&] { decode_codes_host(weight, Dtype::F32, out.data()); });
  };
  EXPECT_EQ(refused([](CodedWeight&) {}), "none");
  EXPECT_EQ(refused([](CodedWeight& w) { w.rows = 12; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.codes = Codes::Gptq, w.cols = 36; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.codes = Codes::E4m3; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.cell_rows = 2; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.scale_dtype = Dtype::F8_E8M0; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.globals = static_cast<const float*>(w.scales); }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.data = static_cast<const std::byte*>(w.data) + 2; }), "usage");
}

/// compressed-tensors' row 13, column 42: nibble 2 of word [13, 5]; its group is 2, its zero nibble 5 of word [1, 2].
TEST(DecodeWords, AnElementOfCompressedTensorsByHand) {
  const WordCase made = make_case(Codes::Int4, Dtype::F32, true, false);
  u32 word = 0, zeros = 0;
  std::memcpy(&word, made.words.data() + 4 * (13 * (kCols / 8) + 5), sizeof word);
  std::memcpy(&zeros, made.zeros.data() + 4 * (1 * kGroups + 2), sizeof zeros);
  float scale = 0;
  std::memcpy(&scale, made.scales.data() + 4 * (13 * kGroups + 2), sizeof scale);
  std::vector<float> row(kCols);
  decode_words(made.matrix, 13, 14, Dtype::F32, reinterpret_cast<std::byte*>(row.data()));
  EXPECT_EQ(row[42],
            static_cast<float>(static_cast<int>(word >> 8U & 15U) - static_cast<int>(zeros >> 20U & 15U)) * scale);
}

/// GPTQ's row 9, column 12: nibble 4 of word [1, 9]; its zero is nibble 1 of word [group, 1], stored less 1.
TEST(DecodeWords, AnElementOfGptqByHand) {
  const WordCase made = make_case(Codes::Gptq, Dtype::F32, true, false);
  const auto word = [](const std::vector<std::byte>& bytes, std::size_t index) {
    u32 value = 0;
    std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
    return value;
  };
  const int code = static_cast<int>(word(made.words, kRows + 9) >> 16 & 15);
  const int zero = static_cast<int>(((word(made.zeros, 1) >> 4) + 1) & 15);
  float scale = 0, got = 0;
  std::memcpy(&scale, made.scales.data() + 9 * sizeof scale, sizeof scale);
  std::vector<std::byte> row(kCols * sizeof(float));
  decode_words(made.matrix, 9, 10, Dtype::F32, row.data());
  std::memcpy(&got, row.data() + 12 * sizeof got, sizeof got);
  EXPECT_EQ(got, static_cast<float>(code - zero) * scale);
}

/// AWQ's row 9, column 12: word [12, 1]; row 1 of its eight is nibble 4.
TEST(DecodeWords, AnElementOfAwqByHand) {
  const WordCase made = make_case(Codes::Awq, Dtype::F32, false, false);
  u32 word = 0;
  std::memcpy(&word, made.words.data() + 4 * (12 * (kRows / 8) + 1), sizeof word);
  float scale = 0, got = 0;
  std::memcpy(&scale, made.scales.data() + 9 * sizeof scale, sizeof scale);
  std::vector<std::byte> row(kCols * sizeof(float));
  decode_words(made.matrix, 9, 10, Dtype::F32, row.data());
  std::memcpy(&got, row.data() + 12 * sizeof got, sizeof got);
  EXPECT_EQ(got, static_cast<float>(static_cast<int>(word >> 16 & 15) - 8) * scale);
}

}  // namespace
}  // namespace glu_ckpt
