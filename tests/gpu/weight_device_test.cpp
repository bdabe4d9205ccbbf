/// What the device makes against what the CPU makes, bit for bit: codes and scales of every encoder, products that are
/// added, and sources that read by parts. Over the fake runtime the code around the kernels is tested.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "adapters/merged_source.hpp"
#include "core/float_rows.hpp"
#include "exec/gpu_weight_device.hpp"
#include "glu_ckpt/execute.hpp"
#include "quant/encoded_source.hpp"
#include "support/cell_cases.hpp"
#include "support/convert.hpp"
#include "support/memory_checkpoint.hpp"
#include "support/product_cases.hpp"

namespace glu_ckpt {
namespace {

using support::CellCase;
using support::HostCells;
using support::MemorySource;

constexpr i64 kDeviceMemory = i64{64} << 20;

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

TEST(WeightDevice, EveryEncoderHasTheBitsOfTheCpu) {
  const auto device = make_gpu_weight_device({0}, kDeviceMemory);
  const auto place = device->take_place();
  ASSERT_NE(place, nullptr);
  int made_here = 0, declined = 0;
  for (const CellCase& one : support::cell_cases()) {
    SCOPED_TRACE(one.describe());
    const HostCells host = support::host_cells(one);
    std::byte* const room = place->weights_of(one.batch);
    ASSERT_NE(room, nullptr);
    std::ranges::copy(one.weights, room);
    MadeCells made;
    const bool is_made = place->encode(one.batch, made);
    EXPECT_EQ(is_made, !one.is_watched && host.refused.empty());
    (is_made ? made_here : declined) += 1;
    if (!is_made) continue;
    EXPECT_TRUE(copy_of(made.codes) == host.codes);
    EXPECT_TRUE(copy_of(made.codes) == host.searched_codes);
    EXPECT_TRUE(copy_of(made.scales) == host.scales);
  }
  EXPECT_GT(made_here, 100);
  EXPECT_GT(declined, 400);
}

/// A source of two such weights, which share a second scale where there is one.
std::unique_ptr<Source> encoded(const CellCase& one) {
  std::unique_ptr<Source> source = std::make_unique<MemorySource>(
      std::vector<support::MemoryTensor>{{"a.weight", one.dtype, {one.batch.rows, one.batch.cols}, one.weights},
                                         {"b.weight", one.dtype, {one.batch.rows, one.batch.cols}, one.weights}});
  encode_source(source, one.encoder, {{0, "experts", {1}}, {1, "experts", {0}}}, EncodePath::Fast);
  return source;
}

/// All tensors, in pieces that do not end where rows do; or what was thrown.
std::string read_all(const Source& source, i64 piece, std::vector<std::vector<std::byte>>& tensors) {
  try {
    for (std::size_t i = 0; i < source.inventory().tensors.size(); ++i) {
      const i64 bytes = source.inventory().tensors[i].bytes;
      std::vector<std::byte>& tensor = tensors.emplace_back(static_cast<std::size_t>(bytes));
      for (i64 at = 0; at < bytes; at += piece)
        source.read(i, at,
                    std::span(tensor).subspan(static_cast<std::size_t>(at),
                                              static_cast<std::size_t>(std::min(piece, bytes - at))));
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(WeightDevice, ASourceReadsTheSameOrRefusesTheSame) {
  const auto device = make_gpu_weight_device({0}, kDeviceMemory);
  for (const CellCase& one : support::cell_cases()) {
    // Errors are measured as a source is opened, which refuses then.
    if (one.is_watched || !support::host_cells(one).refused.empty()) continue;
    for (const i64 piece : {i64{1} << 30, i64{3001}}) {
      SCOPED_TRACE(one.describe());
      const std::unique_ptr<Source> on_cpu = encoded(one), on_gpu = encoded(one);
      on_gpu->compute_on(device);
      std::vector<std::vector<std::byte>> expected, made;
      EXPECT_EQ(read_all(*on_gpu, piece, made), read_all(*on_cpu, piece, expected));
      EXPECT_TRUE(made == expected);
    }
  }
}

TEST(WeightDevice, ARefusalNamesTheSameWeight) {
  const auto device = make_gpu_weight_device({0}, kDeviceMemory);
  constexpr i64 kRows = 256, kCols = 1024;
  std::vector<std::byte> weights(static_cast<std::size_t>(kRows * kCols * 2));
  for (std::size_t i = 1; i < weights.size(); i += 2) weights[i] = std::byte{0x3f};
  for (const std::string_view word : {"fp8:128x128", "mxfp8", "int4:g128"}) {
    std::unique_ptr<Source> source = std::make_unique<MemorySource>(
        std::vector<support::MemoryTensor>{{"a.weight", Dtype::BF16, {kRows, kCols}, weights}});
    auto& stored = static_cast<MemorySource&>(*source);
    encode_source(source, find_encoder(word, {}), {{0, "experts", {}}}, EncodePath::Fast);
    // After the source was opened, and in the last row of cells.
    const_cast<std::byte&>(stored.tensors()[0].bytes[(200 * kCols + 777) * 2 + 1]) = std::byte{0x7f};
    const_cast<std::byte&>(stored.tensors()[0].bytes[(200 * kCols + 777) * 2]) = std::byte{0xc0};
    std::vector<std::vector<std::byte>> read;
    const std::string on_cpu = read_all(*source, i64{1} << 20, read);
    source->compute_on(device);
    EXPECT_EQ(read_all(*source, i64{1} << 20, read), on_cpu);
    EXPECT_NE(on_cpu.find("'a.weight': element [200, 777] is NaN"), std::string::npos) << on_cpu;
  }
}

TEST(WeightDevice, ThreadsHavePlacesOfTheirOwnAndABackendGivesThemBack) {
  std::vector<CellCase> cases = support::cell_cases();
  std::erase_if(cases, [](const CellCase& one) { return one.is_watched; });
  const CellCase& one = cases.front();
  const auto backend = make_backend("cuda:0", {kDeviceMemory, true});
  backend->ready();
  const std::unique_ptr<Source> source = encoded(one), on_cpu = encoded(one);
  source->compute_on(backend->weight_device());
  std::vector<std::vector<std::byte>> expected;
  ASSERT_EQ(read_all(*on_cpu, 1000, expected), "");
  std::vector<std::thread> threads;
  std::vector<std::vector<std::vector<std::byte>>> read(40);
  for (auto& tensors : read) threads.emplace_back([&] { (void)read_all(*source, 1000, tensors); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& tensors : read) EXPECT_TRUE(tensors == expected);
  backend->release();
  std::vector<std::vector<std::byte>> afterwards;
  ASSERT_EQ(read_all(*source, 1000, afterwards), "");
  EXPECT_TRUE(afterwards == expected);
}

TEST(WeightDevice, ProductsHaveTheBitsOfTheCpu) {
  const auto device = make_gpu_weight_device({0}, kDeviceMemory);
  const auto place = device->take_place();
  ASSERT_NE(place, nullptr);
  for (const support::ProductCase& one : support::product_cases()) {
    SCOPED_TRACE(one.describe());
    std::vector<std::byte> made = one.weights;
    ASSERT_TRUE(place->add_product(one.lines_of(made), one.product_vectors(), one.merging, one.dtype, one.cols));
    EXPECT_TRUE(made == one.expected());
  }
}

TEST(WeightDevice, LeavesToTheCpuWhatBecomesNanOrIsTooLong) {
  const auto device = make_gpu_weight_device({0}, kDeviceMemory);
  const auto place = device->take_place();
  ASSERT_NE(place, nullptr);
  support::ProductCase one = support::product_cases().front();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  narrow_row({&nan, 1}, one.dtype, one.weights.data());
  std::vector<std::byte> made = one.weights;
  EXPECT_FALSE(place->add_product(one.lines_of(made), one.product_vectors(), one.merging, one.dtype, one.cols));
  EXPECT_TRUE(made == one.weights);
  const std::vector<float> many(std::size_t{1} << 20U);
  std::vector<std::byte> line(many.size() * 2);
  const ProductLine long_line{many.data(), line.data()};
  EXPECT_FALSE(place->add_product({&long_line, 1}, {many.data(), 1, 0}, {}, Dtype::BF16, std::ssize(many)));
}

/// A source of weights [lines, cols], or of its columns where they are stored as [in, out], with their products.
std::unique_ptr<Source> merged(const support::ProductCase& one, bool by_columns, MergePath path) {
  const i64 size = dtype_bits(one.dtype) / 8, rows = by_columns ? one.cols : one.lines,
            cols = by_columns ? one.lines : one.cols;
  const auto floats = [](const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  std::unique_ptr<Source> source = std::make_unique<MemorySource>(
      std::vector<support::MemoryTensor>{{"w", one.dtype, {one.lines, one.cols}, one.weights}});
  // Where lines are columns, their coefficients are A's, [rank, in].
  std::vector<float> a = one.vectors, b = one.coefficients;
  if (by_columns) {
    a.clear();
    b.clear();
    for (i64 j = 0; j < one.rank; ++j)
      for (i64 line = 0; line < one.lines; ++line)
        a.push_back(one.coefficients[static_cast<std::size_t>(line * one.rank + j)]);
    for (i64 row = 0; row < one.cols; ++row)
      for (i64 j = 0; j < one.rank; ++j) b.push_back(one.vectors[static_cast<std::size_t>(j * one.cols + row)]);
  }
  MergedMatrix matrix;
  matrix.matrix = {
      .tensor = 0,
      .role = Role::Up,
      .dtype = one.dtype,
      .rows = rows,
      .cols = cols,
      .element_bytes = size,
      .place = by_columns ? Placement{0, rows, 0, size, rows * size} : Placement{0, rows, 0, cols * size, size},
      .tail = {}};
  matrix.factors = {.a = 0, .b = 1, .rank = one.rank, .inputs = cols, .outputs = rows};
  matrix.merging = one.merging;
  merge_source(source,
               std::make_unique<MemorySource>(std::vector<support::MemoryTensor>{
                   {"a", Dtype::F32, {one.rank, cols}, floats(a)}, {"b", Dtype::F32, {rows, one.rank}, floats(b)}}),
               {matrix}, "peft", path);
  return source;
}

TEST(WeightDevice, AMergedSourceReadsTheSame) {
  const auto device = make_gpu_weight_device({0}, kDeviceMemory);
  int read = 0;
  for (const support::ProductCase& one : support::product_cases())
    for (const bool by_columns : {false, true})
      for (const i64 piece : {i64{1} << 30, i64{301}}) {
        // DoRA's numbers are made of whole rows, by the CPU.
        if (one.scales_step >= 0) continue;
        SCOPED_TRACE(one.describe());
        const std::unique_ptr<Source> on_gpu = merged(one, by_columns, MergePath::Fast),
                                      on_cpu = merged(one, by_columns, MergePath::Plain);
        on_gpu->compute_on(device);
        std::vector<std::vector<std::byte>> made, expected;
        const std::string refused = read_all(*on_cpu, piece, expected);
        EXPECT_EQ(read_all(*on_gpu, piece, made), refused);
        EXPECT_TRUE(made == expected);
        if (!refused.empty()) continue;
        EXPECT_TRUE(expected[0] == one.expected());
        ++read;
      }
  EXPECT_GT(read, 60);
}

}  // namespace
}  // namespace glu_ckpt
