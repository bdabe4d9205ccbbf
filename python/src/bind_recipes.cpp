/// Rows and weights of recipes with 8 bits, on addresses: padding of tokens, and MXFP8. Python has checked shapes,
/// devices and contiguity.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "addresses.hpp"
#include "borrowed_tensor.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/mxfp8.hpp"
#include "glu_ckpt/ops/token_padding.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace glu_ckpt::python {
namespace {

std::span<std::byte> bytes_at(Address address, i64 rows, i64 row_bytes) {
  return {at<std::byte>(address), static_cast<std::size_t>(rows * row_bytes)};
}

Dtype recipe_dtype(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) fail(ErrorCode::NotSupported, {}, "{}: not a dtype of MXFP8 or of what it is made of", name);
  return *dtype;
}

TokenRecipe recipe_of(const std::string& name) {
  for (const auto& [known, recipe] : {std::pair("none", TokenRecipe::None),
                                      {"fp8", TokenRecipe::Fp8},
                                      {"mxfp8", TokenRecipe::Mxfp8},
                                      {"fp4", TokenRecipe::Fp4}})
    if (name == known) return recipe;
  fail(ErrorCode::Usage, {}, "recipe '{}': use none, fp8, mxfp8 or fp4", name);
}

/// A GPU's index, or -1 for the CPU, and a stream there.
struct Place {
  int device = -1;
  std::int64_t stream = 0;
};

template <typename Work>
void on_device(const Place& place, const Work& work) {
  const OnCudaDevice on(place.device);
  work(stream_of(place.stream));
}

/// Copies rows at `from` to `to`: with padding, or without it where they have it.
void move_tokens(const std::vector<i64>& splits, i64 alignment, i64 row_bytes, Address from, Address to, bool takes_off,
                 int device, std::int64_t stream) {
  const nb::gil_scoped_release without_gil;
  const TokenPadding padding = make_token_padding(splits, alignment);
  const i64 rows_there = takes_off ? padding.padded_rows : padding.rows;
  const i64 rows_made = takes_off ? padding.rows : padding.padded_rows;
  if (device >= 0)
    on_device({device, stream}, [&](GpuStream on) {
      takes_off ? unpad_rows_device(padding, at<const void>(from), row_bytes, at<void>(to), on)
                : pad_rows_device(padding, at<const void>(from), row_bytes, at<void>(to), on);
    });
  else if (takes_off)
    unpad_rows(padding, bytes_at(from, rows_there, row_bytes), row_bytes, bytes_at(to, rows_made, row_bytes));
  else
    pad_rows(padding, bytes_at(from, rows_there, row_bytes), row_bytes, bytes_at(to, rows_made, row_bytes));
}

/// A matrix in MXFP8, and the same one as numbers.
struct MxMatrix {
  MxMatrix(i64 rows, i64 cols, bool along_rows, const std::string& element, i64 step)
      : format{rows, cols, along_rows ? MxAxis::Row : MxAxis::Column, recipe_dtype(element)}, scale_step(step) {}

  MxFormat format;
  i64 scale_step;
};

void mx_from(const MxMatrix& matrix, Address values, const std::string& from, Address data, Address scales, int device,
             std::int64_t stream) {
  const nb::gil_scoped_release without_gil;
  const Dtype dtype = recipe_dtype(from);
  if (device < 0)
    return mx_quantize_host(matrix.format, at<const void>(values), dtype, at<std::uint8_t>(data),
                            at<std::uint8_t>(scales), matrix.scale_step);
  on_device({device, stream}, [&](GpuStream on) {
    mx_quantize(matrix.format, at<const void>(values), dtype, at<std::uint8_t>(data), at<std::uint8_t>(scales),
                matrix.scale_step, on);
  });
}

void mx_to(const MxMatrix& matrix, Address data, Address scales, Address values, const std::string& to, int device,
           std::int64_t stream) {
  const nb::gil_scoped_release without_gil;
  const Dtype dtype = recipe_dtype(to);
  if (device < 0) {
    // A GPU does not tell which values were rounded either.
    mx_dequantize_host(matrix.format, at<const std::uint8_t>(data), at<const std::uint8_t>(scales), matrix.scale_step,
                       at<void>(values), dtype);
    return;
  }
  on_device({device, stream}, [&](GpuStream on) {
    mx_dequantize(matrix.format, at<const std::uint8_t>(data), at<const std::uint8_t>(scales), matrix.scale_step,
                  at<void>(values), dtype, on);
  });
}

/// Reorders padded scales for cuBLAS, or back.
void mx_reorder(const MxMatrix& matrix, Address from, Address to, bool back, int device, std::int64_t stream) {
  const nb::gil_scoped_release without_gil;
  if (device < 0)
    return (back ? mx_unswizzle_host : mx_swizzle_host)(matrix.format, at<const std::uint8_t>(from),
                                                        at<std::uint8_t>(to));
  on_device({device, stream}, [&](GpuStream on) {
    (back ? mx_unswizzle : mx_swizzle)(matrix.format, at<const std::uint8_t>(from), at<std::uint8_t>(to), on);
  });
}

}  // namespace

void bind_recipes(nb::module_& module) {
  module.def(
      "token_alignment",
      [](const std::string& recipe, bool grouped) { return token_alignment(recipe_of(recipe), grouped); }, "recipe"_a,
      "grouped_tensor"_a, "Megatron's multiple of rows per expert; 0 is no padding.");
  module.def(
      "padded_splits",
      [](const std::vector<i64>& splits, i64 alignment) { return make_token_padding(splits, alignment).padded_splits; },
      "splits"_a, "alignment"_a, "Each split rounded up.");
  module.def("move_tokens", &move_tokens, "splits"_a, "alignment"_a, "row_bytes"_a, "source"_a, "to"_a, "takes_off"_a,
             "device"_a, "stream"_a, "Adds padding behind each expert's rows, or takes it off.");
  nb::class_<MxMatrix>(module, "MxMatrix", "A matrix in MXFP8; scales of `scale_step` bytes a row.")
      .def(nb::init<i64, i64, bool, const std::string&, i64>(), "rows"_a, "cols"_a, "along_rows"_a, "element"_a,
           "scale_step"_a);
  module.def("mx_quantize", &mx_from, "matrix"_a, "values"_a, "dtype"_a, "data"_a, "scales"_a, "device"_a, "stream"_a,
             "Values to codes and scales.");
  module.def("mx_dequantize", &mx_to, "matrix"_a, "data"_a, "scales"_a, "values"_a, "dtype"_a, "device"_a, "stream"_a,
             "Codes and scales to values.");
  module.def("mx_reorder", &mx_reorder, "matrix"_a, "source"_a, "to"_a, "back"_a, "device"_a, "stream"_a,
             "Padded scales to cuBLAS's order, or back.");
}

}  // namespace glu_ckpt::python
