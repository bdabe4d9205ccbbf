#include "glu_ckpt/ops/token_padding.hpp"

#include <cstring>
#include <string_view>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "ops/padding_runs.hpp"

namespace glu_ckpt {
namespace {

i64 checked_sum(i64 a, i64 b, std::size_t split) {
  const auto sum = checked_add(a, b);
  if (!sum) fail(ErrorCode::ShapeOverflow, {}, "splits up to number {} take {} + {} rows: too many", split, a, b);
  return *sum;
}

i64 rounded_up(i64 rows, i64 alignment, std::size_t split) {
  const i64 rest = alignment > 1 ? rows % alignment : 0;
  return rest == 0 ? rows : checked_sum(rows, alignment - rest, split);
}

void check_bytes(std::string_view name, i64 bytes, i64 rows, i64 row_bytes) {
  if (bytes != rows * row_bytes)
    fail(ErrorCode::Usage, {}, "{}: {} bytes, expected {} rows of {}", name, bytes, rows, row_bytes);
}

/// The fields are open to all: copies must not leave their memory whatever is in them.
void check_sums(const TokenPadding& padding) {
  i64 rows = 0;
  i64 padded_rows = 0;
  for (std::size_t e = 0; e < padding.splits.size(); ++e) {
    const i64 split = padding.splits[e], padded = padding.padded_splits[e];
    if (split < 0 || padded < split) fail(ErrorCode::Usage, {}, "split {} is {}, with padding {}", e, split, padded);
    rows = checked_sum(rows, split, e);
    padded_rows = checked_sum(padded_rows, padded, e);
  }
  if (rows != padding.rows || padded_rows != padding.padded_rows)
    fail(ErrorCode::Usage, {}, "the splits take {} rows, with padding {}; expected {} and {}", rows, padded_rows,
         padding.rows, padding.padded_rows);
}

}  // namespace

i64 token_alignment(TokenRecipe recipe, bool grouped_tensor) {
  if (grouped_tensor) return 256;
  switch (recipe) {
    case TokenRecipe::None: return 0;
    case TokenRecipe::Fp8: return 16;
    case TokenRecipe::Mxfp8: return 32;
    case TokenRecipe::Fp4: return 128;
  }
  return 0;
}

TokenPadding make_token_padding(std::span<const i64> splits, i64 alignment) {
  if (alignment < 0) fail(ErrorCode::Usage, {}, "alignment {}; use 0 for none", alignment);
  TokenPadding padding;
  padding.splits.assign(splits.begin(), splits.end());
  for (std::size_t e = 0; e < splits.size(); ++e) {
    if (splits[e] < 0) fail(ErrorCode::Usage, {}, "split {} is {}", e, splits[e]);
    padding.padded_splits.push_back(rounded_up(splits[e], alignment, e));
    padding.rows = checked_sum(padding.rows, splits[e], e);
    padding.padded_rows = checked_sum(padding.padded_rows, padding.padded_splits.back(), e);
  }
  return padding;
}

std::vector<PaddingRun> padding_runs(const TokenPadding& padding, i64 row_bytes) {
  if (row_bytes < 1 || padding.splits.size() != padding.padded_splits.size())
    fail(ErrorCode::Usage, {},
         "row_bytes is {} and must be positive; splits ({}) and padded_splits ({}) must have equal length", row_bytes,
         padding.splits.size(), padding.padded_splits.size());
  if (!checked_mul(padding.padded_rows, row_bytes))
    fail(ErrorCode::ShapeOverflow, {}, "{} rows of {} bytes: too many", padding.padded_rows, row_bytes);
  check_sums(padding);
  std::vector<PaddingRun> runs;
  PaddingRun next;
  for (std::size_t e = 0; e < padding.splits.size(); ++e) {
    next.bytes = padding.splits[e] * row_bytes;
    next.added_bytes = (padding.padded_splits[e] - padding.splits[e]) * row_bytes;
    if (next.bytes > 0) runs.push_back(next);
    next.at += next.bytes;
    next.padded_at += next.bytes + next.added_bytes;
  }
  return runs;
}

void pad_rows(const TokenPadding& padding, std::span<const std::byte> rows, i64 row_bytes,
              std::span<std::byte> padded) {
  const std::vector<PaddingRun> runs = padding_runs(padding, row_bytes);
  check_bytes("rows", std::ssize(rows), padding.rows, row_bytes);
  check_bytes("padded rows", std::ssize(padded), padding.padded_rows, row_bytes);
  for (const PaddingRun& run : runs) {
    std::memcpy(padded.data() + run.padded_at, rows.data() + run.at, static_cast<std::size_t>(run.bytes));
    std::memset(padded.data() + run.padded_at + run.bytes, 0, static_cast<std::size_t>(run.added_bytes));
  }
}

void unpad_rows(const TokenPadding& padding, std::span<const std::byte> padded, i64 row_bytes,
                std::span<std::byte> rows) {
  const std::vector<PaddingRun> runs = padding_runs(padding, row_bytes);
  check_bytes("padded rows", std::ssize(padded), padding.padded_rows, row_bytes);
  check_bytes("rows", std::ssize(rows), padding.rows, row_bytes);
  for (const PaddingRun& run : runs)
    std::memcpy(rows.data() + run.at, padded.data() + run.padded_at, static_cast<std::size_t>(run.bytes));
}

}  // namespace glu_ckpt
