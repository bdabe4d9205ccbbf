#include "glu_ckpt/ops/device_copy.hpp"

#include <gtest/gtest.h>

#include "glu_ckpt/error.hpp"
#include "gpu/guarded_array.hpp"
#include "kernels/copy/strided_copy.hpp"
#include "support/copy_cases.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

void expect_copies(const CopyCase& item) {
  SCOPED_TRACE(item.name);
  std::vector<std::vector<std::byte>> src, want;
  std::vector<const std::byte*> host_srcs, srcs;
  std::vector<std::byte*> host_dsts, dsts;
  std::vector<GuardedArray> device_src, device_dst;
  for (std::size_t t = 0; t < item.src_bytes.size(); ++t) {
    src.push_back(coded_bytes(item.src_bytes[t], static_cast<i64>(t)));
    device_src.emplace_back(src.back(), item.misaligned);
  }
  for (const i64 bytes : item.dst_bytes) {
    want.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xa5});
    device_dst.emplace_back(bytes, item.misaligned);
  }
  for (const auto& tensor : src) host_srcs.push_back(tensor.data());
  for (auto& tensor : want) host_dsts.push_back(tensor.data());
  for (const auto& tensor : device_src) srcs.push_back(tensor.data());
  for (const auto& tensor : device_dst) dsts.push_back(tensor.data());

  strided_copy_ref(item.moves, host_srcs, host_dsts);
  CudaStream stream;
  device_copy(item.moves, srcs, dsts, stream.get());
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  for (std::size_t t = 0; t < want.size(); ++t) {
    ASSERT_TRUE(device_dst[t].download() == want[t]) << "target " << t;
    ASSERT_TRUE(device_dst[t].guards_intact()) << "target " << t;
  }
  for (std::size_t t = 0; t < src.size(); ++t) ASSERT_TRUE(device_src[t].download() == src[t]) << "source " << t;
}

TEST(DeviceCopy, AgreesWithTheOracle) {
  for (const CopyCase& item : copy_cases()) expect_copies(item);
}

TEST(DeviceCopy, RandomMovesAgreeWithTheOracle) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    expect_copies(random_copy_case(seed));
    if (HasFatalFailure()) return;
  }
}

TEST(DeviceCopy, MoreExpertsThanOneLaunchTakes) {
  expect_copies(interleave_case({kMaxPairsPerLaunch + 77, 8, 4, 4, 2}, true, true, true));
  expect_copies(turn_case({kMaxPairsPerLaunch + 77, 8, 8, 4, 2}, true));
}

/// Words are numbered in 32 bits: more of them than that go in several launches.
TEST(DeviceCopy, MoreWordsThanThirtyTwoBits) {
  constexpr i64 kRows = 3, kRowBytes = (i64{1} << 30) + 3;
  const DeviceBuffer src(kRows * kRowBytes), dst(kRows * kRowBytes);
  CUDA_CHECK(cudaMemset(src.data(), 0, static_cast<std::size_t>(src.bytes())));
  CUDA_CHECK(cudaMemset(dst.data(), 0xa5, static_cast<std::size_t>(dst.bytes())));
  // Marks at the ends of every row; rows are written in reverse order.
  for (i64 row = 0; row < kRows; ++row)
    for (const i64 at : {i64{0}, kRowBytes / 2, kRowBytes - 1})
      CUDA_CHECK(cudaMemset(src.data() + row * kRowBytes + at, static_cast<int>(1 + row), 1));
  Move move;
  move.dst_offset = (kRows - 1) * kRowBytes;
  move.dims[0] = {kRows, kRowBytes, -kRowBytes};
  move.run_bytes = kRowBytes;
  const std::byte* from = src.data();
  std::byte* to = dst.data();
  device_copy(std::span(&move, 1), std::span(&from, 1), std::span(&to, 1), nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<std::byte> row(static_cast<std::size_t>(kRowBytes));
  for (i64 r = 0; r < kRows; ++r) {
    CUDA_CHECK(cudaMemcpy(row.data(), dst.data() + (kRows - 1 - r) * kRowBytes, row.size(), cudaMemcpyDeviceToHost));
    i64 sum = 0;
    for (const std::byte byte : row) sum += static_cast<i64>(byte);
    EXPECT_EQ(sum, 3 * (1 + r));
    EXPECT_EQ(row.front(), std::byte(1 + r));
    EXPECT_EQ(row.back(), std::byte(1 + r));
  }
}

void expect_in_place(const GluSizes& sizes, bool interleave, i64 most_scratch, i64 misaligned) {
  const CopyCase item = interleave_case(sizes, interleave, false, false);
  SCOPED_TRACE(item.name + " in place, " + std::to_string(most_scratch) + " bytes of scratch");
  const auto content = coded_bytes(item.src_bytes[0], 0);
  std::vector<std::byte> want(content.size());
  const std::byte* from = content.data();
  std::byte* to = want.data();
  strided_copy_ref(item.moves, std::span(&from, 1), std::span(&to, 1));

  const GuardedArray tensor(content, misaligned);
  InPlaceGlu glu;
  glu.experts = sizes.experts;
  glu.rows = 2 * sizes.width;
  glu.row_bytes = sizes.hidden * sizes.element_bytes;
  glu.expert_step = glu.rows * glu.row_bytes;
  glu.block_rows = sizes.block_rows;
  glu.interleave = interleave;
  CudaStream stream;
  const GuardedArray scratch(in_place_scratch_bytes(glu, most_scratch));
  const InPlacePermutation permutation(glu, scratch.data(), scratch.bytes(), stream.get());
  permutation.run(tensor.data(), stream.get());
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  ASSERT_TRUE(tensor.download() == want);
  EXPECT_TRUE(tensor.guards_intact());
  EXPECT_TRUE(scratch.guards_intact());

  // The way back, by the call that keeps its tables itself.
  glu.interleave = !interleave;
  in_place_glu(glu, tensor.data(), stream.get());
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  ASSERT_TRUE(tensor.download() == content);
  EXPECT_TRUE(tensor.guards_intact());
}

TEST(InPlacePermutation, AgreesWithTheOracle) {
  for (const GluSizes& sizes : std::vector<GluSizes>{{1, 1, 1, 1, 1},
                                                     {3, 6, 5, 3, 2},
                                                     {2, 64, 17, 32, 2},
                                                     {2, 96, 40, 32, 4},
                                                     {3, 200, 8, 1, 2},
                                                     {5, 1001, 3, 1, 2},
                                                     {2, 65, 129, 5, 1},
                                                     {4, 768, 64, 1, 2},
                                                     {7, 96, 1, 8, 2}})
    for (const bool interleave : {true, false})
      for (const i64 most_scratch : {i64{0}, i64{1} << 20})
        for (const i64 misaligned : {0, 1, 4}) {
          if (sizes.element_bytes % std::max<i64>(1, misaligned) != 0) continue;
          expect_in_place(sizes, interleave, most_scratch, misaligned);
        }
}

TEST(InPlacePermutation, AGraphCapturesTheFirstCallForASize) {
  // Sizes that no other test has, so that the table is made in the capture.
  const GluSizes sizes{3, 132, 24, 11, 2};
  const CopyCase item = interleave_case(sizes, true, false, false);
  const auto content = coded_bytes(item.src_bytes[0], 0);
  std::vector<std::byte> want(content.size());
  const std::byte* from = content.data();
  std::byte* to = want.data();
  strided_copy_ref(item.moves, std::span(&from, 1), std::span(&to, 1));

  const GuardedArray tensor(content, 0);
  const i64 rows = 2 * sizes.width, row_bytes = sizes.hidden * sizes.element_bytes;
  const CudaStream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  // In the global mode any call that allocates or waits would make the capture fail.
  CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  in_place_glu({sizes.experts, rows * row_bytes, rows, row_bytes, sizes.block_rows, true}, tensor.data(), stream.get());
  CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  CUDA_CHECK(cudaGraphInstantiate(&made, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  EXPECT_TRUE(tensor.download() == content) << "captured, not run";
  CUDA_CHECK(cudaGraphLaunch(made, stream.get()));
  CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  (void)cudaGraphExecDestroy(made);
  EXPECT_TRUE(tensor.download() == want);
  EXPECT_TRUE(tensor.guards_intact());
}

TEST(InPlacePermutation, TooLittleScratchIsRefused) {
  const InPlaceGlu glu{2, 2000 * 16, 2000, 16, 1, true};
  const DeviceBuffer scratch(1 << 20);
  EXPECT_THROW(InPlacePermutation(glu, scratch.data(), 100, nullptr), Error);
}

}  // namespace
}  // namespace glu_ckpt
