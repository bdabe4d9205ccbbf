/// INT4 as compressed-tensors packs it: eight codes in a word of a row, and floats for groups of columns.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

namespace {

constexpr EncoderRow groups_of(std::string_view word, std::int16_t cols) {
  return {.word = word,
          .program = "compressed-tensors",
          .rule = ScaleRule::Int4,
          .cell_cols = cols,
          .codes = TensorKind::PackedWeight,
          .scale_dtype = Dtype::BF16,
          .divides = true,
          .rounds_quotient = true,
          .method = "compressed-tensors",
          .config_format = "pack-quantized"};
}

}  // namespace

extern const QuantFormat q_int4;
constinit const QuantFormat q_int4{
    .name = "INT4",
    .forms = {{.kind = TensorKind::PackedWeight,
               .dtype = Dtype::I32,
               .codes = Codes::Int4,
               .packing = kRowWords,
               .parts = {{PartUse::Scales,
                          TensorKind::PlainScale,
                          {Dtype::BF16, Dtype::F16, Dtype::F32},
                          {kOutputGrid, group_grid(1, 1)}},
                         {PartUse::Zeros, TensorKind::ZeroPoint, {Dtype::I32}, {group_grid(8, 1)}},
                         {PartUse::Order, TensorKind::PackedGroupIndex, {Dtype::I32}, {fixed_grid({0, 1})}},
                         {PartUse::StatedShape, TensorKind::WeightShape}}}},
    .decoders = {{.program = "compressed-tensors", .rounds_product = true}},
    // compressed-tensors 0.20 as llm-compressor's W4A16 calls it.
    .encoders = {groups_of("int4:g32", 32), groups_of("int4:g128", 128)},
    .type = "int",
    .bits = 4};

}  // namespace glu_ckpt
