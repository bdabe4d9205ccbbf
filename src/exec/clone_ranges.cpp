#include "exec/clone_ranges.hpp"

#include <algorithm>
#include <map>
#include <span>

#include "core/parallel.hpp"
#include "core/round_up.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kPieceBytes = i64{64} << 20;

/// Where byte 0 of each source tensor lies in its file; -1 where nothing can be cloned from.
std::vector<i64> cloneable_places(const Source& source, const std::function<bool(const File&)>& can_clone_from) {
  std::map<const File*, bool> asked;
  std::vector<i64> places;
  for (std::size_t t = 0; t < source.inventory().tensors.size(); ++t) {
    const FilePlace place = source.place(t);
    if (place.file != nullptr && !asked.contains(place.file)) asked[place.file] = can_clone_from(*place.file);
    places.push_back(place.file != nullptr && asked[place.file] ? place.offset : -1);
  }
  return places;
}

void append_joined(std::vector<DoneRange>& ranges, const DoneRange& range) {
  if (!ranges.empty() && ranges.back().tensor == range.tensor && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

}  // namespace

ClonePlan::ClonePlan(const Plan& plan, const Source& source, const CloneLimits& limits,
                     const std::function<bool(const File&)>& can_clone_from) {
  // Another block than that of the phases would need the very length of the header.
  if (kDataPhaseBytes % limits.block != 0) return;
  const std::vector<i64> src_at = cloneable_places(source, can_clone_from);
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    const OutputTensor& output = plan.outputs[t];
    const auto moves = std::span(plan.moves).subspan(plan.first_move[t], plan.first_move[t + 1] - plan.first_move[t]);
    const i64 file_phase = plan.data_phases.at(output.shard) + output.offset;
    maps_.emplace_back(moves, src_at, file_phase, limits);
    if (maps_.back().empty()) continue;
    const std::size_t first = pieces_.size();
    const i64 before = bytes_;
    add_pieces({output.shard, t, 0, output.bytes}, file_phase, limits.block);
    for (std::size_t p = first; p < pieces_.size(); ++p)
      for (const CloneRun& run : runs(pieces_[p])) bytes_ += run.bytes;
    if (bytes_ > before && (shards_.empty() || shards_.back() != output.shard)) shards_.push_back(output.shard);
    if (bytes_ > before) continue;
    pieces_.resize(first);
    maps_.back() = CloneMap({}, {}, -1, limits);
  }
}

void ClonePlan::add_pieces(Piece whole, i64 file_phase, i64 block) {
  for (i64 begin = 0; begin < whole.end;) {
    const i64 end = std::min(whole.end, round_up(file_phase + begin + kPieceBytes, block) - file_phase);
    pieces_.push_back({whole.shard, whole.tensor, begin, end});
    begin = end;
  }
}

std::vector<DoneRange> clone_ranges(const ClonePlan& clones, const Source& source, Sink& sink,
                                    const ExecuteOptions& options) {
  std::vector<std::vector<DoneRange>> cloned(clones.shards().size());
  parallel_for(clones.shards().size(), options.jobs, [&](std::size_t index, int) {
    const u32 shard = clones.shards()[index];
    const auto first = std::ranges::lower_bound(clones.pieces(), shard, {}, &ClonePlan::Piece::shard);
    const auto last = std::ranges::upper_bound(clones.pieces(), shard, {}, &ClonePlan::Piece::shard);
    for (const ClonePlan::Piece& piece : std::span(first, last))
      for (const CloneRun& run : clones.runs(piece)) {
        FilePlace from = source.place(run.src);
        from.offset += run.src_offset;
        if (!sink.clone(piece.tensor, run.dst_offset, from, run.bytes)) continue;
        append_joined(cloned[index], {piece.tensor, run.dst_offset, run.dst_offset + run.bytes, {}});
        if (options.on_progress) options.on_progress(run.bytes);
      }
  });
  std::vector<DoneRange> all;
  for (const std::vector<DoneRange>& ranges : cloned)
    for (const DoneRange& range : ranges) append_joined(all, range);
  return all;
}

}  // namespace glu_ckpt
