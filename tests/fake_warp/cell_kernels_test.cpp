/// The kernels that encode, run thread by thread on a CPU: which weights, cells and bytes each thread takes, against
/// the CPU's own loops.

#include <gtest/gtest.h>

#include "fake_warp/fake_block.hpp"
#include "kernels/quant/encode_cells.cuh"
#include "kernels/quant/encode_cells.hpp"
#include "support/cell_cases.hpp"

namespace glu_ckpt {
namespace {

using support::CellCase;

constexpr std::byte kPoison{0xa5};

/// Device memory: aligned, and with a guard behind it.
struct Guarded {
  explicit Guarded(i64 bytes) : size(static_cast<std::size_t>(bytes)), words(size / 16 + 4) {
    std::fill_n(data(), words.size() * 16, kPoison);
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(words.data()); }
  std::vector<std::byte> taken() {
    for (std::size_t at = size; at < words.size() * 16; ++at) EXPECT_EQ(data()[at], kPoison);
    return {data(), data() + size};
  }

  std::size_t size;
  std::vector<uint4> words;
};

template <Codes kCodes, bool kBf16>
void run_thread(const CellBatch& batch, const encoding::CellArgs& args) {
  if (encoding::has_row_cells(batch))
    encoding::encode_row_cells<kCodes, kBf16>(args);
  else
    encoding::encode_block_cells<kCodes, kBf16>(args);
}

template <Codes kCodes>
void run_blocks(const CellBatch& batch, const encoding::CellArgs& args) {
  for (i64 block = 0; block < encoding::blocks_of(batch); ++block)
    fake_warp::run_block(static_cast<unsigned>(block), encoding::kThreads, [&] {
      if (batch.rule.bf16)
        run_thread<kCodes, true>(batch, args);
      else
        run_thread<kCodes, false>(batch, args);
    });
}

void expect_as_host(const CellCase& one) {
  const support::HostCells host = support::host_cells(one);
  Guarded weights(std::ssize(one.weights)), codes(one.batch.code_bytes()), scales(one.batch.scales_bytes());
  std::ranges::copy(one.weights, weights.data());
  u32 flag = 0;
  encoding::CellArgs args = encoding::cell_args(one.batch);
  args.weights = weights.data();
  args.flag = &flag;
  args.codes = codes.data();
  args.scales = scales.data();
  if (one.batch.rule.codes == Codes::E4m3)
    run_blocks<Codes::E4m3>(one.batch, args);
  else if (one.batch.rule.codes == Codes::E2m1)
    run_blocks<Codes::E2m1>(one.batch, args);
  else
    run_blocks<Codes::Int4>(one.batch, args);
  const std::vector<std::byte> made_codes = codes.taken(), made_scales = scales.taken();
  EXPECT_EQ(flag, one.is_watched || !host.refused.empty() ? 1U : 0U);
  if (flag != 0) return;
  EXPECT_TRUE(made_codes == host.codes);
  EXPECT_TRUE(made_codes == host.searched_codes);
  EXPECT_TRUE(made_scales == host.scales);
}

TEST(EncodeKernels, EveryEncoderOverWholeAndCutCells) {
  std::vector<CellCase> cases = support::cell_cases();
  // A block is 256 fibers, so of what only sets the flag a few are enough.
  std::erase_if(cases, [](const CellCase& one) { return one.is_watched && one.batch.rows > 5; });
  int compared = 0;
  for (const CellCase& one : cases) {
    if (!takes_cells(one.batch)) continue;
    SCOPED_TRACE(one.describe());
    expect_as_host(one);
    ++compared;
    if (HasFailure()) return;
  }
  EXPECT_EQ(compared, std::ssize(cases));
}

}  // namespace
}  // namespace glu_ckpt
