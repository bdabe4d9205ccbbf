/// MXFP4: two codes in a byte, and one power of two for 32 weights of a row.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

constexpr GridRow kMxfp4Grid = fixed_grid({1, 32});

/// In the form of compressed-tensors, which servers read for all families but gpt-oss.
constexpr EncoderRow mxfp4_as(std::string_view program, ScaleRule rule, Ties ties, Signs signs = Signs::Kept,
                              LeastPower least = LeastPower::AsSaid) {
  return {.word = "mxfp4",
          .program = program,
          .rule = rule,
          .cell_cols = 32,
          .codes = TensorKind::PackedWeight,
          .scale_dtype = Dtype::U8,
          .least = least,
          .ties = ties,
          .signs = signs,
          .method = "compressed-tensors",
          .config_format = "mxfp4-pack-quantized"};
}

}  // namespace

extern const QuantFormat q_mxfp4;
constinit const QuantFormat q_mxfp4{
    .name = "MXFP4",
    .forms =
        {// DeepSeek-V4 calls a byte of two codes I8; INT8 has no such scales.
         {.dtype = Dtype::I8,
          .codes = Codes::E2m1,
          .packing = kNibbles,
          .parts = {{PartUse::Scales, TensorKind::Scale, {Dtype::F8_E8M0}, {kMxfp4Grid}}}},
         // ModelOpt's.
         {.codes = Codes::E2m1,
          .packing = kNibbles,
          .parts = {{PartUse::Scales, TensorKind::PlainScale, kPowerScales, {kMxfp4Grid}}}},
         {.kind = TensorKind::PackedWeight,
          .codes = Codes::E2m1,
          .packing = kNibbles,
          .parts = {{PartUse::Scales, TensorKind::PlainScale, kPowerScales, {kMxfp4Grid}}}},
         // gpt-oss: [experts, out, in / 32, 16].
         {.kind = TensorKind::Blocks,
          .codes = Codes::E2m1,
          .packing = kNibbles,
          .parts = {{PartUse::Scales, TensorKind::Scales, kPowerScales, {kMxfp4Grid}}}}},
    // V4's convert.py; transformers 5's loader; ModelOpt 0.47's MXFP4QTensor; compressed-tensors 0.20; weights.py.
    .decoders = {{.program = "deepseek", .positive_zero = true, .own_dtype = Dtype::I8, .for_others = "gpt-oss"},
                 {"transformers"},
                 {"modelopt"},
                 {.program = "compressed-tensors", .rounds_product = true},
                 {"gpt-oss"}},
    .methods = {{"mxfp4", "gpt-oss"}},
    // triton_kernels' ROUND_UP, which gpt-oss runs; ModelOpt 0.47's MXFP4QTensor; compressed-tensors 0.20; torchao
    // 0.18's to_mx by default (FLOOR); DeepGEMM's per_token_cast_to_fp4.
    .encoders = {mxfp4_as("triton", ScaleRule::PowerUp, Ties::Away, Signs::Kept, LeastPower::Zero),
                 mxfp4_as("modelopt", ScaleRule::PowerUp, Ties::Zero, Signs::NotPositive),
                 mxfp4_as("compressed-tensors", ScaleRule::PowerRounded, Ties::Even, Signs::Negative),
                 mxfp4_as("torchao", ScaleRule::PowerFloor, Ties::Even, Signs::Kept, LeastPower::NextOne),
                 mxfp4_as("deepgemm", ScaleRule::DeepGemmFp4, Ties::Zero, Signs::NegativeCodes)},
    .bits = 4};

}  // namespace glu_ckpt
