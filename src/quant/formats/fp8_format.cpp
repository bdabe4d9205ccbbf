/// FP8 with scales in floats or powers of two: for a matrix, for each output, or for blocks (DeepSeek-V3's
/// weight_scale_inv).

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

constexpr CodeForm fp8_form(Dtype dtype, Codes codes) {
  return {
      .dtype = dtype,
      .codes = codes,
      .parts = {
          {PartUse::Scales, TensorKind::Scale, kFp8Scales, {kMatrixGrid, kOutputGrid, kBlockGrid, kUnitBlockGrid}},
          {PartUse::Scales, TensorKind::PlainScale, kFp8Scales, {kMatrixGrid, kOutputGrid, kBlockGrid, kUnitBlockGrid}},
          kInputScale}};
}

}  // namespace

extern const QuantFormat q_fp8;
constinit const QuantFormat q_fp8{
    .name = "FP8",
    .forms = {fp8_form(Dtype::F8_E4M3, Codes::E4m3), fp8_form(Dtype::F8_E5M2, Codes::E5m2)},
    // V3's fp8_cast_bf16.py; transformers 5's Fp8Dequantize; ModelOpt 0.47's FP8QTensor; compressed-tensors 0.20.
    .decoders = {{"deepseek"},
                 {"transformers"},
                 {.program = "modelopt", .rounds_scale = true},
                 {.program = "compressed-tensors", .rounds_product = true}},
    // transformers wrote the last one; fbgemm itself decodes nothing.
    .methods = {{"fp8", "deepseek"}, {"", "deepseek"}, {"fbgemm_fp8", "transformers"}},
    .other_algorithm = "NVFP4"};

}  // namespace glu_ckpt
