#pragma once
/// Moves between made-up tensors, for the kernels: sizes from one element to whole tiles, even and odd, aligned and
/// not.

#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt::support {

struct CopyCase {
  std::string name;
  std::vector<Move> moves;
  /// Bytes of the tensors that the moves number.
  std::vector<i64> src_bytes;
  std::vector<i64> dst_bytes;
  /// Bytes by which the tensors' first bytes miss an aligned address.
  i64 misaligned = 0;
};

/// FC1 [E, 2F, H] and its relatives.
struct GluSizes {
  i64 experts = 1;
  i64 width = 1;
  i64 hidden = 1;
  i64 block_rows = 1;
  i64 element_bytes = 2;
};

/// Contiguous to interleaved:K, or back; one tensor, or one for each expert on either side.
CopyCase interleave_case(const GluSizes& sizes, bool interleave, bool src_indexed, bool dst_indexed);
/// Gate and up as two tensors to one FC1 in interleaved:K, or back.
CopyCase join_case(const GluSizes& sizes, bool join);
/// gpt-oss's [E, H, 2F], gate and up in turn, to [E, 2F, H] in interleaved:K, or back.
CopyCase turn_case(const GluSizes& sizes, bool from_gpt_oss);

/// All of the above over awkward and ordinary sizes.
std::vector<CopyCase> copy_cases();

/// Bytes of which every eight differ from all others in all tensors.
std::vector<std::byte> coded_bytes(i64 count, i64 tensor);

/// Moves as no plan would make them, but as device_copy() takes them: up to seven loops, some in the moves and some as
/// moves of their own, gaps, negative steps, bytes that are read twice, several tensors, any order, holes in it, moves
/// of nothing. No byte is written twice. At most 64 KiB are moved; everything follows from the seed.
CopyCase random_copy_case(unsigned seed);

/// A case's tensors in host memory, and where they begin. Targets hold 0xa5.
struct HostTensors {
  explicit HostTensors(const CopyCase& item);
  std::vector<std::vector<std::byte>> src, dst;
  std::vector<const std::byte*> srcs;
  std::vector<std::byte*> dsts;
};

/// Executes what fold_moves() makes of the moves, loop by loop; with `transposes`, what find_transpose() makes of that.
void copy_folded(const CopyCase& item, HostTensors& tensors, bool transposes);

}  // namespace glu_ckpt::support
