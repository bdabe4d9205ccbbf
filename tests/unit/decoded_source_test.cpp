/// Experts that their naming turns: what is decoded from codes stored as [in, out] is the transpose of what the same
/// codes decode to as [out, in], bit for bit, on both paths.

#include "quant/decoded_source.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "core/float_rows.hpp"
#include "model/open_checkpoint.hpp"
#include "quant/check_codes.hpp"
#include "quant/find_quantized.hpp"
#include "support/convert.hpp"
#include "support/memory_checkpoint.hpp"

namespace glu_ckpt {
namespace {

using support::expect_error;
using support::MemorySource;
using support::MemoryTensor;

constexpr i64 kExperts = 3;

MemoryTensor filled(std::string name, Dtype dtype, std::vector<i64> shape) {
  MemoryTensor tensor{std::move(name), dtype, std::move(shape), {}};
  tensor.bytes.resize(static_cast<std::size_t>(support::tensor_bytes(dtype, tensor.shape)));
  std::mt19937_64 random(std::hash<std::string>()(tensor.name));
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random() % 0x78 + (random() % 2) * 0x80);
  return tensor;
}

/// Positive numbers, all of them different.
MemoryTensor scales(std::string name, const std::vector<i64>& shape) {
  MemoryTensor tensor = filled(std::move(name), Dtype::F32, shape);
  for (std::size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
    const float value = 0.01F + 0.00137F * static_cast<float>(i * 7 % 1024 + i);
    std::memcpy(&tensor.bytes[4 * i], &value, sizeof value);
  }
  return tensor;
}

/// [.., rows, cols] of elements as [.., cols, rows].
MemoryTensor turned(MemoryTensor tensor, std::size_t element) {
  const auto rows = static_cast<std::size_t>(tensor.shape[tensor.shape.size() - 2]);
  const auto cols = static_cast<std::size_t>(tensor.shape.back());
  const std::vector<std::byte> old = tensor.bytes;
  for (std::size_t start = 0; start < old.size(); start += rows * cols * element)
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t col = 0; col < cols; ++col)
        std::memcpy(&tensor.bytes[start + (col * rows + row) * element], &old[start + (row * cols + col) * element],
                    element);
  std::swap(tensor.shape[tensor.shape.size() - 2], tensor.shape.back());
  return tensor;
}

QuantConfig method(const std::string& name) {
  QuantConfig config;
  config.method = name;
  return config;
}

/// The bytes of the only weight, decoded; read in pieces of `piece` bytes.
std::vector<std::byte> decoded(const std::vector<MemoryTensor>& tensors, const QuantConfig& config,
                               const WeightAxes& axes, Dtype to, DecodePath path, std::vector<i64>& shape,
                               i64 part_rows = 0, i64 piece = i64{1} << 30) {
  std::unique_ptr<Source> source = std::make_unique<MemorySource>(tensors);
  Quantization found = find_quantized(source->inventory(), config, axes);
  EXPECT_EQ(found.tensors.size(), 1U);
  found.tensors.at(0).part_rows = part_rows;
  check_decodable(*source, found);
  source = decode_source(std::move(source), std::move(found), to, path);
  EXPECT_EQ(source->inventory().tensors.size(), 1U);
  const TensorRef& tensor = source->inventory().tensors.at(0);
  shape = tensor.shape;
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  for (i64 at = 0; at < tensor.bytes; at += piece)
    source->read(0, at,
                 std::span(bytes).subspan(static_cast<std::size_t>(at),
                                          static_cast<std::size_t>(std::min(piece, tensor.bytes - at))));
  EXPECT_TRUE(source->may_have_read_nan_or_infinity() || count_not_finite(bytes, to) == 0);
  return bytes;
}

struct TurnedCase {
  std::string name;
  QuantConfig config;
  /// As [out, in], and the same codes where the naming turns its experts.
  std::vector<MemoryTensor> straight;
  std::vector<MemoryTensor> turned;
  /// Rows of gate before those of up, where both have a scale each.
  i64 part_rows = 0;
  /// Says whether the naming has to be known.
  bool by_naming = false;
};

std::vector<TurnedCase> turned_cases() {
  std::vector<TurnedCase> cases;
  const i64 out = 96, in = 64;
  const auto fp8 = filled("e.gate_up_proj", Dtype::F8_E4M3, {kExperts, out, in});
  const auto of_channels = scales("e.gate_up_proj_scale", {kExperts, out, 1});
  const auto shaped = [](MemoryTensor tensor, std::vector<i64> shape) {
    tensor.shape = std::move(shape);
    return tensor;
  };
  cases.push_back(
      {"FP8 per channel", method("fbgemm_fp8"), {fp8, of_channels}, {turned(fp8, 1), turned(of_channels, 4)}});
  // Llama-4 writes the scales of FC2 so, though the outputs are the last axis of its codes.
  cases.push_back(
      {"FP8 per channel as a column", method("fbgemm_fp8"), {fp8, of_channels}, {turned(fp8, 1), of_channels}});
  cases.push_back({"FP8 per channel without an axis of one",
                   method("fbgemm_fp8"),
                   {fp8, of_channels},
                   {turned(fp8, 1), shaped(of_channels, {kExperts, out})}});
  const auto square = filled("e.down_proj", Dtype::F8_E4M3, {kExperts, in, in});
  const auto of_square = scales("e.down_proj_scale", {kExperts, in, 1});
  cases.push_back(
      {"FP8 of a square", method("fbgemm_fp8"), {square, of_square}, {turned(square, 1), turned(of_square, 4)}});
  cases.push_back({"FP8 of a square, as a column",
                   method("fbgemm_fp8"),
                   {square, of_square},
                   {turned(square, 1), of_square},
                   0,
                   true});
  const auto int8 = filled("e.gate_up_proj", Dtype::I8, {kExperts, out, in});
  cases.push_back({"INT8 per channel",
                   method("compressed-tensors"),
                   {int8, of_channels},
                   {turned(int8, 1), turned(of_channels, 4)}});
  const auto of_matrices = scales("e.gate_up_proj_scale", {kExperts});
  cases.push_back({"FP8 per tensor", method("modelopt"), {fp8, of_matrices}, {turned(fp8, 1), [&] {
                                                                                auto s = of_matrices;
                                                                                s.name = "e.gate_up_proj_weight_scale";
                                                                                return s;
                                                                              }()}});
  const auto of_parts = scales("e.gate_up_proj_scale", {kExperts, 2});
  for (const i64 part_rows : {i64{1}, i64{16}, out / 2})
    cases.push_back(
        {"FP8 of gate and up", method("modelopt"), {fp8, of_parts}, {turned(fp8, 1), of_parts}, part_rows, true});
  auto exponents = filled("e.gate_up_proj_scale", Dtype::U8, {kExperts, out, in / 32});
  cases.push_back({"MXFP8", method("mxfp8"), {fp8, exponents}, {turned(fp8, 1), turned(exponents, 1)}});

  // ModelOpt packs along the inputs and turns the bytes.
  const auto fp4 = filled("e.gate_up_proj", Dtype::U8, {kExperts, out, in / 2});
  const auto renamed = [](MemoryTensor tensor, const std::string& suffix) {
    tensor.name = "e.gate_up_proj" + suffix;
    return tensor;
  };
  const auto blocks = filled("e.gate_up_proj_scale", Dtype::F8_E4M3, {kExperts, out, in / 16});
  const auto second = scales("e.gate_up_proj_scale_2", {kExperts});
  const auto inputs = scales("e.gate_up_proj_input_scale", {kExperts});
  cases.push_back(
      {"NVFP4",
       method("modelopt"),
       {fp4, blocks, second, inputs},
       {turned(fp4, 1), renamed(turned(blocks, 1), "_weight_scale"), renamed(second, "_weight_scale_2"), inputs}});
  const auto two_seconds = scales("e.gate_up_proj_scale_2", {kExperts, 2});
  for (const i64 part_rows : {i64{1}, i64{32}, out / 2})
    cases.push_back({"NVFP4 of gate and up",
                     method("modelopt"),
                     {fp4, blocks, two_seconds},
                     {turned(fp4, 1), turned(blocks, 1), two_seconds},
                     part_rows,
                     false});
  cases.push_back({"MXFP4 of ModelOpt", method("modelopt"), {fp4, exponents}, {turned(fp4, 1), turned(exponents, 1)}});

  // Codes that have the axes of their format under any name.
  const auto packed = [](Dtype dtype, i64 cols) { return filled("e.up_proj_packed", dtype, {kExperts, 96, cols}); };
  const auto of_groups = [] {
    auto tensor = filled("e.up_proj_scale", Dtype::BF16, {kExperts, 96, 2});
    for (std::size_t i = 0; i < tensor.bytes.size(); i += 2) {
      const auto bits = static_cast<std::uint16_t>(0x3c01 + 7 * i);
      std::memcpy(&tensor.bytes[i], &bits, sizeof bits);
    }
    return tensor;
  }();
  const auto same = [&](std::string name, QuantConfig config, const std::vector<MemoryTensor>& tensors) {
    cases.push_back({std::move(name), std::move(config), tensors, tensors, 0, true});
  };
  same("INT4", method("compressed-tensors"), {packed(Dtype::I32, 8), of_groups});
  auto zeros = filled("e.up_proj_zero_point", Dtype::I32, {kExperts, 12, 2});
  same("INT4 with zero points", method("compressed-tensors"), {packed(Dtype::I32, 8), of_groups, zeros});
  same("MXFP4 of compressed-tensors", method("compressed-tensors"),
       {packed(Dtype::U8, 32), filled("e.up_proj_scale", Dtype::U8, {kExperts, 96, 2})});
  QuantConfig awq = method("awq");
  awq.group_size = 32;
  const auto halves = [&] {
    auto tensor = of_groups;
    tensor.name = "e.up_proj_scales";
    tensor.dtype = Dtype::F16;
    tensor.shape = {kExperts, 2, 96};
    return tensor;
  }();
  same("AWQ", awq,
       {filled("e.up_proj_qweight", Dtype::I32, {kExperts, 64, 12}), halves,
        filled("e.up_proj_qzeros", Dtype::I32, {kExperts, 2, 12})});
  // gpt-oss's are turned unless another family's names were given to them.
  const std::vector<MemoryTensor> gpt_oss = {filled("e.up_proj_blocks", Dtype::U8, {kExperts, 96, 2, 16}),
                                             filled("e.up_proj_scales", Dtype::U8, {kExperts, 96, 2})};
  cases.push_back({"MXFP4 of gpt-oss", method("mxfp4"), gpt_oss, gpt_oss});
  return cases;
}

/// The place of a case's weight where a naming explains it.
WeightAxes axes_of(const TurnedCase& one, Axes axes) {
  WeightPlace place(axes);
  place.is_fused = one.straight.front().name.starts_with("e.gate_up_proj");
  return {{0, place}};
}

/// Counts what is read of one of its tensors.
class CountedSource final : public Source {
 public:
  CountedSource(const std::vector<MemoryTensor>& tensors, i64& bytes) : source_(tensors), bytes_(bytes) {}
  void count(std::size_t tensor) { counted_ = tensor; }

  const CheckpointInfo& info() const override { return source_.info(); }
  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return nullptr; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    for (const std::span<std::byte> piece : pieces) bytes_ += tensor == counted_ ? std::ssize(piece) : 0;
    source_.read_scattered(tensor, offset, pieces);
  }

 private:
  MemorySource source_;
  std::size_t counted_ = 0;
  i64& bytes_;
};

/// Reads what is decoded in parts of eight rows; returns whether the source says that this costs no more, and whether
/// it read its codes once.
std::pair<bool, bool> cheap_in_parts(const std::vector<MemoryTensor>& tensors, const QuantConfig& config,
                                     const WeightAxes& axes, i64 part_rows) {
  i64 bytes = 0;
  auto counted = std::make_unique<CountedSource>(tensors, bytes);
  Quantization found = find_quantized(counted->inventory(), config, axes);
  found.tensors.at(0).part_rows = part_rows;
  const std::size_t codes = found.tensors.at(0).weight;
  counted->count(codes);
  const i64 stored = counted->inventory().tensors.at(codes).bytes;
  const auto source = decode_source(std::move(counted), std::move(found), Dtype::BF16, DecodePath::Fast);
  const TensorRef& tensor = source->inventory().tensors.at(0);
  std::vector<std::byte> part(static_cast<std::size_t>(8 * 2 * tensor.shape.back()));
  for (i64 at = 0; at < tensor.bytes; at += std::ssize(part)) {
    part.resize(static_cast<std::size_t>(std::min(std::ssize(part), tensor.bytes - at)));
    source->read(0, at, part);
  }
  return {source->is_cheap_in_parts(), bytes == stored};
}

TEST(DecodedSource, PartsAreCheapWhereCodesAreReadOnce) {
  int cheap = 0, dear = 0;
  for (const TurnedCase& one : turned_cases()) {
    const WeightAxes axes = one.by_naming ? axes_of(one, Axes::InOut) : WeightAxes{};
    const auto straight = cheap_in_parts(one.straight, one.config, axes_of(one, Axes::OutIn), one.part_rows);
    const auto turned = cheap_in_parts(one.turned, one.config, axes, one.part_rows);
    EXPECT_EQ(straight.first, straight.second) << one.name;
    EXPECT_EQ(turned.first, turned.second) << one.name << ", turned";
    for (const bool is_cheap : {straight.first, turned.first}) ++(is_cheap ? cheap : dear);
  }
  EXPECT_GT(cheap, 0);
  EXPECT_GT(dear, 0);
}

TEST(DecodedSource, WhatIsTurnedDecodesToTheTranspose) {
  for (const TurnedCase& one : turned_cases())
    for (const Dtype to : {Dtype::BF16, Dtype::F32})
      for (const DecodePath path : {DecodePath::Fast, DecodePath::Plain}) {
        SCOPED_TRACE(one.name + (to == Dtype::BF16 ? ", bf16" : ", f32"));
        std::vector<i64> shape, of_turned;
        MemoryTensor expected{
            "", to, {}, decoded(one.straight, one.config, axes_of(one, Axes::OutIn), to, path, shape, one.part_rows)};
        expected.shape = shape;
        expected = turned(std::move(expected), to == Dtype::BF16 ? 2 : 4);
        const WeightAxes axes = one.by_naming ? axes_of(one, Axes::InOut) : WeightAxes{};
        for (const i64 piece : {i64{1} << 30, i64{1000}}) {
          EXPECT_EQ(decoded(one.turned, one.config, axes, to, path, of_turned, one.part_rows, piece), expected.bytes);
          EXPECT_EQ(of_turned, expected.shape);
        }
        // Known or not, the naming says the same.
        EXPECT_EQ(decoded(one.turned, one.config, axes_of(one, Axes::InOut), to, path, of_turned, one.part_rows),
                  expected.bytes);
      }
}

/// Scales that are exchanged, or taken for those of another axis, give other numbers.
/// A source that decodes knows of NaN codes, and of infinity that may be multiplied by zero.
TEST(DecodedSource, WhatMayBeNanIsKnown) {
  const auto floats = [](MemoryTensor tensor, float value) {
    for (std::size_t i = 0; i < tensor.bytes.size(); i += 4) std::memcpy(&tensor.bytes[i], &value, sizeof value);
    return tensor;
  };
  const auto may_be_nan = [&](Dtype dtype, int code, float scale, DecodePath path) {
    auto codes = filled("e.weight", dtype, {48, 64});
    std::ranges::fill(codes.bytes, std::byte{0x12});
    codes.bytes[100] = static_cast<std::byte>(code);
    std::unique_ptr<Source> source = std::make_unique<MemorySource>(
        std::vector<MemoryTensor>{codes, floats(filled("e.weight_scale", Dtype::F32, {48, 1}), scale)});
    Quantization found = find_quantized(source->inventory(), method("fbgemm_fp8"), {});
    source = decode_source(std::move(source), std::move(found), Dtype::BF16, path);
    std::vector<std::byte> row(128);
    source->read(0, 128 * 40, row);
    EXPECT_EQ(source->may_have_read_nan_or_infinity(), std::isinf(scale)) << "another row";
    for (const i64 begin : {0, 1}) source->read(0, 128 * begin, row);
    EXPECT_EQ(count_not_finite(row, Dtype::BF16) > 0, code != 0x12 && code != 0x7e);
    return source->may_have_read_nan_or_infinity();
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const DecodePath path : {DecodePath::Fast, DecodePath::Plain}) {
    EXPECT_FALSE(may_be_nan(Dtype::F8_E4M3, 0x7e, 1, path));
    EXPECT_TRUE(may_be_nan(Dtype::F8_E4M3, 0xff, 1, path));
    EXPECT_TRUE(may_be_nan(Dtype::F8_E4M3, 0x00, kInfinity, path));
    EXPECT_TRUE(may_be_nan(Dtype::F8_E5M2, 0x7d, 1, path));
    EXPECT_TRUE(may_be_nan(Dtype::F8_E5M2, 0xfc, 0, path));
  }
}

TEST(DecodedSource, AnotherScaleOfWhatIsTurnedIsAnotherNumber) {
  for (TurnedCase one : turned_cases()) {
    std::vector<i64> shape;
    const WeightAxes axes = axes_of(one, Axes::InOut);
    const auto all = [&] {
      return decoded(one.turned, one.config, axes, Dtype::F32, DecodePath::Fast, shape, one.part_rows);
    };
    const std::vector<std::byte> before = all();
    std::vector<std::byte>& bytes = one.turned.at(1).bytes;
    const std::size_t element = static_cast<std::size_t>(dtype_bits(one.turned[1].dtype) / 8);
    std::swap_ranges(bytes.begin(), bytes.begin() + static_cast<i64>(element),
                     bytes.begin() + static_cast<i64>(element));
    EXPECT_NE(all(), before) << one.name;
  }
}

/// The tensors of one weight whose last one, of F32, has `shape` and holds one value.
std::vector<MemoryTensor> with_last(std::vector<MemoryTensor> tensors, std::vector<i64> shape, float value) {
  MemoryTensor& last = tensors.back();
  last.shape = std::move(shape);
  last.bytes.resize(static_cast<std::size_t>(support::tensor_bytes(Dtype::F32, last.shape)));
  for (std::size_t i = 0; i < last.bytes.size(); i += sizeof value) std::memcpy(&last.bytes[i], &value, sizeof value);
  return tensors;
}

/// ModelOpt stores one where the experts of a layer are one parameter.
TEST(DecodedSource, OneScaleForAllExpertsIsThatOfEach) {
  const struct {
    std::string method;
    std::vector<MemoryTensor> tensors;
  } cases[] = {
      {"modelopt",
       {filled("e.up_proj", Dtype::F8_E4M3, {kExperts, 64, 96}), scales("e.up_proj_weight_scale", {kExperts})}},
      {"compressed-tensors",
       {filled("e.up_proj", Dtype::I8, {kExperts, 64, 96}), scales("e.up_proj_scale", {kExperts})}},
      {"modelopt",
       {filled("e.up_proj", Dtype::U8, {kExperts, 32, 96}),
        filled("e.up_proj_weight_scale", Dtype::F8_E4M3, {kExperts, 4, 96}),
        scales("e.up_proj_weight_scale_2", {kExperts})}},
  };
  for (const auto& one : cases)
    for (const DecodePath path : {DecodePath::Fast, DecodePath::Plain})
      for (const Axes axes : {Axes::InOut, Axes::OutIn}) {
        if (axes == Axes::OutIn && one.tensors.size() == 3) continue;  // its block scales are turned
        std::vector<i64> shape;
        const auto numbers = [&](const std::vector<i64>& of_scales, float value) {
          return decoded(with_last(one.tensors, of_scales, value), method(one.method), {{0, axes}}, Dtype::F32, path,
                         shape);
        };
        const std::vector<std::byte> of_each = numbers({kExperts}, 0.37F);
        EXPECT_EQ(numbers({}, 0.37F), of_each) << one.tensors.back().name;
        EXPECT_EQ(numbers({1}, 0.37F), of_each) << one.tensors.back().name;
        EXPECT_NE(numbers({}, 0.38F), of_each) << one.tensors.back().name;
      }
}

TEST(FindQuantized, ASquareWhoseScalesAreOfEitherAxis) {
  const auto weight = filled("e.down_proj", Dtype::F8_E4M3, {kExperts, 64, 64});
  for (const std::vector<i64>& shape : {std::vector<i64>{kExperts, 64, 1}, {kExperts, 64}}) {
    const Inventory inventory = support::make_inventory({weight, scales("e.down_proj_scale", shape)});
    expect_error(
        ErrorCode::SizeMismatch, [&] { find_quantized(inventory, method("fbgemm_fp8")); },
        "of [3, 64, 64], one for each row or one for each column");
    EXPECT_EQ(find_quantized(inventory, method("fbgemm_fp8"), {{0, Axes::OutIn}}).tensors.at(0).cell_rows, 1);
    EXPECT_EQ(find_quantized(inventory, method("fbgemm_fp8"), {{0, Axes::InOut}}).tensors.at(0).cell_cols, 1);
  }
}

TEST(FindQuantized, ScalesOfInputsAreNobodys) {
  const auto weight = filled("e.gate_up_proj", Dtype::F8_E4M3, {kExperts, 64, 96});
  const Inventory inventory = support::make_inventory({weight, scales("e.gate_up_proj_scale", {kExperts, 64, 1})});
  expect_error(
      ErrorCode::SizeMismatch,
      [&] {
        find_quantized(inventory, method("fbgemm_fp8"), {{0, Axes::InOut}});
      },
      "expected [3, 1, 1] or [3, 1, 96]");
}

/// Half a byte of a column has no place in a row of codes.
TEST(FindQuantized, TurnedCodesOfAnOddNumberOfOutputs) {
  expect_error(
      ErrorCode::NotSupported,
      [] {
        find_quantized(support::make_inventory({filled("e.up_proj", Dtype::U8, {kExperts, 32, 95}),
                                                filled("e.up_proj_weight_scale", Dtype::F8_E4M3, {kExperts, 4, 95}),
                                                scales("e.up_proj_weight_scale_2", {kExperts})}),
                       method("modelopt"));
      },
      "odd number of columns");
}

/// What a GPU is told of a weight, decoded by the same rule on the CPU: the numbers that reading the source gives.
int expect_device_forms_agree(const std::filesystem::path& path, Dtype to, const char* decode_as) {
  const auto stored = open_source(path);
  SourceAnswers answers;
  answers.decode = to;
  answers.decode_as = decode_as;
  const Checkpoint checkpoint = open_checkpoint(open_source(path), answers);
  const Source& source = *checkpoint.source;
  const auto bytes_of = [&](const Source& from, std::size_t tensor) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(from.inventory().tensors[tensor].bytes));
    from.read(tensor, 0, bytes);
    return bytes;
  };
  const std::vector<DecodedTensor> tensors = decoded_tensors(source);
  EXPECT_EQ(tensors.size(), source.inventory().tensors.size());
  int agreed = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_decoded) {
      EXPECT_EQ(source.inventory().tensors[i].name, stored->inventory().tensors[tensors[i].stored].name);
      continue;
    }
    if (!tensors[i].coded) continue;
    const CodedTensor& coded = *tensors[i].coded;
    std::vector<std::vector<std::byte>> parts;
    const auto at = [&](std::optional<std::size_t> index) -> const void* {
      return index ? parts.emplace_back(bytes_of(*stored, *index)).data() : nullptr;
    };
    CodedWeight weight = coded.form;
    weight.data = at(coded.codes);
    weight.scales = at(coded.scales);
    weight.globals = static_cast<const float*>(at(coded.global));
    weight.zeros = static_cast<const u32*>(at(coded.zeros));
    weight.column_groups = static_cast<const u32*>(at(coded.groups));
    const std::vector<std::byte> wanted = bytes_of(source, i);
    std::vector<std::byte> got(wanted.size());
    decode_codes_host(weight, to, got.data());
    EXPECT_EQ(got, wanted) << path << ": " << source.inventory().tensors[i].name;
    ++agreed;
  }
  return agreed;
}

TEST(DecodedSource, TheFormForAGpuGivesTheSameNumbers) {
  const std::filesystem::path folder = std::filesystem::path(std::getenv("GLU_CKPT_TESTDATA")) / "quantized";
  for (const char* name : {"awq_int4", "fp8_block128", "fp8_block128_ue8m0", "gptq_int4", "nvfp4_modelopt"})
    for (const Dtype to : {Dtype::BF16, Dtype::F32})
      EXPECT_GT(expect_device_forms_agree(folder / name, to, ""), 0) << name;
  for (const char* name : {"ct_int4_asym", "ct_int4_g32", "fp8_channel", "fp8_per_tensor"}) {
    EXPECT_GT(expect_device_forms_agree(folder / name, Dtype::BF16, ""), 0) << name;
    // Products are rounded to BF16 on their way to F32, for which the kernels have no step.
    EXPECT_EQ(expect_device_forms_agree(folder / name, Dtype::F32, ""), 0) << name;
  }
  // Its naming turns its experts, which the kernels do not.
  EXPECT_EQ(expect_device_forms_agree(folder / "mxfp4_gpt_oss", Dtype::BF16, ""), 0);
}

}  // namespace
}  // namespace glu_ckpt
