#include "quant/decode_words.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/float_rows.hpp"
#include "quant/decode_row.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kWordBytes = 4;
constexpr i64 kCodesPerWord = 8;
constexpr i64 kCodeValues = 16;
/// A word of eight ones. GPTQ's first version is written by subtracting it from whole words, so that a zero point of 0
/// borrows from its neighbour; adding it to whole words gives both back.
constexpr u32 kOneInEach = 0x11111111;
/// The nibble of a word of AWQ's that holds row 0, 1, ...
constexpr std::array<i64, kCodesPerWord> kAwqNibble{0, 4, 1, 5, 2, 6, 3, 7};

u32 word_at(const std::byte* bytes, i64 word) {
  u32 bits = 0;
  std::memcpy(&bits, bytes + word * kWordBytes, sizeof bits);
  return bits;
}

int nibble(u32 word, i64 i) { return static_cast<int>(word >> (4 * i) & 15U); }

/// The place in its word of what belongs to a row: AWQ's codes, and the zeros of both.
i64 nibble_of_row(const WordMatrix& matrix, i64 row) {
  return matrix.codes == Codes::Awq ? kAwqNibble[static_cast<std::size_t>(row % kCodesPerWord)] : row % kCodesPerWord;
}

/// The number of a row's scale of a group.
i64 scale_number(const WordMatrix& matrix, i64 row, i64 group) {
  return matrix.codes == Codes::Int4 ? row * matrix.groups + group : group * matrix.rows + row;
}

int zero_of(const WordMatrix& matrix, i64 row, i64 group) {
  if (matrix.zeros == nullptr) return 8;
  const i64 words = matrix.rows / kCodesPerWord, of_row = row / kCodesPerWord;
  const u32 word =
      word_at(matrix.zeros, matrix.codes == Codes::Int4 ? of_row * matrix.groups + group : group * words + of_row);
  return nibble(word + kOneInEach * static_cast<u32>(matrix.zero_offset), nibble_of_row(matrix, row));
}

int code_of(const WordMatrix& matrix, i64 row, i64 col) {
  if (matrix.codes == Codes::Awq)
    return nibble(word_at(matrix.words, col * (matrix.rows / kCodesPerWord) + row / kCodesPerWord),
                  nibble_of_row(matrix, row));
  if (matrix.codes == Codes::Int4)
    return nibble(word_at(matrix.words, (row * matrix.cols + col) / kCodesPerWord), col % kCodesPerWord);
  return nibble(word_at(matrix.words, col / kCodesPerWord * matrix.rows + row), col % kCodesPerWord);
}

void put_number(const WordMatrix& matrix, int code, i64 row, i64 group, Dtype to, std::byte* out) {
  const i64 scale = scale_number(matrix, row, group) * (dtype_bits(matrix.scale_dtype) / 8);
  const float product =
      static_cast<float>(code - zero_of(matrix, row, group)) * widen_element(matrix.scales + scale, matrix.scale_dtype);
  put_decoded(round_to(product, matrix.scale_dtype), to, out);
}

/// Rows of one word of AWQ's, or so many of others, with the numbers of their codes in each group.
template <typename Element>
class RowGroup {
 public:
  explicit RowGroup(const WordMatrix& matrix) : matrix_(matrix) {
    numbers_.resize(static_cast<std::size_t>(kCodesPerWord * matrix.groups * kCodeValues));
  }

  /// Decodes rows [begin, end), which one word of AWQ's holds.
  void decode(i64 begin, i64 end, Dtype to, Element* out) {
    for (i64 row = begin; row < end; ++row)
      for (i64 group = 0; group < matrix_.groups; ++group)
        put_numbers(row, group, to, numbers_.data() + ((row - begin) * matrix_.groups + group) * kCodeValues);
    if (matrix_.codes == Codes::Awq)
      look_up_awq(begin, end, out);
    else
      look_up_columns(begin, end, out);
  }

 private:
  /// All numbers of a row and group at once, as put_number() makes each.
  void put_numbers(i64 row, i64 group, Dtype to, Element* out) const {
    const i64 at = scale_number(matrix_, row, group) * (dtype_bits(matrix_.scale_dtype) / 8);
    const float scale = widen_element(matrix_.scales + at, matrix_.scale_dtype);
    const int zero = zero_of(matrix_, row, group);
    std::array<float, kCodeValues> products{};
    for (int code = 0; code < kCodeValues; ++code)
      products[static_cast<std::size_t>(code)] = static_cast<float>(code - zero) * scale;
    if (!std::isfinite(scale)) {
      for (int code = 0; code < kCodeValues; ++code)
        put_number(matrix_, code, row, group, to, reinterpret_cast<std::byte*>(out + code));
      return;
    }
    round_row(products, matrix_.scale_dtype);
    narrow_row(products, to, reinterpret_cast<std::byte*>(out));
  }

  const Element* numbers(i64 row, i64 col) const {
    const i64 group = matrix_.group_of[static_cast<std::size_t>(col)];
    return numbers_.data() + (row * matrix_.groups + group) * kCodeValues;
  }

  void look_up_awq(i64 begin, i64 end, Element* out) const {
    const i64 words = matrix_.rows / kCodesPerWord, first = begin / kCodesPerWord;
    std::array<int, kCodesPerWord> shift{};
    for (i64 row = begin; row < end; ++row)
      shift[static_cast<std::size_t>(row - begin)] = static_cast<int>(4 * nibble_of_row(matrix_, row));
    for (i64 col = 0; col < matrix_.cols; ++col) {
      const u32 word = word_at(matrix_.words, col * words + first);
      for (i64 row = 0; row < end - begin; ++row)
        out[row * matrix_.cols + col] = numbers(row, col)[word >> shift[static_cast<std::size_t>(row)] & 15U];
    }
  }

  /// Words of columns: GPTQ's stand beside those of other rows, compressed-tensors' beside those of other columns.
  void look_up_columns(i64 begin, i64 end, Element* out) const {
    const i64 words = matrix_.cols / kCodesPerWord;
    const bool by_row = matrix_.codes == Codes::Int4;
    const i64 row_step = by_row ? words : 1, col_step = by_row ? 1 : matrix_.rows;
    for (i64 word_col = 0; word_col < words; ++word_col)
      for (i64 row = 0; row < end - begin; ++row) {
        u32 word = word_at(matrix_.words, word_col * col_step + (begin + row) * row_step);
        for (i64 col = word_col * kCodesPerWord; col < (word_col + 1) * kCodesPerWord; ++col, word >>= 4U)
          out[row * matrix_.cols + col] = numbers(row, col)[word & 15U];
      }
  }

  const WordMatrix& matrix_;
  /// [row, group, code].
  std::vector<Element> numbers_;
};

template <typename Element>
void decode_groups(const WordMatrix& matrix, i64 begin, i64 end, Dtype to, std::byte* out) {
  RowGroup<Element> rows(matrix);
  std::vector<Element> decoded(static_cast<std::size_t>(kCodesPerWord * matrix.cols));
  for (i64 row = begin; row < end;) {
    const i64 next = std::min(end, (row / kCodesPerWord + 1) * kCodesPerWord);
    rows.decode(row, next, to, decoded.data());
    // The output may lie at any byte.
    const i64 bytes = (next - row) * matrix.cols * static_cast<i64>(sizeof(Element));
    std::memcpy(out, decoded.data(), static_cast<std::size_t>(bytes));
    out += bytes;
    row = next;
  }
}

}  // namespace

void decode_words(const WordMatrix& matrix, i64 begin, i64 end, Dtype to, std::byte* out) {
  if (to == Dtype::BF16)
    decode_groups<std::uint16_t>(matrix, begin, end, to, out);
  else
    decode_groups<u32>(matrix, begin, end, to, out);
}

void decode_words_one_by_one(const WordMatrix& matrix, i64 begin, i64 end, Dtype to, std::byte* out) {
  const i64 size = dtype_bits(to) / 8;
  for (i64 row = begin; row < end; ++row)
    for (i64 col = 0; col < matrix.cols; ++col, out += size)
      put_number(matrix, code_of(matrix, row, col), row, matrix.group_of[static_cast<std::size_t>(col)], to, out);
}

}  // namespace glu_ckpt
