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

/// Blocks of DeepSeek-V3's form.
constexpr EncoderRow blocks_as(std::string_view program, ScaleRule rule, Dtype scales = Dtype::F32) {
  return {.word = "fp8:128x128",
          .program = program,
          .rule = rule,
          .cell_rows = 128,
          .cell_cols = 128,
          .scales = TensorKind::Scale,
          .scale_dtype = scales,
          .method = "fp8"};
}

/// compressed-tensors' and ModelOpt's: scales in the dtype of the weights.
constexpr EncoderRow plain_as(EncoderRow row, std::string_view format) {
  row.scales = TensorKind::PlainScale;
  row.scale_dtype = Dtype::BF16;
  row.divides = row.rounds_quotient = true;
  row.method = row.program;
  row.config_format = format;
  return row;
}

constexpr EncoderRow divided(EncoderRow row) {
  row.divides = true;
  return row;
}

constexpr EncoderRow even_only(EncoderRow row) {
  row.skips_uneven = true;
  return row;
}

/// slime says it in the words of compressed-tensors where scales are not for blocks.
constexpr EncoderRow in_group(EncoderRow row) {
  row.method = "compressed-tensors";
  row.config_format = "float-quantized";
  return row;
}

constexpr EncoderRow in_powers(EncoderRow row) {
  row.word = "fp8:128x128:ue8m0";
  return row;
}

constexpr EncoderRow by_channel(EncoderRow row) {
  row.word = "fp8:channel";
  row.scales = TensorKind::PlainScale;
  row.cell_rows = 1;
  row.cell_cols = 0;
  return row;
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
    // slime's convert_hf_to_fp8.py; DeepGEMM's per_block_cast_to_fp8; transformers 5.24's Fp8Quantize;
    // compressed-tensors 0.20 as llm-compressor calls it; ModelOpt 0.47's FP8QTensor.
    .encoders = {divided(blocks_as("slime", ScaleRule::Slime)), blocks_as("deepgemm", ScaleRule::DeepGemm),
                 even_only(blocks_as("transformers", ScaleRule::Transformers)),
                 plain_as(blocks_as("compressed-tensors", ScaleRule::CompressedTensors), "float-quantized"),
                 plain_as(blocks_as("modelopt", ScaleRule::ModelOpt), "FP8_PB_WO"),
                 in_powers(blocks_as("deepgemm", ScaleRule::DeepGemmPower)),
                 in_powers(even_only(blocks_as("transformers", ScaleRule::TransformersPower, Dtype::F8_E8M0))),
                 by_channel(plain_as(blocks_as("compressed-tensors", ScaleRule::CompressedTensors), "float-quantized")),
                 by_channel(in_group(divided(blocks_as("slime", ScaleRule::Slime))))},
    .other_algorithm = "NVFP4"};

}  // namespace glu_ckpt
