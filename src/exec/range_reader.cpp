/// Reads for one range of the output, and the sums of leaves that go with it.

#include "exec/range_reader.hpp"

#include <algorithm>
#include <chrono>
#include <tuple>

namespace glu_ckpt {
namespace {

/// Adds the nanoseconds of a scope.
class Stopwatch {
 public:
  explicit Stopwatch(i64& total) : total_(total) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { total_ += (std::chrono::steady_clock::now() - start_) / std::chrono::nanoseconds(1); }

 private:
  i64& total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

RangeSums& RangeSums::operator+=(const RangeSums& other) {
  source += other.source;
  output += other.output;
  nans += other.nans;
  return *this;
}

void RangeReader::read_runs(std::vector<Run>& runs) {
  std::ranges::sort(runs, {}, [](const Run& run) { return std::tuple(run.tensor, run.offset); });
  {
    const Stopwatch watch(reading_ns_);
    read_sorted(runs);
  }
  if (leaves_ == nullptr) return;
  const Stopwatch watch(hashing_ns_);
  for (const Run& run : runs) leaves_->add(run.tensor, run.offset, run.out, sum_);
}

void RangeReader::read_sorted(std::span<const Run> runs) const {
  std::vector<std::span<std::byte>> outs;
  for (std::size_t first = 0, last = 0; first < runs.size(); first = last) {
    outs.clear();
    i64 end = runs[first].offset;
    for (; last < runs.size() && runs[last].tensor == runs[first].tensor && runs[last].offset == end; ++last) {
      outs.push_back(runs[last].out);
      end += static_cast<i64>(runs[last].out.size());
    }
    source_.read_scattered(runs[first].tensor, runs[first].offset, outs);
  }
}

void RangeReader::read_window(std::size_t tensor, i64 offset, std::span<std::byte> out, std::span<const Move> moves) {
  {
    const Stopwatch watch(reading_ns_);
    source_.read(tensor, offset, out);
  }
  if (leaves_ == nullptr) return;
  const Stopwatch watch(hashing_ns_);
  leaves_->add_used(tensor, offset, out, moves, sum_);
}

}  // namespace glu_ckpt
