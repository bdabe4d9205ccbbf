#pragma once
/// Finds which bytes of an output tensor can be had by sharing extents of the source's files, and which must be
/// written.

#include <span>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Runs that are worth cloning. Where a run does not begin and end with a block, the block that it shares with the next
/// run is written between two clones, and a file of many such blocks is read back at a fraction of the disk's speed
/// unless the clones between them are long. Without them, short extents cost little.
inline constexpr i64 kWorthCloningBytes = i64{384} << 10;
inline constexpr i64 kWorthCloningEvenBytes = i64{64} << 10;

/// Bytes [begin, end).
struct ByteRange {
  i64 begin = 0;
  i64 end = 0;
  i64 bytes() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// The whole blocks in `bytes` from `offset` on; empty where there are none.
ByteRange whole_blocks(i64 offset, i64 bytes, i64 block);

/// One range to clone: the offsets count from the first bytes of the two tensors.
struct CloneRun {
  std::size_t src = 0;
  i64 src_offset = 0;
  i64 dst_offset = 0;
  i64 bytes = 0;
  bool operator==(const CloneRun&) const = default;
};

/// A range of an output tensor: what to clone and what to write, each sorted by place in the output.
struct CloneParts {
  std::vector<CloneRun> cloned;
  std::vector<ByteRange> written;
};

struct CloneLimits {
  /// The file system's block: offsets and lengths must be multiples of it in both files.
  i64 block = kDataPhaseBytes;
  /// Runs with fewer bytes in whole blocks are written.
  i64 min_bytes = kWorthCloningBytes;
  /// Runs that consist of whole blocks are written where they have fewer bytes.
  i64 min_even_bytes = kWorthCloningEvenBytes;

  /// Returns whether a run is cloned that has `whole` of its `bytes` in whole blocks.
  bool accept(i64 whole, i64 bytes) const {
    return whole >= block && whole >= (whole == bytes ? min_even_bytes : min_bytes);
  }
};

/// The runs of one output tensor that can be cloned: the whole blocks of the runs of its joined moves.
class CloneMap {
 public:
  /// `moves`: all of one output tensor. `src_at`: where byte 0 of each source tensor lies in its file, negative where
  /// that is not one dense range of a file. `dst_at`: the same of the output tensor.
  CloneMap(std::span<const Move> moves, std::span<const i64> src_at, i64 dst_at, CloneLimits limits);

  /// Returns whether nothing can be cloned.
  bool empty() const { return moves_.empty(); }

  /// The first offset from `offset` on, counted from the tensor's first byte, at which a block of its file ends.
  i64 block_end(i64 offset) const;

  /// Splits bytes [begin, end) of the tensor, which the two lists tile. Whether a run is long enough is judged by all
  /// of it, not by what lies in the range, so that ranges that end at block boundaries of the file lose nothing;
  /// elsewhere the block that a boundary cuts is written. The work is proportional to the runs in the range.
  CloneParts parts(i64 begin, i64 end) const;

 private:
  /// A move whose runs are long enough, and where its tensor lies in its file.
  struct Candidate {
    Move move;
    i64 src_at = 0;
  };

  void add_runs(const Candidate& from, std::size_t level, i64 src, i64 dst, ByteRange range,
                std::vector<CloneRun>& runs) const;
  void add_run(const Candidate& from, i64 src, i64 dst, ByteRange range, std::vector<CloneRun>& runs) const;

  std::vector<Candidate> moves_;
  i64 dst_at_;
  CloneLimits limits_;
};

}  // namespace glu_ckpt
