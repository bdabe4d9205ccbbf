/// AWQ: words [in, out / 8] of eight outputs, floats for groups of inputs, and zero points packed as the codes are.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

extern const QuantFormat q_awq;
constinit const QuantFormat q_awq{
    .name = "AWQ",
    .forms = {{.kind = TensorKind::QWeight,
               .dtype = Dtype::I32,
               .codes = Codes::Awq,
               .packing = kColumnWords,
               .parts = {{PartUse::Scales, TensorKind::Scales, kFloatScales, {group_grid(1, 0)}},
                         {PartUse::Zeros, TensorKind::QZeros, {Dtype::I32}, {group_grid(8, 0)}}}}},
    .decoders = {{"awq"}},
    .methods = {{"awq", "awq"}},
    .versions = {"gemm"},
    .type = "int",
    .bits = 4,
    .words = {.version = {"version"},
              .zeros = "zero_point",
              .auto_round = "auto_round:auto_awq",
              .file = "quant_config.json",
              .own = {"w_bit", "zero_point"}}};

}  // namespace glu_ckpt
