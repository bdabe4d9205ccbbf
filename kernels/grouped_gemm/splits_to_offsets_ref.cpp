/// The oracle of splits_to_offsets_multi, and the checks of its arguments.

#include <cstdint>
#include <cstring>
#include <string>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/grouped_gemm/splits_to_offsets.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kAlignment = 16;

bool is_offset_dtype(Dtype dtype) { return dtype == Dtype::I32 || dtype == Dtype::I64; }

i64 bytes_of(Dtype dtype) { return dtype_bits(dtype) / 8; }

void check_splits(const SplitSizes& splits) {
  if (!is_offset_dtype(splits.dtype))
    fail(ErrorCode::Usage, {}, "splits are {}; they must be I32 or I64", dtype_name(splits.dtype));
  if (splits.count < 1) fail(ErrorCode::Usage, {}, "{} splits; at least 1 is needed", splits.count);
  if (splits.data == nullptr) fail(ErrorCode::Usage, {}, "the pointer to {} splits is null", splits.count);
  if (!is_aligned(splits.data, bytes_of(splits.dtype)))
    fail(ErrorCode::Usage, {}, "splits at {} are not aligned to {}", splits.data, dtype_name(splits.dtype));
}

void check_spec(const OffsetSpec& spec, std::size_t index) {
  if (!is_offset_dtype(spec.dtype))
    fail(ErrorCode::Usage, {}, "output {} is {}; it must be I32 or I64", index, dtype_name(spec.dtype));
}

void check_output(const SplitSizes& splits, const OffsetOutput& output, std::size_t index) {
  check_spec(output.spec, index);
  const i64 length = offsets_length(splits.count, output.spec.leading_zero);
  if (output.length != length)
    fail(ErrorCode::Usage, {}, "output {} has {} elements; {} splits {} a leading zero need {}", index, output.length,
         splits.count, output.spec.leading_zero ? "with" : "without", length);
  if (output.data == nullptr) fail(ErrorCode::Usage, {}, "output {}: the pointer is null", index);
  if (!is_aligned(output.data, bytes_of(output.spec.dtype)))
    fail(ErrorCode::Usage, {}, "output {} at {} is not aligned to {}", index, output.data,
         dtype_name(output.spec.dtype));
}

i64 split_at(const SplitSizes& splits, i64 index) {
  return splits.dtype == Dtype::I32 ? static_cast<const std::int32_t*>(splits.data)[index]
                                    : static_cast<const i64*>(splits.data)[index];
}

/// Appends `value` to an output of which `filled` elements are there; returns the flags.
u32 append(const OffsetOutput& output, i64& filled, i64 value) {
  auto* const at = static_cast<std::byte*>(output.data) + filled++ * bytes_of(output.spec.dtype);
  if (output.spec.dtype == Dtype::I64) {
    std::memcpy(at, &value, sizeof value);
    return 0;
  }
  const auto low = static_cast<std::int32_t>(static_cast<u32>(static_cast<u64>(value)));
  std::memcpy(at, &low, sizeof low);
  return low == value ? 0U : kOffsetBeyondInt32;
}

u32 fill_output(const SplitSizes& splits, const OffsetOutput& output) {
  u32 flags = 0;
  i64 filled = 0;
  if (output.spec.leading_zero) flags |= append(output, filled, 0);
  i64 sum = 0;
  for (i64 i = 0; i < splits.count; ++i) {
    // The built-ins leave the low 64 bits where the result does not fit.
    if (__builtin_add_overflow(sum, split_at(splits, i), &sum)) flags |= kOffsetSumBeyondInt64;
    i64 offset = 0;
    if (__builtin_mul_overflow(sum, output.spec.stride, &offset))
      flags |= kOffsetBeyondInt64 | (output.spec.dtype == Dtype::I32 ? kOffsetBeyondInt32 : 0U);
    flags |= append(output, filled, offset);
  }
  return flags;
}

/// The first multiple of 16 at or after `bytes`.
i64 aligned(i64 bytes) {
  const auto padded = checked_add(bytes, kAlignment - 1);
  if (!padded) fail(ErrorCode::ShapeOverflow, {}, "the offset arrays would have more than 2^63 bytes");
  return *padded / kAlignment * kAlignment;
}

/// Returns the end of an array of `length` elements that begins at `start`.
i64 array_end(i64 start, i64 length, i64 element_bytes) {
  const auto bytes = checked_mul(length, element_bytes);
  const auto end = bytes ? checked_add(start, *bytes) : std::nullopt;
  if (!end) fail(ErrorCode::ShapeOverflow, {}, "the offset arrays would have more than 2^63 bytes");
  return *end;
}

}  // namespace

void check_offset_arguments(const SplitSizes& splits, std::span<const OffsetOutput> outputs, const u32* flags) {
  check_splits(splits);
  for (std::size_t i = 0; i < outputs.size(); ++i) check_output(splits, outputs[i], i);
  if (!is_aligned(flags, sizeof(u32)))
    fail(ErrorCode::Usage, {}, "flags at {} are not aligned to U32", static_cast<const void*>(flags));
}

void splits_to_offsets_multi_ref(const SplitSizes& splits, std::span<const OffsetOutput> outputs, u32* flags) {
  if (outputs.empty()) return;
  check_offset_arguments(splits, outputs, flags);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const u32 found = fill_output(splits, outputs[i]);
    if (flags != nullptr) flags[i] = found;
  }
}

void check_offset_flags(std::span<const OffsetOutput> outputs, std::span<const u32> flags) {
  if (flags.size() != outputs.size())
    fail(ErrorCode::Usage, {}, "{} flags for {} outputs", flags.size(), outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (flags[i] == 0) continue;
    const OffsetSpec& spec = outputs[i].spec;
    const bool beyond_int64 = (flags[i] & (kOffsetBeyondInt64 | kOffsetSumBeyondInt64)) != 0;
    fail(ErrorCode::NotExact, {}, "output {} ({}, stride {}): {}", i, dtype_name(spec.dtype), spec.stride,
         (flags[i] & kOffsetSumBeyondInt64) != 0 ? "the splits add up to more than int64 holds"
         : beyond_int64                          ? "an offset is beyond int64"
                                                 : "an offset is beyond int32; ask for I64");
  }
}

OffsetArraysLayout offset_arrays_layout(i64 num_splits, std::span<const OffsetSpec> specs) {
  if (num_splits < 1) fail(ErrorCode::Usage, {}, "{} splits; at least 1 is needed", num_splits);
  OffsetArraysLayout layout;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    check_spec(specs[i], i);
    const auto length = checked_add(num_splits, specs[i].leading_zero ? 1 : 0);
    if (!length) fail(ErrorCode::ShapeOverflow, {}, "output {}: {} splits and a leading zero", i, num_splits);
    layout.starts.push_back(aligned(layout.bytes));
    layout.bytes = array_end(layout.starts.back(), *length, bytes_of(specs[i].dtype));
  }
  layout.flags_start = aligned(layout.bytes);
  layout.bytes = array_end(layout.flags_start, std::ssize(specs), sizeof(u32));
  return layout;
}

}  // namespace glu_ckpt
