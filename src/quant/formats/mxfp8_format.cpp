/// MXFP8: one power of two, a byte, for 32 weights of a row or of a column.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

constexpr ShortList<GridRow, 4> kMxfp8Grids{fixed_grid(kMxGrids[0]), fixed_grid(kMxGrids[1]), fixed_grid(kMxGrids[2]),
                                            fixed_grid(kMxGrids[3])};

constexpr CodeForm mxfp8_form(Dtype dtype, Codes codes) {
  return {.dtype = dtype,
          .codes = codes,
          .parts = {{PartUse::Scales, TensorKind::Scale, kPowerScales, kMxfp8Grids},
                    {PartUse::Scales, TensorKind::PlainScale, kPowerScales, kMxfp8Grids},
                    kInputScale}};
}

constexpr EncoderRow mxfp8_as(std::string_view program, ScaleRule rule, std::string_view format = {}) {
  return {.word = "mxfp8",
          .program = program,
          .rule = rule,
          .cell_cols = 32,
          .scale_dtype = Dtype::U8,
          .method = format.empty() ? "mxfp8" : program,
          .config_format = format};
}

constexpr EncoderRow with_least(EncoderRow row, LeastPower least) {
  row.least = least;
  return row;
}

}  // namespace

extern const QuantFormat q_mxfp8;
constinit const QuantFormat q_mxfp8{
    .name = "MXFP8",
    .forms = {mxfp8_form(Dtype::F8_E4M3, Codes::E4m3),
              mxfp8_form(Dtype::F8_E5M2, Codes::E5m2),
              // As --encode mxfp8 makes of gpt-oss's MXFP4.
              {.kind = TensorKind::Blocks,
               .dtype = Dtype::F8_E4M3,
               .parts = {{PartUse::Scales, TensorKind::Scales, kPowerScales, {fixed_grid({1, 32})}}},
               .unread = "no program reads gpt-oss's blocks as MXFP8; --decode bf16 reads them"}},
    // ModelOpt 0.47's MXFP8QTensor; triton_kernels' ROUND_UP; torchao 0.18's to_mx by default (FLOOR);
    // compressed-tensors 0.20.
    .encoders = {mxfp8_as("modelopt", ScaleRule::PowerUp),
                 with_least(mxfp8_as("triton", ScaleRule::PowerUp), LeastPower::Zero),
                 with_least(mxfp8_as("torchao", ScaleRule::PowerFloor), LeastPower::NextOne),
                 mxfp8_as("compressed-tensors", ScaleRule::PowerRounded, "mxfp8-quantized")},
    .other_algorithm = "NVFP4"};

}  // namespace glu_ckpt
