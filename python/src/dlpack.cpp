#include "dlpack.hpp"

#include <array>

namespace glu_ckpt::python {
namespace {

struct Row {
  Dtype dtype;
  std::uint8_t code;
  std::uint8_t bits;
};

/// Codes: DLDataTypeCode in dlpack.h.
constexpr std::array kRows = {
    Row{Dtype::BOOL, 6, 8},         Row{Dtype::F4, 17, 4},          Row{Dtype::F6_E2M3, 15, 6},
    Row{Dtype::F6_E3M2, 16, 6},     Row{Dtype::U8, 1, 8},           Row{Dtype::I8, 0, 8},
    Row{Dtype::F8_E5M2, 12, 8},     Row{Dtype::F8_E4M3, 10, 8},     Row{Dtype::F8_E8M0, 14, 8},
    Row{Dtype::F8_E4M3FNUZ, 11, 8}, Row{Dtype::F8_E5M2FNUZ, 13, 8}, Row{Dtype::I16, 0, 16},
    Row{Dtype::U16, 1, 16},         Row{Dtype::F16, 2, 16},         Row{Dtype::BF16, 4, 16},
    Row{Dtype::I32, 0, 32},         Row{Dtype::U32, 1, 32},         Row{Dtype::F32, 2, 32},
    Row{Dtype::C64, 5, 64},         Row{Dtype::F64, 2, 64},         Row{Dtype::I64, 0, 64},
    Row{Dtype::U64, 1, 64},
};

}  // namespace

std::optional<Dtype> dtype_of(DlDtype dtype) {
  for (const Row& row : kRows)
    if (row.code == dtype.code && row.bits == dtype.bits && dtype.lanes == 1) return row.dtype;
  return std::nullopt;
}

DlDtype dl_dtype(Dtype dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return {row.code, row.bits, 1};
  return {};
}

}  // namespace glu_ckpt::python
