#pragma once
/// Reads the source for one range of the output, and brings the bytes together in host memory.

#include <cstddef>
#include <span>
#include <vector>

#include "exec/host_buffer.hpp"
#include "glu_ckpt/execute.hpp"

namespace glu_ckpt {

/// Reads the bytes that a range of the output is made of, and hashes the source's leaves as they pass. One thread uses
/// it.
class RangeReader {
 public:
  explicit RangeReader(const Source& source, const ModelLeaves* leaves = nullptr) : source_(source), leaves_(leaves) {}

  /// A run of which every byte is wanted.
  struct Run {
    std::size_t tensor = 0;
    i64 offset = 0;
    std::span<std::byte> out;
  };
  /// Runs that follow each other in the source are read by one call. Reorders them.
  void read_runs(std::vector<Run>& runs);
  /// `out.size()` bytes from `offset` on, of which `moves` want some.
  void read_window(std::size_t tensor, i64 offset, std::span<std::byte> out, std::span<const Move> moves);

  const LeafSum& sum() const { return sum_; }
  /// The time that its calls took.
  i64 reading_ns() const { return reading_ns_; }
  i64 hashing_ns() const { return hashing_ns_; }

 private:
  void read_sorted(std::span<const Run> runs) const;

  const Source& source_;
  const ModelLeaves* leaves_;
  LeafSum sum_;
  i64 reading_ns_ = 0;
  i64 hashing_ns_ = 0;
};

/// Reads bytes [begin, end) of a tensor that `moves` describe into `out`, taking every byte from
/// `reader`. `scratch` bounds the memory used for gathering short runs.
void gather(std::span<const Move> moves, RangeReader& reader, const Backend& backend, i64 begin, i64 end,
            std::byte* out, HostBuffer& scratch, i64 scratch_bytes);

}  // namespace glu_ckpt
