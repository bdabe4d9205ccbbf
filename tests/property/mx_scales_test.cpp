/// Checkpoints in MXFP8: weights and their scales, from every layout to every other, by position.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "support/convert.hpp"

namespace glu_ckpt::support {
namespace {

constexpr ScaleSpec kRows{1, 32, 1, 1, Dtype::U8, true};
constexpr ScaleSpec kColumns{32, 1, 1, 1, Dtype::U8, true};
constexpr ScaleSpec kPaddedRows{1, 32, 128, 4, Dtype::U8, true};
constexpr ScaleSpec kPaddedColumns{32, 1, 4, 128, Dtype::U8, true};

ModelSpec mx_model(const ScaleSpec& scales, i64 width, i64 hidden, i64 experts = 3) {
  ModelSpec model;
  BlockSpec block;
  block.widths = widths(experts, width);
  block.hidden = hidden;
  block.dtype = Dtype::F8_E4M3;
  block.scales = true;
  block.scale_spec = scales;
  model.blocks.push_back(block);
  block.layer = 1;
  model.blocks.push_back(block);
  model.others = other_tensors();
  return model;
}

Spelling spelled(const std::string& naming, Experts experts, Glu glu) {
  return {naming, experts, experts, glu, split()};
}

std::vector<Spelling> spellings(const std::vector<Glu>& orders) {
  std::vector<Spelling> all;
  for (const std::string naming : {"hf:deepseek_v3", "hf:mixtral"})
    for (const Experts experts : {Experts::Indexed, Experts::Grouped})
      for (const Glu& glu : orders) all.push_back(spelled(naming, experts, glu));
  return all;
}

/// From the first to each and back, and from each to some other.
void expect_all_convert(const ModelSpec& model, const std::vector<Glu>& orders) {
  const std::vector<Spelling> all = spellings(orders);
  for (std::size_t i = 0; i < all.size(); ++i) {
    expect_converts(model, all.front(), all[i]);
    expect_converts(model, all[i], all.front());
    expect_converts(model, all[i], all[(i * 7 + 3) % all.size()]);
  }
}

/// The same scales in another dtype or under another name.
std::vector<ScaleSpec> variants(ScaleSpec scales) {
  std::vector<ScaleSpec> all{scales};
  scales.dtype = Dtype::F8_E8M0;
  all.push_back(scales);
  scales.plain = false;
  all.push_back(scales);
  return all;
}

TEST(MxScales, OfRowsMoveWithTheirRowsForAnyK) {
  for (const ScaleSpec& scales : variants(kRows))
    expect_all_convert(mx_model(scales, 96, 64),
                       {split(), contiguous(), interleaved(1), interleaved(8), interleaved(32), interleaved(48)});
}

TEST(MxScales, OfColumnsMoveInBlocksOf32Rows) {
  for (const ScaleSpec& scales : variants(kColumns))
    expect_all_convert(mx_model(scales, 192, 64),
                       {split(), contiguous(), interleaved(32), interleaved(64), interleaved(96)});
}

TEST(MxScales, PaddedOnesMoveWithTheirPadding) {
  // 128 scale rows of gate and of up: no padding but that of columns.
  expect_all_convert(mx_model(kPaddedRows, 128, 96), {split(), contiguous(), interleaved(8), interleaved(32)});
  // 4 scale rows of gate and of up.
  expect_all_convert(mx_model(kPaddedColumns, 128, 96), {split(), contiguous(), interleaved(32), interleaved(64)});
  // Rows of padding stay where they are as long as FC1 is neither fused nor cut.
  for (const ScaleSpec& scales : {kPaddedRows, kPaddedColumns}) {
    expect_all_convert(mx_model(scales, 96, 96), {contiguous(), interleaved(32)});
    expect_all_convert(mx_model(scales, 96, 96), {split()});
  }
}

TEST(MxScales, PaddingThatWouldComeOrGoIsRefused) {
  for (const ScaleSpec& scales : {kPaddedRows, kPaddedColumns})
    for (const i64 width : {64, 96, 160}) {
      const ModelSpec model = mx_model(scales, width, 32);
      for (const auto& [from, to] : {std::pair{split(), contiguous()}, {contiguous(), split()}}) {
        const MemorySource source = make_source(model, spelled("hf:deepseek_v3", Experts::Grouped, from));
        const Recognition recognition = recognize_source(source);
        PlanOptions options;
        options.to.glu = to;
        expect_error(
            ErrorCode::NotExact, [&] { make_plan(source.inventory(), recognition, options); }, "padded");
      }
    }
}

TEST(MxScales, ColumnsThatKWouldCutAreRefused) {
  for (const ScaleSpec& scales : {kColumns, kPaddedColumns}) {
    const MemorySource source =
        make_source(mx_model(scales, 256, 64), spelled("hf:deepseek_v3", Experts::Indexed, split()));
    const Recognition recognition = recognize_source(source);
    for (const i64 k : {1, 8, 16}) {
      PlanOptions options;
      options.to.glu = interleaved(k);
      expect_error(
          ErrorCode::NotExact, [&] { make_plan(source.inventory(), recognition, options); }, "32 x 1");
    }
    PlanOptions options;
    options.to.glu = interleaved(32);
    EXPECT_NO_THROW(make_plan(source.inventory(), recognition, options));
  }
}

TEST(MxScales, NamingsWithoutAPlaceForThemAreRefused) {
  for (const ScaleSpec& scales : {kRows, kColumns}) {
    const MemorySource source =
        make_source(mx_model(scales, 64, 64), spelled("hf:deepseek_v3", Experts::Indexed, split()));
    const Recognition recognition = recognize_source(source);
    PlanOptions options;
    options.to.naming = "hf:gpt_oss";
    options.to.scope = Scope::Experts;
    options.to.glu = interleaved(1);
    options.to.experts = Experts::Grouped;
    expect_error(
        ErrorCode::NotExact, [&] { make_plan(source.inventory(), recognition, options); }, "transposes");
    options.to.naming = "megatron";
    options.to.scope = Scope::Experts;
    options.to.glu = contiguous();
    expect_error(
        ErrorCode::NoSpelling, [&] { make_plan(source.inventory(), recognition, options); }, "scale");
  }
}

TEST(MxScales, RandomShapes) {
  std::mt19937 random(17);
  const auto pick = [&](i64 most) { return 1 + static_cast<i64>(random() % static_cast<unsigned>(most)); };
  for (int n = 0; n < 80; ++n) {
    const bool columns = n % 2 == 0;
    const bool padded = n % 4 >= 2;
    ScaleSpec scales = columns ? (padded ? kPaddedColumns : kColumns) : (padded ? kPaddedRows : kRows);
    scales.plain = pick(2) == 1;
    scales.dtype = pick(2) == 1 ? Dtype::U8 : Dtype::F8_E8M0;
    const i64 unit = padded ? 128 : 32;
    const i64 k = columns ? 32 * pick(4) : pick(48);
    const i64 width = std::lcm(unit, k) <= 1024 ? std::lcm(unit, k) : unit * k;
    if (width > 1024) continue;
    const ModelSpec model = mx_model(scales, width, 32 * pick(5), pick(4));
    const std::vector<Spelling> all = spellings({split(), contiguous(), interleaved(k)});
    const Spelling& from = all[random() % all.size()];
    const Spelling& to = all[random() % all.size()];
    expect_converts(model, from, to);
  }
}

/// FC2 in bf16 beside an FC1 in MXFP8, and scales of a width that is no multiple of 32.
TEST(MxScales, OfFc1AloneAndOfOddWidths) {
  const ModelSpec model = mx_model(kRows, 64, 32);
  const auto without_fc2_scales = [&](const Spelling& spelling) {
    std::vector<MemoryTensor> tensors = build(model, spelling);
    std::erase_if(tensors, [](const MemoryTensor& t) {
      return t.name.find("down") != t.name.npos && t.name.ends_with("_scale");
    });
    for (MemoryTensor& tensor : tensors)
      if (tensor.name.find("down") != tensor.name.npos) {
        tensor.dtype = Dtype::BF16;
        tensor.bytes.resize(tensor.bytes.size() * 2);
      }
    return tensors;
  };
  const Spelling from = spelled("hf:deepseek_v3", Experts::Indexed, split());
  const Spelling to = spelled("hf:deepseek_v3", Experts::Grouped, interleaved(32));
  const MemorySource source(without_fc2_scales(from), {}, record_of(model, from));
  const Converted converted = convert(source, recognize_source(source), options_for(model, to));
  std::vector<MemoryTensor> expected = without_fc2_scales(to);
  EXPECT_EQ(converted.tensors.size(), expected.size());
  const auto scale =
      std::ranges::find(converted.tensors, "model.layers.1.mlp.experts.gate_up_proj_scale", &MemoryTensor::name);
  ASSERT_NE(scale, converted.tensors.end());
  const auto want = std::ranges::find(expected, scale->name, &MemoryTensor::name);
  EXPECT_EQ(scale->bytes, want->bytes);
  EXPECT_EQ(scale->shape, (std::vector<i64>{3, 128, 1}));
  // Rows of scales need columns in blocks of 32 only. FC2 has F columns, so it has no scales here.
}

// ---- what is no MXFP8 ---------------------------------------------------------------------------

std::vector<MemoryTensor> with_scales(std::vector<MemoryTensor> tensors, Dtype dtype, std::vector<i64> shape) {
  for (MemoryTensor& tensor : tensors)
    if (tensor.name.ends_with(".weight_scale")) {
      tensor.dtype = dtype;
      tensor.shape = shape;
      tensor.bytes.assign(static_cast<std::size_t>(tensor_bytes(dtype, shape)), std::byte{1});
    }
  return tensors;
}

/// `weight_scale` is what many formats call theirs: those are no part of a matrix, but do not get lost either.
TEST(MxScales, ScalesOfOtherFormatsStayUnexplained) {
  const ModelSpec model = mx_model(kRows, 64, 64);
  const Spelling from = spelled("hf:deepseek_v3", Experts::Indexed, split());
  const std::vector<std::pair<Dtype, std::vector<i64>>> foreign{
      {Dtype::F32, {2, 1}}, {Dtype::F32, {64, 2}},     {Dtype::BF16, {1, 64}},       {Dtype::U8, {64, 4}},
      {Dtype::U8, {2}},     {Dtype::F8_E4M3, {64, 2}}, {Dtype::U8, {1, 1, 32, 4, 4}}};
  for (const auto& [dtype, shape] : foreign) {
    const MemorySource source(with_scales(build(model, from), dtype, shape), {}, record_of(model, from));
    const Recognition recognition = recognize_source(source);
    EXPECT_EQ(recognition.unexplained.size(), 18u) << shape_text(shape);
    EXPECT_FALSE(recognition.problems.empty());
    for (const ExpertBlock& block : recognition.blocks)
      for (const Matrix& matrix : block.matrices) EXPECT_EQ(matrix.kind, TensorKind::Weight);
    PlanOptions options;
    options.to.glu = contiguous();
    expect_error(
        ErrorCode::UnexplainedKey, [&] { make_plan(source.inventory(), recognition, options); },
        dtype == Dtype::U8 ? "swizzled" : "weight_scale");
  }
}

TEST(MxScales, BothNamesForOneWeightAreRedundant) {
  const ModelSpec model = mx_model(kRows, 64, 64);
  const Spelling from = spelled("hf:deepseek_v3", Experts::Indexed, split());
  std::vector<MemoryTensor> tensors = build(model, from);
  for (std::size_t i = 0, count = tensors.size(); i < count; ++i)
    if (tensors[i].name.ends_with(".weight_scale")) {
      MemoryTensor copy = tensors[i];
      copy.name += "_inv";
      tensors.push_back(std::move(copy));
    }
  const MemorySource source(std::move(tensors), {}, record_of(model, from));
  expect_error(
      ErrorCode::RedundantKeys, [&] { recognize_source(source); }, "weight_scale");
}

TEST(MxScales, AnExpertWithoutItsScalesIsIncomplete) {
  const ModelSpec model = mx_model(kRows, 64, 64);
  const Spelling from = spelled("hf:deepseek_v3", Experts::Indexed, split());
  std::vector<MemoryTensor> tensors = build(model, from);
  std::erase_if(tensors,
                [](const MemoryTensor& t) { return t.name.ends_with("1.mlp.experts.2.up_proj.weight_scale"); });
  const MemorySource source(std::move(tensors), {}, record_of(model, from));
  expect_error(
      ErrorCode::BiasIncomplete, [&] { recognize_source(source); }, "scale");
}

// ---- what is compared ---------------------------------------------------------------------------

/// Padding means nothing: with other bytes in it, or none of it, a model is the same.
TEST(MxScales, TheDigestDoesNotSeePadding) {
  const Spelling from = spelled("hf:deepseek_v3", Experts::Grouped, interleaved(32));
  for (const auto& [padded, dense] : {std::pair{kPaddedRows, kRows}, {kPaddedColumns, kColumns}}) {
    const ModelSpec model = mx_model(padded, 96, 96);
    std::vector<MemoryTensor> tensors = build(model, from);
    const Digest digest = digest_of(MemorySource(tensors, {}, record_of(model, from)));
    i64 padding = 0;
    for (MemoryTensor& tensor : tensors)
      if (tensor.name.ends_with("_scale"))
        for (std::byte& byte : tensor.bytes)
          if (byte == std::byte{0xfe}) {
            byte = static_cast<std::byte>(++padding % 256);
          }
    EXPECT_GT(padding, 0);
    EXPECT_EQ(digest_of(MemorySource(tensors, {}, record_of(model, from))), digest);
    EXPECT_EQ(digest_of(make_source(mx_model(dense, 96, 96), from)), digest);
    ModelSpec inverse = mx_model(dense, 96, 96);
    for (BlockSpec& block : inverse.blocks) block.scale_spec.plain = false;
    EXPECT_EQ(digest_of(make_source(inverse, from)), digest) << "the name is no part of it";
  }
}

TEST(MxScales, ExchangedScaleRowsAreAnotherModel) {
  for (const ScaleSpec& scales : {kRows, kColumns, kPaddedRows, kPaddedColumns}) {
    const ModelSpec model = mx_model(scales, 128, 64);
    const Spelling from = spelled("hf:deepseek_v3", Experts::Grouped, interleaved(32));
    const MemorySource source = make_source(model, from);
    std::vector<MemoryTensor> tensors = build(model, from);
    const auto scale = std::ranges::find(tensors, "model.layers.1.mlp.experts.gate_up_proj_scale", &MemoryTensor::name);
    ASSERT_NE(scale, tensors.end());
    const std::size_t row = static_cast<std::size_t>(scale->shape[2]);
    std::swap_ranges(scale->bytes.begin(), scale->bytes.begin() + static_cast<i64>(row),
                     scale->bytes.begin() + static_cast<i64>(row));
    EXPECT_NE(digest_of(source), digest_of(MemorySource(tensors, {}, record_of(model, from))));
    const MemorySource changed(tensors, {}, record_of(model, from));
    const Recognition a = recognize_source(source);
    const Recognition b = recognize_source(changed);
    const Verdict verdict = verify({&source, &a}, {&changed, &b}, *make_backend("cpu"), {});
    EXPECT_FALSE(verdict.equal);
    ASSERT_TRUE(verdict.first_difference.has_value());
  }
}

}  // namespace
}  // namespace glu_ckpt::support
