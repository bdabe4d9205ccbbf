#include "quant/check_codes.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/fail.hpp"
#include "quant/decode_row.hpp"
#include "quant/part_finder.hpp"

namespace glu_ckpt {
namespace {

void check_part_scales(const Source& source, const QuantizedTensor& weight) {
  if (!weight.scales_of_parts || weight.part_rows != 0) return;
  const TensorRef& scales = source.inventory().tensors[weight.global.value_or(weight.scales)];
  const i64 size = dtype_bits(scales.dtype) / 8;
  std::vector<std::byte> bytes(static_cast<std::size_t>(2 * weight.matrices * size));
  source.read(weight.global.value_or(weight.scales), 0, bytes);
  for (i64 matrix = 0; matrix < weight.matrices; ++matrix) {
    const std::byte* const gate = bytes.data() + 2 * matrix * size;
    if (std::equal(gate, gate + size, gate + size)) continue;
    fail(
        ErrorCode::NotSupported, {{}, scales.name},
        "'{}': {}, two values for each matrix of '{}' ({}), in matrix {} {} and {}: one for gate and one for up, which "
        "stand in one tensor in an order that nothing says. Say it (--from-glu, --from-shared-glu), or split them "
        "first "
        "(--experts indexed --glu split)",
        scales.name, shape_text(scales.shape), weight.name, shape_text(weight.shape), matrix,
        scale_value(scales.dtype, gate), scale_value(scales.dtype, gate + size));
  }
}

/// Says how many numbers state the shape of one matrix: two; for a fused FC1 also two for its gate and two for its up;
/// or as many as a tensor of all matrices has axes. 0 where no form has the shape of the tensor.
i64 numbers_of_shape(const TensorRef& stated, const QuantizedTensor& weight) {
  if (stated.dtype != Dtype::I64 && stated.dtype != Dtype::I32) return 0;
  const auto has_axes = [&](std::initializer_list<i64> of_one) {
    std::vector<i64> shape = leading_axes(weight.shape);
    shape.insert(shape.end(), of_one);
    return stated.shape == shape;
  };
  if (has_axes({2})) return 2;
  if (has_axes({4}) || has_axes({2, 2})) return 4;
  return stated.shape == std::vector<i64>{std::ssize(weight.shape)} ? std::ssize(weight.shape) : 0;
}

void check_stated_shape(const Source& source, const QuantizedTensor& weight) {
  if (!weight.stated_shape) return;
  const TensorRef& stated = source.inventory().tensors[*weight.stated_shape];
  const i64 numbers = numbers_of_shape(stated, weight);
  if (numbers == 0)
    fail(ErrorCode::SizeMismatch, {{}, stated.name}, "'{}': {} {} for '{}' of {}; expected two numbers for each matrix",
         stated.name, dtype_name(stated.dtype), shape_text(stated.shape), weight.name, shape_text(weight.shape));
  std::vector<std::byte> bytes(static_cast<std::size_t>(stated.bytes));
  source.read(*weight.stated_shape, 0, bytes);
  const i64 size = dtype_bits(stated.dtype) / 8;
  std::vector<i64> expected = leading_axes(weight.shape);
  if (numbers == 2 || numbers == 4) expected.clear();
  expected.insert(expected.end(), {numbers == 4 ? weight.rows / 2 : weight.rows, weight.cols});
  for (i64 at = 0; at < std::ssize(bytes);) {
    std::vector<i64> found(expected.size());
    for (i64& value : found) {
      std::memcpy(&value, bytes.data() + at, static_cast<std::size_t>(size));
      at += size;
    }
    if (found == expected) continue;
    fail(ErrorCode::SizeMismatch, {{}, stated.name}, "'{}': states {} for '{}', whose codes are of {}", stated.name,
         shape_text(found), weight.name, shape_text(weight.shape));
  }
}

/// Refuses zero points other than 8 where quantization_config says that there are none: programs that believe it
/// compute something else than those that read the tensor, and what is wrong may be the version or `sym`.
void check_symmetric(const Source& source, const QuantizedTensor& weight) {
  if (!weight.zeros_are_said_8) return;
  constexpr u32 kEights = 0x88888888, kOnes = 0x11111111;
  constexpr i64 kPartBytes = i64{1} << 20;
  const TensorRef& zeros = source.inventory().tensors[*weight.zeros];
  const u32 expected = kEights - kOnes * static_cast<u32>(weight.zero_offset);
  std::vector<u32> words;
  for (i64 begin = 0; begin < zeros.bytes; begin += kPartBytes) {
    words.resize(static_cast<std::size_t>(std::min(kPartBytes, zeros.bytes - begin)) / sizeof(u32));
    source.read(*weight.zeros, begin, std::as_writable_bytes(std::span(words)));
    const auto other = std::ranges::find_if(words, [&](u32 word) { return word != expected; });
    if (other == words.end()) continue;
    const auto& versions = weight.format->versions;
    const bool has_versions = versions.end() - versions.begin() > 1;
    const std::string as_read =
        has_versions ? fmt::format(" as checkpoint_format '{}' has them (each is read plus {})",
                                   versions.begin()[weight.zero_offset == weight.format->zero_offset ? 0 : 1],
                                   weight.zero_offset)
                     : "";
    fail(
        ErrorCode::QuantConfigContradicts, {{}, zeros.name},
        "'{}': word {} is {:#010x}, but quantization_config says that weights are symmetric ('sym'), whose zero points "
        "are 8: {:#010x}{}. Programs that believe the one compute other weights than those that believe the other; "
        "correct sym{} in config.json",
        zeros.name, begin / 4 + (other - words.begin()), *other, expected, as_read,
        has_versions ? " or checkpoint_format" : "");
  }
}

}  // namespace

void check_decodable(const Source& source, const Quantization& found) {
  if (found.undecodable)
    fail(found.undecodable->code, {{}, found.undecodable->tensor}, "'{}': {}", found.undecodable->tensor,
         found.undecodable->why);
  for (const QuantizedTensor& weight : found.tensors) {
    check_part_scales(source, weight);
    check_symmetric(source, weight);
  }
}

void check_stated_shapes(const Source& source, const Quantization& found) {
  for (const QuantizedTensor& weight : found.tensors) check_stated_shape(source, weight);
}

}  // namespace glu_ckpt
