/// splits_to_offsets_multi on the device against its oracle: every byte of every output, the flags, and that nothing
/// around them was written.

#include "kernels/grouped_gemm/splits_to_offsets.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu/guarded_array.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxI64 = std::numeric_limits<i64>::max();

using Splits = std::vector<i64>;
using Specs = std::vector<OffsetSpec>;

i64 element_bytes(Dtype dtype) { return dtype_bits(dtype) / 8; }

/// The splits as they are stored in `dtype`.
std::vector<std::byte> stored(const Splits& splits, Dtype dtype) {
  std::vector<std::byte> bytes;
  for (const i64 split : splits) {
    const auto* const first = reinterpret_cast<const std::byte*>(&split);  // little-endian: the low bytes come first
    bytes.insert(bytes.end(), first, first + element_bytes(dtype));
  }
  return bytes;
}

/// What the oracle makes of it.
struct Expected {
  std::vector<std::vector<std::byte>> outputs;
  std::vector<u32> flags;
};

Expected oracle(const Splits& splits, Dtype split_dtype, const Specs& specs) {
  const auto bytes = stored(splits, split_dtype);
  Expected expected;
  std::vector<OffsetOutput> outputs;
  for (const OffsetSpec& spec : specs) {
    const i64 length = offsets_length(std::ssize(splits), spec.leading_zero);
    expected.outputs.emplace_back(static_cast<std::size_t>(length * element_bytes(spec.dtype)));
    outputs.push_back({spec, expected.outputs.back().data(), length});
  }
  expected.flags.resize(specs.size());
  splits_to_offsets_multi_ref({bytes.data(), split_dtype, std::ssize(splits)}, outputs, expected.flags.data());
  return expected;
}

std::vector<u32> words_of(const GuardedArray& array) {
  const auto bytes = array.download();
  std::vector<u32> words(bytes.size() / sizeof(u32));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

/// Splits, outputs and flags on the device, each between guards.
class DeviceRun {
 public:
  DeviceRun(const Splits& splits, Dtype split_dtype, const Specs& specs)
      : split_dtype_(split_dtype),
        num_splits_(std::ssize(splits)),
        specs_(specs),
        splits_(stored(splits, split_dtype), 8),
        flags_(std::ssize(specs) * static_cast<i64>(sizeof(u32)), 4) {
    for (const OffsetSpec& spec : specs) {
      const i64 length = offsets_length(num_splits_, spec.leading_zero);
      arrays_.emplace_back(length * element_bytes(spec.dtype), element_bytes(spec.dtype));
      outputs_.push_back({spec, arrays_.back().data(), length});
    }
  }

  void launch(GpuStream stream, bool with_flags = true) const {
    splits_to_offsets_multi({splits_.data(), split_dtype_, num_splits_}, outputs_, with_flags ? flags() : nullptr,
                            stream);
  }
  /// Other splits, as many, in the same memory.
  void replace_splits(const Splits& splits) { splits_.upload(stored(splits, split_dtype_)); }

  std::span<const OffsetOutput> outputs() const { return outputs_; }
  u32* flags() const { return reinterpret_cast<u32*>(flags_.data()); }
  std::vector<u32> downloaded_flags() const { return words_of(flags_); }

  void expect_oracle(const Splits& splits, bool with_flags = true) const {
    const Expected expected = oracle(splits, split_dtype_, specs_);
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      EXPECT_TRUE(arrays_[i].download() == expected.outputs[i]) << "output " << i << " stride " << specs_[i].stride;
      EXPECT_TRUE(arrays_[i].guards_intact()) << "output " << i;
    }
    EXPECT_EQ(downloaded_flags(), with_flags ? expected.flags : std::vector<u32>(specs_.size(), 0xa5a5a5a5U));
    EXPECT_TRUE(flags_.guards_intact());
    EXPECT_TRUE(splits_.download() == stored(splits, split_dtype_));
  }

 private:
  Dtype split_dtype_;
  i64 num_splits_;
  Specs specs_;
  GuardedArray splits_;
  GuardedArray flags_;
  std::vector<GuardedArray> arrays_;
  std::vector<OffsetOutput> outputs_;
};

void expect_as_oracle(const Splits& splits, Dtype split_dtype, const Specs& specs) {
  SCOPED_TRACE(std::to_string(splits.size()) + " splits of " + std::string(dtype_name(split_dtype)) + ", " +
               std::to_string(specs.size()) + " outputs");
  const CudaStream stream;
  for (const bool with_flags : {true, false}) {
    const DeviceRun run(splits, split_dtype, specs);
    run.launch(stream.get(), with_flags);
    run.expect_oracle(splits, with_flags);
  }
}

constexpr Dtype kDtypes[] = {Dtype::I32, Dtype::I64};

/// The five strides of the reference's test: two in rows, two in elements, and none.
Specs five(i64 row_elements, bool leading_zero, Dtype dtype) {
  Specs specs;
  for (const i64 stride : {i64{1}, i64{1}, row_elements, i64{0}, row_elements + 17})
    specs.push_back({stride, leading_zero, dtype});
  return specs;
}

void expect_five_as_oracle(const Splits& splits, i64 row_elements) {
  for (const Dtype split_dtype : kDtypes)
    for (const Dtype dtype : kDtypes)
      for (const bool leading_zero : {false, true})
        expect_as_oracle(splits, split_dtype, five(row_elements, leading_zero, dtype));
}

/// Split sizes that differ from place to place, some of them 0.
Splits position_coded(i64 count) {
  Splits splits;
  for (i64 i = 0; i < count; ++i) splits.push_back(i % 7 == 3 ? 0 : (i * 37 + 11) % 101);
  return splits;
}

TEST(SplitsToOffsets, EveryShapeOfTheReference) {
  expect_five_as_oracle({3, 4, 5, 2}, 7);
  expect_five_as_oracle({3, 0, 5, 2}, 7);
  expect_five_as_oracle({0, 3, 5, 0}, 11);
  expect_five_as_oracle({1}, 17);
  expect_five_as_oracle({1, 2, 3, 4, 5, 6, 7, 8}, 13);
  for (const std::size_t groups : {8, 16, 32, 64, 128}) expect_five_as_oracle(Splits(groups, 256), 2880);
  expect_five_as_oracle({12345, 0, 8192, 1, 65536, 100, 131072, 7}, 7168);
}

TEST(SplitsToOffsets, CountsAroundWarpsAndBlocks) {
  for (const i64 count :
       {1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 512, 992, 993, 1023, 1024, 1025, 2047, 2048, 2049, 3073})
    expect_five_as_oracle(position_coded(count), 64);
}

TEST(SplitsToOffsets, AHundredThousandSplits) {
  expect_five_as_oracle(position_coded(100000), 4096);
  expect_five_as_oracle(Splits(100000, 0), 4096);
}

TEST(SplitsToOffsets, MoreOutputsThanALaunchTakes) {
  for (const int count : {1, 2, 7, 8, 9, 15, 16, 17, 33}) {
    Specs specs;
    for (int i = 0; i < count; ++i) specs.push_back({1000 * i + 1, i % 3 == 0, i % 2 == 0 ? Dtype::I32 : Dtype::I64});
    expect_as_oracle(position_coded(40), Dtype::I32, specs);
    expect_as_oracle(position_coded(1500), Dtype::I64, specs);
  }
}

TEST(SplitsToOffsets, NoOutputs) {
  const CudaStream stream;
  EXPECT_EQ(slug_of([&] { splits_to_offsets_multi({}, {}, nullptr, stream.get()); }), "none");
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
}

TEST(SplitsToOffsets, NegativeStridesAndSplits) {
  const Specs specs = {{-1, true, Dtype::I32},    {-7168, false, Dtype::I32}, {-1, false, Dtype::I64},
                       {-7168, true, Dtype::I64}, {3, true, Dtype::I32},      {3, false, Dtype::I64}};
  for (const i64 count : {1, 8, 256, 1300}) {
    Splits splits = position_coded(count);
    for (const Dtype dtype : kDtypes) expect_as_oracle(splits, dtype, specs);
    for (std::size_t i = 0; i < splits.size(); i += 3) splits[i] = -splits[i];
    for (const Dtype dtype : kDtypes) expect_as_oracle(splits, dtype, specs);
  }
}

TEST(SplitsToOffsets, Int32OutputsSayWhereTheyOverflow) {
  const Specs specs = {{1, true, Dtype::I32},      {1, true, Dtype::I64},    {2, false, Dtype::I32},
                       {7168, true, Dtype::I32},   {7168, true, Dtype::I64}, {-2, false, Dtype::I32},
                       {-7168, false, Dtype::I32}, {0, true, Dtype::I32},    {4, true, Dtype::I32}};
  const i64 half = i64{1} << 30;
  for (const Splits& splits : {Splits{half}, Splits{half, half - 1}, Splits{half, half}, Splits{half - 1, 0, 0, half},
                               Splits{2 * half - 1}, Splits{2 * half - 1, 1}, Splits{2 * half - 1, 0, 2}})
    for (const Dtype dtype : kDtypes) expect_as_oracle(splits, dtype, specs);
}

/// One large split at each place where another thread, warp or chunk takes over.
TEST(SplitsToOffsets, OneOverflowAnywhereIsSeen) {
  const Specs specs = {{1, true, Dtype::I32}, {1, false, Dtype::I64}, {-1, true, Dtype::I32}, {1, false, Dtype::I32}};
  for (const i64 at : {0, 1, 31, 32, 33, 1023, 1024, 1025, 2047, 2048, 2999}) {
    Splits splits(3000, 0);
    splits[static_cast<std::size_t>(at)] = i64{1} << 31;
    expect_as_oracle(splits, Dtype::I64, specs);
    const DeviceRun run(splits, Dtype::I64, specs);
    run.launch(nullptr);
    EXPECT_EQ(run.downloaded_flags(), (std::vector<u32>{kOffsetBeyondInt32, 0, 0, kOffsetBeyondInt32})) << at;
  }
}

TEST(SplitsToOffsets, AnOverflowThatIsGoneAgainIsSeen) {
  // Only group 700 is beyond int32: one thread of one warp finds it.
  Splits splits(1024, 0);
  splits[700] = i64{1} << 31;
  splits[701] = -1;
  expect_as_oracle(splits, Dtype::I64, {{1, true, Dtype::I32}, {1, true, Dtype::I64}});
}

TEST(SplitsToOffsets, ProductsBeyondInt64) {
  const Specs specs = {{1, true, Dtype::I64},        {2, true, Dtype::I64},  {-2, true, Dtype::I64},
                       {4, false, Dtype::I64},       {4, false, Dtype::I32}, {-4, true, Dtype::I64},
                       {kMaxI64, false, Dtype::I64}, {0, true, Dtype::I64}};
  for (const i64 large : {i64{1}, i64{1} << 61, i64{1} << 62, (i64{1} << 62) - 1, (i64{1} << 62) + 1, kMaxI64})
    expect_as_oracle({0, large, 0}, Dtype::I64, specs);
  expect_as_oracle({1, 1, 1}, Dtype::I32, {{std::numeric_limits<i64>::min(), true, Dtype::I64}});
}

TEST(SplitsToOffsets, SumsBeyondInt64) {
  const Specs specs = {{1, true, Dtype::I64}, {0, false, Dtype::I64}, {-1, true, Dtype::I32}, {3, false, Dtype::I64}};
  expect_as_oracle({kMaxI64, 1}, Dtype::I64, specs);
  expect_as_oracle({kMaxI64, 1, -1}, Dtype::I64, specs);
  expect_as_oracle({kMaxI64, -1, 1}, Dtype::I64, specs);
  for (const std::size_t at : {1, 31, 32, 40, 1023, 1024, 1500}) {
    Splits splits = position_coded(2000);
    splits[0] = kMaxI64 - std::accumulate(splits.begin() + 1, splits.end(), i64{0});
    expect_as_oracle(splits, Dtype::I64, specs);  // just fits
    splits[at] += 1;
    expect_as_oracle(splits, Dtype::I64, specs);
  }
}

TEST(SplitsToOffsets, RandomCases) {
  std::mt19937_64 random(1);
  const auto below = [&random](i64 limit) { return static_cast<i64>(random() % static_cast<u64>(limit)); };
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const Dtype split_dtype = kDtypes[below(2)];
    const i64 largest = i64{1} << below(split_dtype == Dtype::I32 ? 31 : 56);
    Splits splits;
    for (i64 j = 1 + below(1 << (1 + below(12))); j > 0; --j) splits.push_back(below(4) == 0 ? 0 : below(largest));
    Specs specs;
    for (i64 j = 1 + below(18); j > 0; --j)
      specs.push_back({below(1 << 14) - (1 << 12), below(2) == 0, kDtypes[below(2)]});
    expect_as_oracle(splits, split_dtype, specs);
  }
}

TEST(SplitsToOffsets, ALaterRunClearsTheFlags) {
  const CudaStream stream;
  const Splits small = {1, 2, 3}, large = {1, i64{1} << 40, 3};
  DeviceRun run(small, Dtype::I64, {{1, true, Dtype::I32}, {1, true, Dtype::I64}, {9, false, Dtype::I32}});
  for (const Splits& splits : {small, large, large, small, large}) {
    run.replace_splits(splits);
    run.launch(stream.get());
    run.expect_oracle(splits);
  }
}

TEST(SplitsToOffsets, TheCheckReadsTheFlagsBack) {
  const CudaStream stream;
  DeviceRun run({1, 2, 3}, Dtype::I64, {{1, true, Dtype::I64}, {1, true, Dtype::I32}});
  const auto check = [&] { check_offset_flags(run.outputs(), run.flags(), stream.get()); };
  run.launch(stream.get());
  EXPECT_EQ(slug_of(check), "none");
  run.replace_splits({1, i64{1} << 40, 3});
  run.launch(stream.get());
  EXPECT_EQ(slug_of(check), "not-exact");
  try {
    check();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "output 1 (I32, stride 1): an offset is beyond int32; ask for I64");
  }
  EXPECT_EQ(slug_of([&] { check_offset_flags(run.outputs(), nullptr, stream.get()); }), "usage");
}

TEST(SplitsToOffsets, MistakesAreFoundBeforeTheLaunch) {
  const DeviceRun run({1, 2, 3}, Dtype::I64, {{1, true, Dtype::I64}, {1, true, Dtype::I32}});
  std::vector<OffsetOutput> outputs(run.outputs().begin(), run.outputs().end());
  outputs[1].length = 3;
  const CudaStream stream;
  EXPECT_EQ(slug_of([&] {
              splits_to_offsets_multi({run.flags(), Dtype::I32, 3}, outputs, nullptr, stream.get());
            }),
            "usage");
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  run.launch(stream.get());
  run.expect_oracle({1, 2, 3});
}

/// Captured once; each launch of the graph reads the splits that are there by then.
class CapturedRun {
 public:
  CapturedRun(const DeviceRun& run, GpuStream stream) {
    cudaGraph_t graph = nullptr;
    // In the global mode any call that allocates or waits would make the capture fail.
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    run.launch(stream);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes_));
    CUDA_CHECK(cudaGraphInstantiate(&graph_, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
  CapturedRun(const CapturedRun&) = delete;
  CapturedRun& operator=(const CapturedRun&) = delete;
  ~CapturedRun() { (void)cudaGraphExecDestroy(graph_); }

  void replay(GpuStream stream) const { CUDA_CHECK(cudaGraphLaunch(graph_, stream)); }
  std::size_t nodes() const { return nodes_; }

 private:
  cudaGraphExec_t graph_ = nullptr;
  std::size_t nodes_ = 0;
};

TEST(SplitsToOffsets, AGraphReplaysWithNewSplits) {
  for (const i64 count : {5, 256, 1500}) {
    SCOPED_TRACE(count);
    const CudaStream stream;
    Splits splits = position_coded(count);
    Specs specs;
    for (int i = 0; i < 9; ++i) specs.push_back({i * 100 + 1, i % 2 == 0, i % 3 == 0 ? Dtype::I32 : Dtype::I64});
    DeviceRun run(splits, Dtype::I64, specs);
    const CapturedRun graph(run, stream.get());
    EXPECT_EQ(graph.nodes(), 2u);  // 8 outputs and 1
    EXPECT_EQ(run.downloaded_flags(), std::vector<u32>(9, 0xa5a5a5a5U)) << "captured, not run";
    for (const i64 added : {i64{0}, i64{5}, i64{1} << 40, i64{7}}) {
      for (i64& split : splits) split += added;
      run.replace_splits(splits);
      graph.replay(stream.get());
      run.expect_oracle(splits);
      for (i64& split : splits) split -= added;
    }
  }
}

/// One launch for up to 8 outputs, whatever the number of splits.
TEST(SplitsToOffsets, OneLaunchForEightOutputs) {
  const CudaStream stream;
  for (const std::size_t count : {1, 5, 8, 9, 16, 17}) {
    const DeviceRun run(position_coded(3000), Dtype::I32, Specs(count, {3, true, Dtype::I64}));
    EXPECT_EQ(CapturedRun(run, stream.get()).nodes(), (count + 7) / 8);
  }
}

TEST(OffsetArraysOnDevice, AreAlignedAndHoldTheOffsets) {
  const CudaStream stream;
  for (const i64 count : {1, 3, 8, 255, 257}) {
    const Splits splits = position_coded(count);
    const GuardedArray on_device(stored(splits, Dtype::I32));
    Specs specs = five(48, false, Dtype::I32);
    for (const OffsetSpec& spec : five(48, true, Dtype::I64)) specs.push_back(spec);
    OffsetArrays made(count, specs);
    const OffsetArrays arrays(std::move(made));
    splits_to_offsets_multi({on_device.data(), Dtype::I32, count}, arrays.outputs(), arrays.flags(), stream.get());
    check_offset_flags(arrays.outputs(), arrays.flags(), stream.get());
    const Expected expected = oracle(splits, Dtype::I32, specs);
    ASSERT_EQ(arrays.outputs().size(), specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arrays.outputs()[i].data) % 16, 0u);
      std::vector<std::byte> bytes(expected.outputs[i].size());
      CUDA_CHECK(cudaMemcpy(bytes.data(), arrays.outputs()[i].data, bytes.size(), cudaMemcpyDeviceToHost));
      EXPECT_TRUE(bytes == expected.outputs[i]) << count << " splits, output " << i;
    }
  }
}

TEST(OffsetArraysOnDevice, WithoutOutputsAreEmpty) {
  const OffsetArrays arrays(4, {});
  EXPECT_TRUE(arrays.outputs().empty());
  EXPECT_EQ(arrays.flags(), nullptr);
}

TEST(OffsetArraysOnDevice, TooLargeForTheDevice) {
  const OffsetSpec specs[] = {{1, true, Dtype::I64}};
  EXPECT_EQ(slug_of([&] { OffsetArrays(i64{1} << 44, specs); }), "no-memory");
  // Nothing of it is left for a later check to find.
  expect_as_oracle({3, 4, 5, 2}, Dtype::I64, {specs[0]});
}

}  // namespace
}  // namespace glu_ckpt
