#pragma once
/// The part of a conversion that moves no bytes: ranges of the output that share blocks with the source's files.

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "glu_ckpt/execute.hpp"
#include "io/file_backed.hpp"
#include "plan/clone_parts.hpp"

namespace glu_ckpt {

/// What of a plan's outputs can be cloned, and after clone_ranges() what is. Depends on the plan and on where the
/// source's tensors lie, but not on what was written already. It does not list the ranges, of which there may be
/// millions.
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

  /// Where a part of such a tensor that begins at `begin` is to end, so that it is not long and cuts no block.
  i64 part_end(std::size_t tensor, i64 begin, i64 end) const;
  /// Calls `use` with the ranges of such a tensor of `bytes` bytes, in order; with those that were refused, too.
  template <typename Use>
  void for_each_run(std::size_t tensor, i64 bytes, const Use& use) const {
    for (i64 begin = 0; begin < bytes;) {
      const i64 end = part_end(tensor, begin, bytes);
      for (const CloneRun& run : maps_[tensor].parts(begin, end).cloned) use(run);
      begin = end;
    }
  }
  /// What else there is in bytes [begin, end) of such a tensor, and what was refused of them: what is to be written, in
  /// order.
  std::vector<ByteRange> written(std::size_t tensor, i64 begin, i64 end) const;

  /// Bytes of an output tensor.
  struct Refused {
    std::size_t tensor = 0;
    ByteRange bytes;
  };
  /// Ranges that for_each_run() gave are to be written instead.
  void refuse(std::span<const Refused> ranges);

 private:
  /// By output tensor.
  std::vector<CloneMap> maps_;
  std::vector<u32> shards_;
  i64 bytes_ = 0;
  /// By output tensor, where there are any; each sorted.
  std::map<std::size_t, std::vector<ByteRange>> refused_;
};

/// Clones all of it through `sink` by options.jobs threads, each shard by one of them: a file system makes the clones
/// into one file one after the other, and two threads lose more by waiting for each other than they win. What the file
/// system refuses is taken out of `clones`. options.on_progress gets the bytes of the ranges.
void clone_ranges(ClonePlan& clones, const Plan& plan, const Source& source, Sink& sink, const ExecuteOptions& options);

}  // namespace glu_ckpt
