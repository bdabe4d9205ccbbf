#pragma once
/// Time on a GPU, by events. Work that is compared takes turns.

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "kernels/common/device_buffer.hpp"

namespace glu_ckpt {

/// The upper one of the two in the middle where there are two. `values` is not empty.
inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Launches between two events that take about a millisecond, which drowns the events' own half microsecond.
inline int launches_in_a_batch(double microseconds_each) {
  return static_cast<int>(std::clamp(1000 / std::max(microseconds_each, 1.0), 1.0, 500.0));
}

/// Times work on a stream of its own, on the device that is current when it is made.
class EventTimer {
 public:
  /// Puts one piece of work on the stream.
  using Work = std::function<void(cudaStream_t)>;

  cudaStream_t stream() const { return stream_.get(); }

  /// Microseconds that a launch takes in a row of `launches`. One more goes first, untimed: what a launch leaves in the
  /// cache to be written back is paid for by the next, which must be one of its own kind.
  double batch(const Work& work, int launches) {
    work(stream());
    CUDA_CHECK(cudaEventRecord(begin_.get(), stream()));
    for (int i = 0; i < launches; ++i) work(stream());
    CUDA_CHECK(cudaEventRecord(end_.get(), stream()));
    CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e3 / launches;
  }

  /// Microseconds of each, medians over rounds in which all take turns: `most_rounds`, or fewer, but 3 at the least,
  /// where they would take longer than `most_microseconds` together.
  std::vector<double> in_turn(std::span<const Work> works, int most_rounds, double most_microseconds) {
    std::vector<int> launches;
    double round_microseconds = 0;
    for (const Work& work : works) {
      const double once = batch(work, 1);
      launches.push_back(launches_in_a_batch(once));
      round_microseconds += once * (launches.back() + 1);
    }
    const double fitting = most_microseconds / std::max(round_microseconds, 1.0);
    const int rounds = static_cast<int>(std::clamp(fitting, std::min(3.0, 1.0 * most_rounds), 1.0 * most_rounds));
    std::vector<std::vector<double>> times(works.size());
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < works.size(); ++i) times[i].push_back(batch(works[i], launches[i]));
    std::vector<double> medians;
    for (const std::vector<double>& own : times) medians.push_back(median(own));
    return medians;
  }

 private:
  CudaStream stream_;
  CudaEvent begin_, end_;
};

}  // namespace glu_ckpt
