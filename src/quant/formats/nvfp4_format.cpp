/// NVFP4: two codes in a byte, an FP8 scale for 16 weights of a row, and a second scale for a matrix.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

constexpr FormatPart kNvfp4Scales{PartUse::Scales, TensorKind::PlainScale, {Dtype::F8_E4M3}, {fixed_grid({1, 16})}};

constexpr EncoderRow nvfp4_as(std::string_view program, ScaleRule rule, TensorKind codes, std::string_view format) {
  return {.word = "nvfp4",
          .program = program,
          .rule = rule,
          .cell_cols = 16,
          .codes = codes,
          .scale_dtype = Dtype::F8_E4M3,
          .divides = true,
          .signs = Signs::Negative,
          .method = program,
          .config_format = format};
}

}  // namespace

extern const QuantFormat q_nvfp4;
constinit const QuantFormat q_nvfp4{
    .name = "NVFP4",
    .forms =
        {// ModelOpt multiplies by the second scale, compressed-tensors divides by it.
         {.codes = Codes::E2m1,
          .packing = kNibbles,
          .parts = {kNvfp4Scales, {PartUse::Multiplier, TensorKind::SecondScale, {Dtype::F32}}, kInputScale}},
         {.kind = TensorKind::PackedWeight,
          .codes = Codes::E2m1,
          .packing = kNibbles,
          .parts = {kNvfp4Scales,
                    {PartUse::Divisor, TensorKind::GlobalScale, {Dtype::F32}},
                    {PartUse::Inputs, TensorKind::InputGlobalScale}}}},
    .decoders = {{.program = "modelopt", .positive_zero = true},
                 {.program = "compressed-tensors", .rounds_product = true, .divides = true}},
    // ModelOpt 0.47's NVFP4QTensor; compressed-tensors 0.20 as llm-compressor calls it.
    .encoders = {nvfp4_as("modelopt", ScaleRule::Nvfp4ModelOpt, TensorKind::Weight, "NVFP4"),
                 nvfp4_as("compressed-tensors", ScaleRule::Nvfp4CompressedTensors, TensorKind::PackedWeight,
                          "nvfp4-pack-quantized")},
    .bits = 4,
    .other_algorithm = "FP8"};

}  // namespace glu_ckpt
