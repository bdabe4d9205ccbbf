#include <fmt/format.h>
#include <fmt/ranges.h>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {
namespace {

struct DtypeRow {
  std::string_view name;
  int bits;
};

/// The rows are in the order of the enum. Source: safetensors/src/tensor.rs, enum Dtype and its bitsize().
constexpr auto kDtypes = std::to_array<DtypeRow>({
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
});
static_assert(kDtypes.size() == static_cast<std::size_t>(Dtype::U64) + 1);

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }
int dtype_bits(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bits; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  return std::nullopt;
}

std::string shape_text(const std::vector<i64>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace glu_ckpt
