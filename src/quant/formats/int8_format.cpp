/// INT8: a byte for a weight, and a float for a matrix or for each output.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

extern const QuantFormat q_int8;
constinit const QuantFormat q_int8{
    .name = "INT8",
    .forms = {{.dtype = Dtype::I8,
               .codes = Codes::Int8,
               .parts = {{PartUse::Scales, TensorKind::PlainScale, kFloatScales, {kMatrixGrid, kOutputGrid}},
                         kInputScale}}},
    .decoders = {{.program = "compressed-tensors", .rounds_product = true}},
    .type = "int"};

}  // namespace glu_ckpt
