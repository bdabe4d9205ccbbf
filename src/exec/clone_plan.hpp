#pragma once
/// The part of a conversion that moves no bytes: ranges of the output that share blocks with the source's files.

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "glu_ckpt/execute.hpp"
#include "io/sink.hpp"
#include "plan/clone_parts.hpp"

namespace glu_ckpt {

/// The ranges of a plan's outputs that can be cloned, and after clone_ranges() those that are. They depend on the plan
/// and on where the source's tensors lie, but not on what was written already. They are not listed, since there may be
/// millions.
class ClonePlan {
 public:
  /// Clones nothing.
  ClonePlan() = default;
  /// Keeps a reference to neither. `can_clone_from` is asked about each file of the source once.
  ClonePlan(const Plan& plan, const Source& source, const CloneLimits& limits,
            const std::function<bool(const File&)>& can_clone_from);

  bool empty() const { return bytes_ == 0; }
  /// The bytes of all ranges together.
  i64 bytes() const { return bytes_; }
  /// Returns true where any of the tensor's bytes can be cloned.
  bool has(std::size_t tensor) const { return tensor < maps_.size() && !maps_[tensor].empty(); }
  /// The shards that hold such tensors, sorted.
  const std::vector<u32>& shards() const { return shards_; }

  /// Returns where a part of such a tensor that begins at `begin` should end, so that it is not long and cuts no block.
  i64 part_end(std::size_t tensor, i64 begin, i64 end) const;
  /// Calls `use` with the ranges of such a tensor of `bytes` bytes, in order, those that were refused included.
  template <typename Use>
  void for_each_run(std::size_t tensor, i64 bytes, const Use& use) const {
    for (i64 begin = 0; begin < bytes;) {
      const i64 end = part_end(tensor, begin, bytes);
      for (const CloneRun& run : maps_[tensor].parts(begin, end).cloned) use(run);
      begin = end;
    }
  }
  /// Returns the ranges within [begin, end) of such a tensor that have to be written, in order: those that cannot be
  /// cloned, and those that were refused.
  std::vector<ByteRange> written(std::size_t tensor, i64 begin, i64 end) const;

  /// A range of an output tensor that the file system did not clone.
  struct Refused {
    std::size_t tensor = 0;
    ByteRange bytes;
  };
  /// Says that these ranges, which for_each_run() gave, are to be written instead.
  void refuse(std::span<const Refused> ranges);

 private:
  /// The map of each output tensor.
  std::vector<CloneMap> maps_;
  std::vector<u32> shards_;
  i64 bytes_ = 0;
  /// The refused ranges of an output tensor, where there are any; each list is sorted.
  std::map<std::size_t, std::vector<ByteRange>> refused_;
};

/// Clones all ranges through `sink` with options.jobs threads, each shard by one of them: a file system makes the
/// clones into one file one after the other, and two threads lose more by waiting for each other than they win. Ranges
/// that the file system refuses are taken out of `clones`. options.on_progress gets the bytes of the ranges.
void clone_ranges(ClonePlan& clones, const Plan& plan, const Source& source, DurableSink& sink,
                  const ExecuteOptions& options);

}  // namespace glu_ckpt
