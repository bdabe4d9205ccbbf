#include "format/torch_dtype.hpp"

#include <algorithm>
#include <array>

namespace glu_ckpt {
namespace {

constexpr auto kDtypes = std::to_array<TorchDtype>({
    {Dtype::BOOL, "bool", "BoolStorage", 1},
    {Dtype::U8, "uint8", "ByteStorage", 1},
    {Dtype::I8, "int8", "CharStorage", 1},
    {Dtype::I16, "int16", "ShortStorage", 2},
    {Dtype::I32, "int32", "IntStorage", 4},
    {Dtype::I64, "int64", "LongStorage", 8},
    {Dtype::F16, "float16", "HalfStorage", 2},
    {Dtype::BF16, "bfloat16", "BFloat16Storage", 2},
    {Dtype::F32, "float32", "FloatStorage", 4},
    {Dtype::F64, "float64", "DoubleStorage", 8},
    {Dtype::C64, "complex64", "ComplexFloatStorage", 8},
    {Dtype::U16, "uint16", "", 2},
    {Dtype::U32, "uint32", "", 4},
    {Dtype::U64, "uint64", "", 8},
    {Dtype::F8_E4M3, "float8_e4m3fn", "", 1},
    {Dtype::F8_E5M2, "float8_e5m2", "", 1},
    {Dtype::F8_E4M3FNUZ, "float8_e4m3fnuz", "", 1},
    {Dtype::F8_E5M2FNUZ, "float8_e5m2fnuz", "", 1},
    {Dtype::F8_E8M0, "float8_e8m0fnu", "", 1},
    {Dtype::F4, "float4_e2m1fn_x2", "", 1, 2},
});

template <typename Is>
const TorchDtype* find(const Is& is) {
  const auto* found = std::ranges::find_if(kDtypes, is);
  return found == kDtypes.end() ? nullptr : found;
}

}  // namespace

const TorchDtype* torch_dtype(Dtype dtype) {
  return find([&](const TorchDtype& row) { return row.dtype == dtype; });
}

const TorchDtype* torch_dtype_named(std::string_view name) {
  return find([&](const TorchDtype& row) { return row.name == name; });
}

const TorchDtype* torch_dtype_of_storage(std::string_view storage) {
  return find([&](const TorchDtype& row) { return !row.storage.empty() && row.storage == storage; });
}

}  // namespace glu_ckpt
