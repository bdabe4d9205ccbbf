/// MXFP4: two codes in a byte, and one power of two for 32 weights of a row.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

constexpr GridRow kMxfp4Grid = fixed_grid({1, 32});

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
    .bits = 4};

}  // namespace glu_ckpt
