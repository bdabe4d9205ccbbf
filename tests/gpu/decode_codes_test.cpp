/// Quantized weights decoded on the device against the functions for the host, which the answers of each format's
/// software judge (tests/golden/quantized_test.cpp): every code with scales to the ends of their ranges, edge cells,
/// odd addresses, and the quantized checkpoints of testdata.

#include "glu_ckpt/ops/decode_codes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>

#include "core/float_rows.hpp"
#include "gpu/guarded_array.hpp"
#include "quant/find_quantized.hpp"
#include "quant/quant_config.hpp"
#include "support/slug_of.hpp"
#include "support/stored_checkpoint.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using Stored = std::vector<std::byte>;

constexpr Codes kByRow[] = {Codes::E4m3, Codes::E5m2, Codes::Int8, Codes::E2m1, Codes::Int4};
constexpr Dtype kScaleDtypes[] = {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E4M3, Dtype::F8_E8M0, Dtype::U8};

i64 stored_bytes(const CodedWeight& weight) {
  const bool halves = weight.codes == Codes::E2m1 || weight.codes == Codes::Int4;
  return weight.matrices * weight.rows * weight.cols / (halves ? 2 : 1);
}

i64 cells(const CodedWeight& weight) {
  return weight.matrices * ((weight.rows - 1) / weight.cell_rows + 1) * ((weight.cols - 1) / weight.cell_cols + 1);
}

std::string describe(const CodedWeight& w, Dtype to) {
  std::string text = "codes " + std::to_string(static_cast<int>(w.codes));
  for (const i64 number : {w.matrices, w.rows, w.cols}) text += " x " + std::to_string(number);
  return text + " cells " + std::to_string(w.cell_rows) + " x " + std::to_string(w.cell_cols) + " of " +
         std::string(dtype_name(w.scale_dtype)) + (w.globals != nullptr ? ", globals" : "") +
         (w.global_divides ? ", divided" : "") + (w.positive_zero ? ", +0" : "") + (w.rounds_scale ? ", rounded" : "") +
         (w.rounds_to_f16 ? ", in fp16" : "") + " to " + std::string(dtype_name(to));
}

/// What only words have.
struct WordArrays {
  Stored zeros;
  Stored groups;
};

/// `weight` has host pointers. All arrays but the scales begin `shift` bytes, the output `shift` elements, behind
/// multiples of 256.
Stored on_device(CodedWeight weight, const Stored& codes, const Stored& scales, const std::vector<float>& globals,
                 Dtype to, i64 shift, const WordArrays& arrays = {}) {
  const CudaStream stream;
  const i64 element = dtype_bits(to) / 8;
  const GuardedArray data(codes, shift), grid(scales), second(globals), zeros(arrays.zeros), groups(arrays.groups);
  const GuardedArray out(weight.matrices * weight.rows * weight.cols * element, shift * element);
  weight.data = data.data();
  weight.scales = grid.data();
  if (weight.globals != nullptr) weight.globals = reinterpret_cast<const float*>(second.data());
  if (weight.zeros != nullptr) weight.zeros = reinterpret_cast<const u32*>(zeros.data());
  if (weight.column_groups != nullptr) weight.column_groups = reinterpret_cast<const u32*>(groups.data());
  decode_codes(weight, to, out.data(), stream.get());
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  EXPECT_TRUE(out.guards_intact() && data.guards_intact());
  return out.download();
}

void expect_same(CodedWeight weight, const Stored& codes, const Stored& scales, const std::vector<float>& globals,
                 i64 shift = 0, const WordArrays& arrays = {}) {
  weight.data = codes.data();
  if (!arrays.zeros.empty()) weight.zeros = reinterpret_cast<const u32*>(arrays.zeros.data());
  if (!arrays.groups.empty()) weight.column_groups = reinterpret_cast<const u32*>(arrays.groups.data());
  weight.scales = scales.data();
  weight.globals = globals.empty() ? nullptr : globals.data();
  for (const Dtype to : {Dtype::BF16, Dtype::F32}) {
    SCOPED_TRACE(describe(weight, to));
    Stored expected(static_cast<std::size_t>(weight.matrices * weight.rows * weight.cols * (dtype_bits(to) / 8)));
    decode_codes_host(weight, to, expected.data());
    EXPECT_TRUE(on_device(weight, codes, scales, globals, to, shift, arrays) == expected);
  }
}

/// All bytes in turn, with a shift from one round to the next, so that every code meets every place and many scales.
Stored all_codes(i64 bytes) {
  Stored codes;
  for (i64 i = 0; i < bytes; ++i) codes.push_back(static_cast<std::byte>(i + i / 256 * 3));
  return codes;
}

/// Of one byte: all codes. Of others: the ends of the ranges, NaN and infinity, and what rounds.
Stored scales_for(Dtype dtype, i64 count) {
  constexpr float kSome[] = {1.0F,
                             0.1F,
                             0x1.fffffep-3F,
                             3.14159F,
                             0x1p-126F,
                             0x1p-127F,
                             0x1p127F,
                             0x1p-20F,
                             -0.7F,
                             0.0F,
                             -0.0F,
                             0x1p-149F,
                             448.0F,
                             1.0F / 3,
                             0x1.8p-9F,
                             65504.0F,
                             0x1p-24F,
                             1.0F / 448,
                             std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};
  if (dtype_bits(dtype) == 8) {
    Stored scales;
    for (i64 i = 0; i < count; ++i) scales.push_back(static_cast<std::byte>(i * 37 + i / 256));
    return scales;
  }
  std::vector<float> values;
  for (i64 i = 0; i < count; ++i) values.push_back(kSome[static_cast<std::size_t>(i) % std::size(kSome)]);
  Stored scales(static_cast<std::size_t>(count * (dtype_bits(dtype) / 8)));
  narrow_row(values, dtype, scales.data());
  return scales;
}

std::vector<float> globals_for(i64 matrices) {
  constexpr float kSome[] = {0.00123F, 0x1p-7F, 3.0F, 0x1p-140F};
  std::vector<float> globals;
  for (i64 m = 0; m < matrices; ++m) globals.push_back(kSome[static_cast<std::size_t>(m) % std::size(kSome)]);
  return globals;
}

TEST(DecodeOnDevice, EveryCodeMeetsEveryByteOfScale) {
  // Cells of one row and 256 codes; a scale in each of 256 rows.
  for (const Codes codes : kByRow)
    for (const Dtype dtype : kScaleDtypes)
      for (const bool positive_zero : {false, true}) {
        CodedWeight weight{.codes = codes, .matrices = 1, .rows = 256, .cols = 512, .cell_rows = 1, .cell_cols = 512};
        weight.scale_dtype = dtype;
        weight.positive_zero = positive_zero;
        expect_same(weight, all_codes(stored_bytes(weight)), scales_for(dtype, cells(weight)), {});
      }
}

TEST(DecodeOnDevice, CellsAreCutAtTheEdges) {
  struct Grid {
    i64 rows, cols, cell_rows, cell_cols;
  };
  const Grid grids[] = {{320, 576, 128, 128}, {64, 64, 128, 128},   {129, 130, 128, 128},
                        {3, 10, 2, 4},        {5, 96, 1, 32},       {7, 48, 1, 16},
                        {1, 2, 1, 1},         {33, 1030, 33, 1030}, {40, 24, 7, 5},
                        {16, 8, 1, 8},        {17, 36, 1, 4},       {9, 64, i64{1} << 40, i64{1} << 40}};
  for (const Grid& grid : grids)
    for (const Codes codes : kByRow)
      for (const Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::U8}) {
        CodedWeight weight{.codes = codes, .matrices = 3, .rows = grid.rows, .cols = grid.cols};
        weight.cell_rows = grid.cell_rows;
        weight.cell_cols = grid.cell_cols;
        weight.scale_dtype = dtype;
        expect_same(weight, all_codes(stored_bytes(weight)), scales_for(dtype, cells(weight)), {});
      }
}

TEST(DecodeOnDevice, SecondScalesMultiplyOrDivide) {
  for (const bool divides : {false, true})
    for (const bool rounds : {false, true})
      for (const Codes codes : {Codes::E2m1, Codes::E4m3})
        for (const i64 cols : {i64{320}, i64{322}}) {
          CodedWeight weight{.codes = codes, .matrices = 4, .rows = 70, .cols = cols, .cell_rows = 1, .cell_cols = 16};
          weight.scale_dtype = Dtype::F8_E4M3;
          weight.global_divides = divides;
          weight.rounds_scale = rounds;
          weight.positive_zero = divides;
          expect_same(weight, all_codes(stored_bytes(weight)), scales_for(Dtype::F8_E4M3, cells(weight)),
                      globals_for(4));
        }
}

/// Units of 16 bytes, and columns that are no whole number of them.
TEST(DecodeOnDevice, ProductsInF16RoundAsOnTheCpu) {
  for (const Codes codes : kByRow)
    for (const Dtype dtype : {Dtype::F16, Dtype::F32, Dtype::U8})
      for (const i64 cols : {i64{512}, i64{514}})
        for (const bool rounds_scale : {false, true}) {
          CodedWeight weight{.codes = codes, .matrices = 2, .rows = 130, .cols = cols, .cell_rows = 1};
          weight.cell_cols = cols;
          weight.scale_dtype = dtype;
          weight.rounds_scale = rounds_scale;
          weight.rounds_to_f16 = true;
          expect_same(weight, all_codes(stored_bytes(weight)), scales_for(dtype, cells(weight)), {});
        }
}

TEST(DecodeOnDevice, ArraysBeginAtAnyCode) {
  for (const Codes codes : kByRow)
    for (const i64 shift : {1, 2, 4, 8}) {
      CodedWeight weight{.codes = codes, .matrices = 2, .rows = 50, .cols = 64, .cell_rows = 1, .cell_cols = 32};
      weight.scale_dtype = Dtype::F8_E8M0;
      expect_same(weight, all_codes(stored_bytes(weight)), scales_for(Dtype::F8_E8M0, cells(weight)), {}, shift);
    }
}

TEST(DecodeOnDevice, RandomProductsRoundAsOnTheCpu) {
  std::mt19937 random(7);
  for (const Codes codes : {Codes::E4m3, Codes::E2m1}) {
    CodedWeight weight{.codes = codes, .matrices = 2, .rows = 1024, .cols = 1024, .cell_rows = 1, .cell_cols = 16};
    Stored bytes(static_cast<std::size_t>(stored_bytes(weight))), scales(static_cast<std::size_t>(4 * cells(weight)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    for (std::byte& byte : scales) byte = static_cast<std::byte>(random());
    expect_same(weight, bytes, scales, globals_for(2));
    weight.rounds_scale = true;
    expect_same(weight, bytes, scales, {});
    weight.rounds_to_f16 = true;
    expect_same(weight, bytes, scales, {});
  }
}

Stored random_bytes_of(i64 count, std::mt19937& random) {
  Stored bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(DecodeOnDevice, WordsOfEveryKindAndShape) {
  struct Shape {
    i64 matrices, rows, cols, cell_cols;
  };
  const Shape shapes[] = {{1, 8, 8, 8},      {2, 128, 64, 32}, {3, 136, 200, 40},
                          {2, 264, 72, 128}, {1, 40, 136, 5},  {2, 16, 512, i64{1} << 40}};
  std::mt19937 random(11);
  for (const Shape& shape : shapes)
    for (const Codes codes : {Codes::Awq, Codes::Gptq, Codes::Int4})
      for (const Dtype dtype : {Dtype::F16, Dtype::BF16, Dtype::F32})
        for (const bool has_zeros : {false, true})
          for (const bool reordered : {false, true}) {
            CodedWeight weight{.codes = codes, .matrices = shape.matrices, .rows = shape.rows, .cols = shape.cols};
            weight.cell_cols = shape.cell_cols;
            weight.scale_dtype = dtype;
            weight.zero_offset = codes == Codes::Gptq ? 1 : 0;
            const i64 groups = (shape.cols - 1) / shape.cell_cols + 1, scales = shape.matrices * groups * shape.rows;
            WordArrays arrays;
            if (has_zeros) arrays.zeros = random_bytes_of(scales / 2, random);
            if (reordered)
              for (i64 i = 0; i < shape.matrices * shape.cols; ++i)
                for (i64 byte = 0; byte < 4; ++byte)
                  arrays.groups.push_back(byte == 0 ? static_cast<std::byte>(i * 7 % groups) : std::byte{0});
            const i64 stored = shape.matrices * shape.rows * shape.cols / 2;
            expect_same(weight, random_bytes_of(stored, random), scales_for(dtype, scales), {}, 0, arrays);
            expect_same(weight, random_bytes_of(stored, random),
                        random_bytes_of(scales * (dtype_bits(dtype) / 8), random), {}, 4, arrays);
          }
  // Columns of AWQ share no word, so there may be any number of them.
  CodedWeight odd{.codes = Codes::Awq, .matrices = 2, .rows = 24, .cols = 67, .cell_cols = 16};
  odd.scale_dtype = Dtype::F16;
  expect_same(odd, random_bytes_of(2 * 24 * 67 / 2, random), scales_for(Dtype::F16, 2 * 5 * 24), {}, 0,
              {random_bytes_of(2 * 5 * 24 / 2, random), {}});
}

TEST(DecodeOnDevice, AColumnOfAGroupThatIsNotThereIsNaN) {
  std::mt19937 random(3);
  CodedWeight weight{.codes = Codes::Gptq, .matrices = 1, .rows = 16, .cols = 32, .cell_cols = 16};
  weight.scale_dtype = Dtype::F16;
  weight.column_groups = reinterpret_cast<const u32*>(&weight);
  std::vector<u32> groups(32, 1);
  groups[5] = 2;
  groups[9] = ~0U;
  WordArrays arrays;
  arrays.groups.resize(groups.size() * sizeof(u32));
  std::memcpy(arrays.groups.data(), groups.data(), arrays.groups.size());
  const Stored decoded =
      on_device(weight, random_bytes_of(256, random), Stored(16 * 2 * 2, std::byte{0x30}), {}, Dtype::F32, 0, arrays);
  for (std::size_t i = 0; i < 16 * 32; ++i) {
    float value = 0;
    std::memcpy(&value, decoded.data() + i * sizeof value, sizeof value);
    EXPECT_EQ(std::isnan(value), i % 32 == 5 || i % 32 == 9) << i;
  }
}

// ---- checkpoints --------------------------------------------------------------------------------

Stored bytes_of(const Source& source, std::size_t tensor) {
  Stored bytes(static_cast<std::size_t>(source.inventory().tensors[tensor].bytes));
  source.read(tensor, 0, bytes);
  return bytes;
}

/// [matrices, rows, cols] of bf16 to [matrices, cols, rows].
Stored turned(const Stored& bytes, const QuantizedTensor& weight) {
  Stored out(bytes.size());
  for (i64 m = 0; m < weight.matrices; ++m)
    for (i64 r = 0; r < weight.rows; ++r)
      for (i64 c = 0; c < weight.cols; ++c)
        std::memcpy(out.data() + ((m * weight.cols + c) * weight.rows + r) * 2,
                    bytes.data() + ((m * weight.rows + r) * weight.cols + c) * 2, 2);
  return out;
}

TEST(DecodeOnDevice, CheckpointsGiveTheAnswersOfTheirSoftware) {
  const char* path = std::getenv("GLU_CKPT_TESTDATA");
  const fs::path home = fs::path(path == nullptr ? "testdata" : path) / "quantized";
  for (const char* kind : {"fp8_block128", "fp8_block128_ue8m0", "fp8_channel", "fp8_per_tensor", "mxfp4_gpt_oss",
                           "nvfp4_modelopt", "ct_int4_g32", "ct_int4_asym", "awq_int4", "gptq_int4"}) {
    SCOPED_TRACE(kind);
    const auto source = open_source(home / kind);
    const Quantization found = find_quantized(source->inventory(), read_quant_config(source->hints().config));
    const auto answer = support::read_tensors(home / kind / "decoded.safetensors");
    ASSERT_FALSE(found.tensors.empty());
    for (const QuantizedTensor& tensor : found.tensors) {
      SCOPED_TRACE(tensor.name);
      CodedWeight weight{.codes = tensor.codes, .matrices = tensor.matrices, .rows = tensor.rows, .cols = tensor.cols};
      weight.cell_rows = tensor.cell_rows;
      weight.cell_cols = tensor.cell_cols;
      weight.scale_dtype = source->inventory().tensors[tensor.scales].dtype;
      weight.global_divides = tensor.global_divides;
      weight.positive_zero = tensor.positive_zero;
      weight.rounds_scale = tensor.rounds_scale;
      std::vector<float> globals(tensor.global ? static_cast<std::size_t>(tensor.matrices) : 0);
      if (tensor.global)
        std::memcpy(globals.data(), bytes_of(*source, *tensor.global).data(), globals.size() * sizeof(float));
      weight.globals = tensor.global ? globals.data() : nullptr;
      WordArrays arrays;
      weight.zero_offset = tensor.zero_offset;
      if (tensor.zeros) arrays.zeros = bytes_of(*source, *tensor.zeros);
      if (tensor.groups) arrays.groups = bytes_of(*source, *tensor.groups);
      // Replaced by those on the device.
      if (tensor.zeros) weight.zeros = reinterpret_cast<const u32*>(arrays.zeros.data());
      if (tensor.groups) weight.column_groups = reinterpret_cast<const u32*>(arrays.groups.data());
      const Stored decoded = on_device(weight, bytes_of(*source, tensor.weight), bytes_of(*source, tensor.scales),
                                       globals, Dtype::BF16, 0, arrays);
      const auto expected = std::ranges::find(answer, tensor.name, &support::MemoryTensor::name);
      ASSERT_NE(expected, answer.end());
      EXPECT_TRUE((tensor.transposed ? turned(decoded, tensor) : decoded) == expected->bytes);
    }
  }
}

TEST(DecodeOnDevice, MistakesAreFoundBeforeTheLaunch) {
  const CudaStream stream;
  const GuardedArray memory(4096);
  CodedWeight sound{.codes = Codes::E2m1, .matrices = 1, .rows = 4, .cols = 32, .data = memory.data()};
  sound.cell_cols = 32;
  sound.scales = memory.data();
  const auto refused = [&](auto&& change, Dtype to = Dtype::BF16, std::byte* out = nullptr) {
    CodedWeight weight = sound;
    change(weight);
    return slug_of([&] { decode_codes(weight, to, out == nullptr ? memory.data() + 1024 : out, stream.get()); });
  };
  EXPECT_EQ(refused([](CodedWeight& w) { w.cols = 33; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.rows = -1; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.cell_rows = 0; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.codes = Codes::Awq; }), "usage");
  EXPECT_EQ(refused([&](CodedWeight& w) { w.zeros = reinterpret_cast<const u32*>(memory.data()); }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.scale_dtype = Dtype::F64; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.scales = nullptr; }), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.rows = w.matrices = i64{1} << 40; }), "usage");
  EXPECT_EQ(refused([](CodedWeight&) {}, Dtype::F16), "usage");
  EXPECT_EQ(refused([](CodedWeight&) {}, Dtype::F32, memory.data() + 1026), "usage");
  EXPECT_EQ(refused([](CodedWeight& w) { w.scales = static_cast<const std::byte*>(w.scales) + 2; }), "usage");
  // Nothing to do is no mistake.
  EXPECT_EQ(refused([](CodedWeight& w) { w.rows = 0; }), "none");
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(memory.download(), Stored(4096, std::byte{0xa5}));
}

}  // namespace
}  // namespace glu_ckpt
