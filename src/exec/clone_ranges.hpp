#pragma once
/// The part of a conversion that moves no bytes: ranges of the output that share blocks with the source's files.

#include <functional>
#include <vector>

#include "glu_ckpt/execute.hpp"
#include "plan/clone_parts.hpp"

namespace glu_ckpt {

/// What of a plan's outputs can be cloned. Depends on the plan and on where the source's tensors lie, but not on what
/// was written already.
class ClonePlan {
 public:
  /// Nothing.
  ClonePlan() = default;
  /// Keeps a reference to neither. `can_clone_from` is asked about each file of the source once.
  ClonePlan(const Plan& plan, const Source& source, const CloneLimits& limits,
            const std::function<bool(const File&)>& can_clone_from);

  bool empty() const { return bytes_ == 0; }
  /// Of all ranges together.
  i64 bytes() const { return bytes_; }
  /// Whether any of the tensor's bytes can be cloned.
  bool has(std::size_t tensor) const { return tensor < maps_.size() && !maps_[tensor].empty(); }
  /// Those that hold such tensors, sorted.
  const std::vector<u32>& shards() const { return shards_; }

  /// A part of a tensor.
  struct Piece {
    u32 shard = 0;
    std::size_t tensor = 0;
    i64 begin = 0;
    i64 end = 0;
  };
  /// Tiles the tensors that have() says, each cut between blocks of its file.
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// The ranges in a piece, in order.
  std::vector<CloneRun> runs(const Piece& piece) const {
    return maps_[piece.tensor].parts(piece.begin, piece.end).cloned;
  }

 private:
  void add_pieces(Piece whole, i64 file_phase, i64 block);

  /// By output tensor.
  std::vector<CloneMap> maps_;
  std::vector<Piece> pieces_;
  std::vector<u32> shards_;
  i64 bytes_ = 0;
};

/// Clones all of it through `sink` by options.jobs threads, each shard by one of them: a file system makes the clones
/// into one file one after the other, and two threads lose more by waiting for each other than they win. Returns the
/// ranges that are in place then, without sums, sorted and joined; what the file system refused is not among them.
/// options.on_progress gets their bytes.
std::vector<DoneRange> clone_ranges(const ClonePlan& clones, const Source& source, Sink& sink,
                                    const ExecuteOptions& options);

}  // namespace glu_ckpt
