#include "exec/clone_plan.hpp"

#include <algorithm>
#include <span>

#include "core/parallel.hpp"

namespace glu_ckpt {
namespace {

/// The list of the runs in so many bytes takes little memory.
constexpr i64 kPartBytes = i64{64} << 20;

/// Returns where byte 0 of each source tensor lies in its file; -1 where nothing can be cloned from.
std::vector<i64> cloneable_places(const Source& source, const std::function<bool(const File&)>& can_clone_from) {
  const FileBacked* const files = source.file_backed();
  if (files == nullptr) return std::vector<i64>(source.inventory().tensors.size(), -1);
  std::map<const File*, bool> asked;
  std::vector<i64> places;
  for (std::size_t t = 0; t < source.inventory().tensors.size(); ++t) {
    const FilePlace place = files->place(t);
    if (place.file != nullptr && !asked.contains(place.file)) asked[place.file] = can_clone_from(*place.file);
    places.push_back(place.file != nullptr && asked[place.file] ? place.offset : -1);
  }
  return places;
}

/// Returns the ranges sorted, with those that meet or overlap made one.
std::vector<ByteRange> joined(std::vector<ByteRange> ranges) {
  std::ranges::sort(ranges, {}, &ByteRange::begin);
  std::vector<ByteRange> all;
  for (const ByteRange& range : ranges)
    if (!all.empty() && range.begin <= all.back().end)
      all.back().end = std::max(all.back().end, range.end);
    else
      all.push_back(range);
  return all;
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
    maps_.emplace_back(moves, src_at, plan.data_phases.at(output.shard) + output.offset, limits);
    if (maps_.back().empty()) continue;
    i64 bytes = 0;
    for_each_run(t, output.bytes, [&](const CloneRun& run) { bytes += run.bytes; });
    if (bytes == 0)
      maps_.back() = CloneMap({}, {}, -1, limits);
    else if (shards_.empty() || shards_.back() != output.shard)
      shards_.push_back(output.shard);
    bytes_ += bytes;
  }
}

i64 ClonePlan::part_end(std::size_t tensor, i64 begin, i64 end) const {
  return std::min(end, maps_[tensor].block_end(begin + kPartBytes));
}

std::vector<ByteRange> ClonePlan::written(std::size_t tensor, i64 begin, i64 end) const {
  std::vector<ByteRange> ranges = maps_[tensor].parts(begin, end).written;
  const auto refused = refused_.find(tensor);
  if (refused == refused_.end()) return ranges;
  const auto& all = refused->second;
  const auto first = std::ranges::upper_bound(all, begin, {}, &ByteRange::end);
  for (const ByteRange& range : std::span(first, std::ranges::lower_bound(all, end, {}, &ByteRange::begin)))
    ranges.push_back({std::max(begin, range.begin), std::min(end, range.end)});
  return joined(std::move(ranges));
}

void ClonePlan::refuse(std::span<const Refused> ranges) {
  for (const auto& [tensor, bytes] : ranges) {
    refused_[tensor].push_back(bytes);
    bytes_ -= bytes.bytes();
  }
  for (auto& [tensor, refused] : refused_) refused = joined(std::move(refused));
}

void clone_ranges(ClonePlan& clones, const Plan& plan, const Source& source, DurableSink& sink,
                  const ExecuteOptions& options) {
  std::vector<std::vector<ClonePlan::Refused>> refused(clones.shards().size());
  const auto clone_tensor = [&](std::size_t t, std::vector<ClonePlan::Refused>& refused_here) {
    clones.for_each_run(t, plan.outputs[t].bytes, [&](const CloneRun& run) {
      FilePlace from = source.file_backed()->place(run.src);
      from.offset += run.src_offset;
      if (!sink.clone(t, run.dst_offset, from, run.bytes))
        refused_here.push_back({t, {run.dst_offset, run.dst_offset + run.bytes}});
      if (options.on_progress) options.on_progress(run.bytes);
    });
  };
  parallel_for(clones.shards().size(), options.jobs, [&](std::size_t index, int) {
    const u32 shard = clones.shards()[index];
    const auto first = std::ranges::lower_bound(plan.outputs, shard, {}, &OutputTensor::shard);
    for (auto t = static_cast<std::size_t>(first - plan.outputs.begin());
         t < plan.outputs.size() && plan.outputs[t].shard == shard; ++t)
      if (clones.has(t)) clone_tensor(t, refused[index]);
  });
  for (const std::vector<ClonePlan::Refused>& ranges : refused) clones.refuse(ranges);
}

}  // namespace glu_ckpt
