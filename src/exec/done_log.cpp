#include "exec/done_log.hpp"

#include <array>
#include <cstddef>
#include <cstring>

namespace glu_ckpt {
namespace {

/// An entry holds the tensor, begin and end, then of the source's and of the output's leaves the sum's low and high
/// half, the number and the bytes, then the number of NaNs, and the same four of all bytes where some are in no leaf;
/// 64 bits each, little-endian, as every machine that this runs on has them.
constexpr std::size_t kFields = 16;
using Fields = std::array<i64, kFields>;

void put_sum(const LeafSum& sum, i64* at) {
  at[0] = static_cast<i64>(sum.low);
  at[1] = static_cast<i64>(sum.high);
  at[2] = sum.leaves;
  at[3] = sum.bytes;
}

LeafSum take_sum(const i64* at) { return {static_cast<u64>(at[0]), static_cast<u64>(at[1]), at[2], at[3]}; }

Fields fields_of(const DoneRange& range) {
  Fields fields{static_cast<i64>(range.tensor), range.begin, range.end};
  put_sum(range.sums.source, &fields[3]);
  put_sum(range.sums.output, &fields[7]);
  fields[11] = range.sums.nans;
  put_sum(range.whole, &fields[12]);
  return fields;
}

DoneRange range_of(const std::byte* bytes) {
  Fields fields{};
  std::memcpy(fields.data(), bytes, sizeof fields);
  const RangeSums sums{take_sum(&fields[3]), take_sum(&fields[7]), fields[11]};
  return {static_cast<std::size_t>(fields[0]), fields[1], fields[2], sums, take_sum(&fields[12])};
}

}  // namespace

void DoneLog::add(const DoneRange& range) {
  count(range);
  if (journal_ != nullptr) {
    const Fields fields = fields_of(range);
    journal_->append(std::as_bytes(std::span(fields)));
  }
}

void DoneLog::count(const DoneRange& range) {
  const std::lock_guard lock(mutex_);
  moved_.all += range.sums;
  if (clones_ == nullptr || !clones_->has(range.tensor)) moved_.uncloned += range.sums;
  if (range.sums.nans > 0) moved_.nans[range.tensor] += range.sums.nans;
  if (kept_ == Kept::Ranges) ranges_.push_back(range);
}

std::vector<DoneRange> DoneLog::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(ranges_, {});
}

void append_source_state(Journal& journal, const Hash128& state) {
  const std::array<u64, 2> halves{state.low, state.high};
  journal.append(std::as_bytes(std::span(halves)));
}

std::vector<DoneRange> read_done(const Journal& journal, const Hash128& state, const std::vector<char>& of_removed) {
  std::vector<DoneRange> ranges;
  bool is_of_state = false;
  for (const std::vector<std::byte>& entry : journal.entries()) {
    std::array<u64, 2> halves{};
    if (entry.size() == sizeof halves) {
      std::memcpy(halves.data(), entry.data(), sizeof halves);
      is_of_state = halves == std::array<u64, 2>{state.low, state.high};
    }
    if (entry.size() != sizeof(Fields)) continue;
    const DoneRange range = range_of(entry.data());
    if (is_of_state || (range.tensor < of_removed.size() && of_removed[range.tensor] != 0)) ranges.push_back(range);
  }
  return ranges;
}

std::vector<std::byte> done_bytes(std::span<const DoneRange> ranges) {
  std::vector<std::byte> bytes(ranges.size() * sizeof(Fields));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Fields fields = fields_of(ranges[i]);
    std::memcpy(bytes.data() + i * sizeof fields, fields.data(), sizeof fields);
  }
  return bytes;
}

std::vector<DoneRange> parse_done(std::span<const std::byte> bytes) {
  std::vector<DoneRange> ranges;
  for (; bytes.size() >= sizeof(Fields); bytes = bytes.subspan(sizeof(Fields)))
    ranges.push_back(range_of(bytes.data()));
  return ranges;
}

i64 total_bytes(const std::vector<DoneRange>& ranges) {
  i64 bytes = 0;
  for (const DoneRange& range : ranges) bytes += range.bytes();
  return bytes;
}

std::vector<std::byte> moved_bytes(const Moved& moved, i64 bytes_written) {
  std::vector<DoneRange> written{{0, 0, bytes_written, moved.all}};
  for (const auto& [tensor, nans] : moved.nans) written.push_back({tensor, 0, 0, {{}, {}, nans}});
  return done_bytes(written);
}

void add_moved(std::span<const std::byte> of_another, Moved& moved) {
  const std::vector<DoneRange> ranges = parse_done(of_another);
  moved.all += ranges.at(0).sums;
  moved.bytes_written_elsewhere += ranges[0].end;
  for (const DoneRange& range : std::span(ranges).subspan(1)) moved.nans[range.tensor] += range.sums.nans;
}

}  // namespace glu_ckpt
