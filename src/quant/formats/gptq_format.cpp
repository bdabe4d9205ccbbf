/// GPTQ: words [in / 8, out] of eight inputs, floats for groups of inputs, and zero points packed along outputs.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

extern const QuantFormat q_gptq;
constinit const QuantFormat q_gptq{
    .name = "GPTQ",
    .forms = {{.kind = TensorKind::QWeight,
               .dtype = Dtype::I32,
               .codes = Codes::Gptq,
               .packing = kRowWords,
               .parts = {{PartUse::Scales, TensorKind::Scales, kFloatScales, {group_grid(1, 0)}},
                         {PartUse::Zeros, TensorKind::QZeros, {Dtype::I32}, {group_grid(8, 0)}},
                         {PartUse::Order, TensorKind::GroupIndex, {Dtype::I32}}}}},
    .decoders = {{"gptq"}},
    .methods = {{"gptq", "gptq"}},
    .versions = {"gptq", "gptq_v2"},
    .zero_offset = 1,
    .type = "int",
    .bits = 4,
    .words = {.version = {"checkpoint_format", "format"},
              .marlin = "is_marlin_format",
              .order = "desc_act",
              .auto_round = "auto_round:auto_gptq"}};

}  // namespace glu_ckpt
