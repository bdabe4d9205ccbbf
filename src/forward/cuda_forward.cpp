/// Experts on a GPU: what lies in host memory goes up, the answers come down, and everything on one stream.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "forward/mlp_runners.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/device_forward.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

/// Every upload begins at a multiple of this, so that rows are aligned on the device where they are in their window.
constexpr i64 kAlignment = 256;

i64 aligned(i64 bytes) { return round_up(bytes, kAlignment); }

/// Host memory [begin, end) and where it goes, counted from the device buffer's first byte.
struct Upload {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  i64 at = 0;
};

/// Returns the memory from the first to the last byte of rows [first_row, last_row) of a part; no step is negative.
Upload window_of(const StoredMatrix::Part& part, const StoredMatrix& matrix, i64 first_row, i64 last_row) {
  const Placement& place = part.place;
  const i64 last = row_offset(place, last_row - 1) + (matrix.cols - 1) * place.col_step + dtype_bits(matrix.dtype) / 8;
  return {part.data + row_offset(place, first_row), part.data + last, 0};
}

/// Calls `visit(part, matrix, first_row, last_row)` for every part of every matrix that is there.
template <typename Weights, typename Visit>
void for_parts(Weights& weights, const Visit& visit) {
  for (auto* const matrix :
       {&weights.gate, &weights.up, &weights.down, &weights.gate_bias, &weights.up_bias, &weights.down_bias}) {
    if (!matrix->is_there() || matrix->rows < 1 || matrix->cols < 1) continue;
    if (matrix->tail_row > 0) visit(matrix->first, *matrix, i64{0}, matrix->tail_row);
    if (matrix->tail_row < matrix->rows) visit(matrix->tail, *matrix, matrix->tail_row, matrix->rows);
  }
}

/// Returns the host memory that the experts reach. Windows that overlap, as those of interleaved gate and up, are one
/// upload; those that only touch may belong to two allocations.
std::vector<Upload> uploads_of(std::span<const ExpertWeights> experts) {
  std::vector<Upload> windows;
  for (const ExpertWeights& expert : experts)
    for_parts(expert, [&](const StoredMatrix::Part& part, const StoredMatrix& matrix, i64 first, i64 last) {
      windows.push_back(window_of(part, matrix, first, last));
    });
  std::ranges::sort(windows, std::less<>(), &Upload::begin);
  std::vector<Upload> uploads;
  for (const Upload& window : windows)
    if (!uploads.empty() && std::less<>()(window.begin, uploads.back().end))
      uploads.back().end = std::max(uploads.back().end, window.end, std::less<>());
    else
      uploads.push_back(window);
  i64 at = 0;
  for (Upload& upload : uploads) {
    upload.at = at;
    at += aligned(upload.end - upload.begin);
  }
  return uploads;
}

i64 device_bytes(const std::vector<Upload>& uploads) {
  return uploads.empty() ? 0 : uploads.back().at + aligned(uploads.back().end - uploads.back().begin);
}

/// The experts with the device's addresses: each first byte where its upload put it.
std::vector<ExpertWeights> on_device(std::span<const ExpertWeights> experts, const std::vector<Upload>& uploads,
                                     const std::byte* base) {
  std::vector<ExpertWeights> moved(experts.begin(), experts.end());
  for (ExpertWeights& expert : moved)
    for_parts(expert, [&](StoredMatrix::Part& part, const StoredMatrix& matrix, i64 first, i64 last) {
      const Upload window = window_of(part, matrix, first, last);
      const auto next = std::ranges::upper_bound(uploads, window.begin, std::less<>(), &Upload::begin);
      const Upload& upload = *std::prev(next);
      part.place.offset += upload.at + (part.data - upload.begin);
      part.data = base;
    });
  return moved;
}

/// Returns the end of the experts that have the width F of number `first` and follow it: a launch takes one width.
std::size_t end_of_width(const std::vector<ExpertWeights>& experts, std::size_t first) {
  std::size_t last = first + 1;
  while (last < experts.size() && experts[last].up.rows == experts[first].up.rows) ++last;
  return last;
}

/// Copies between any host memory and a device's, by way of page-locked memory: two halves, one of which is filled
/// while the other is on its way.
class PinnedCopies {
 public:
  /// Queues the copy; `from` is free at once.
  void up(std::byte* to, const void* from, i64 bytes, cudaStream_t stream) {
    const auto* next = static_cast<const std::byte*>(from);
    while (bytes > 0) {
      if (used_ == kHalfBytes) change_halves(stream);
      const i64 size = std::min(bytes, kHalfBytes - used_);
      std::byte* const at = place();
      std::memcpy(at, next, static_cast<std::size_t>(size));
      CUDA_CHECK(cudaMemcpyAsync(to, at, static_cast<std::size_t>(size), cudaMemcpyHostToDevice, stream));
      used_ += size;
      next += size;
      to += size;
      bytes -= size;
    }
  }

  /// Waits for the stream and the bytes.
  void down(void* to, const std::byte* from, i64 bytes, cudaStream_t stream) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    used_ = 0;
    auto* next = static_cast<std::byte*>(to);
    while (bytes > 0) {
      const i64 size = std::min(bytes, kHalfBytes);
      CUDA_CHECK(cudaMemcpyAsync(place(), from, static_cast<std::size_t>(size), cudaMemcpyDeviceToHost, stream));
      CUDA_CHECK(cudaStreamSynchronize(stream));
      std::memcpy(next, place(), static_cast<std::size_t>(size));
      next += size;
      from += size;
      bytes -= size;
    }
  }

 private:
  static constexpr i64 kHalfBytes = i64{8} << 20;

  std::byte* place() {
    if (memory_.bytes() == 0) memory_ = PinnedBuffer(2 * kHalfBytes);
    return memory_.data() + half_ * kHalfBytes + used_;
  }

  void change_halves(cudaStream_t stream) {
    CUDA_CHECK(cudaEventRecord(copied_[half_].get(), stream));
    queued_[half_] = true;
    half_ = 1 - half_;
    if (queued_[half_]) CUDA_CHECK(cudaEventSynchronize(copied_[half_].get()));
    used_ = 0;
  }

  PinnedBuffer memory_;
  int half_ = 0;
  i64 used_ = 0;
  CudaEvent copied_[2] = {CudaEvent(cudaEventBlockingSync | cudaEventDisableTiming),
                          CudaEvent(cudaEventBlockingSync | cudaEventDisableTiming)};
  bool queued_[2] = {};
};

class CudaMlpRunner final : public MlpRunner {
 public:
  CudaMlpRunner(int device, const BackendOptions& options) : device_(device), options_(options) {
    if (cuda_device_count() == 0) fail(ErrorCode::NoDevice, {}, "cuda:{}: {}; use --device cpu", device, why_no_cuda());
    (void)cuda_device(device);
    CUDA_CHECK(cudaSetDevice(device));
    stream_ = std::make_unique<CudaStream>();
    copies_ = std::make_unique<PinnedCopies>();
  }
  CudaMlpRunner(const CudaMlpRunner&) = delete;
  CudaMlpRunner& operator=(const CudaMlpRunner&) = delete;
  // After an error the buffers may still be in use.
  ~CudaMlpRunner() override {
    (void)cudaSetDevice(device_);
    (void)cudaStreamSynchronize(stream_->get());
  }

  void run(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs, void* out,
           int) override {
    check_grouped_mlp(mlp, rows, splits);
    // One stream, one set of buffers: calls follow one another.
    const std::lock_guard lock(mutex_);
    CUDA_CHECK(cudaSetDevice(device_));
    const std::vector<Upload> uploads = uploads_of(mlp.experts);
    upload(uploads);
    const auto experts = on_device(mlp.experts, uploads, weights_.data());
    GroupedMlp moved = mlp;
    moved.experts = experts;
    const i64 row_bytes = rows * mlp.hidden * dtype_bits(mlp.compute) / 8;
    const Rows at = reserve_rows(row_bytes, rows, static_cast<i64>(splits.size()));
    copy_up(at.x, x, row_bytes);
    copy_up(at.splits, splits.data(), static_cast<i64>(splits.size_bytes()));
    copy_up(at.probs, probs, rows * static_cast<i64>(sizeof(float)));
    // Rows behind the last split keep what they hold.
    copy_up(at.out, out, row_bytes);
    i64 row = 0;
    for (std::size_t first = 0; first < experts.size();) {
      const std::size_t last = end_of_width(experts, first);
      const i64 taken = std::accumulate(splits.begin() + static_cast<std::ptrdiff_t>(first),
                                        splits.begin() + static_cast<std::ptrdiff_t>(last), i64{0});
      moved.experts = std::span(experts).subspan(first, last - first);
      run_width(moved, at, row, taken, first);
      row += taken;
      first = last;
    }
    copies_->down(out, at.out, row_bytes, stream_->get());
  }

  // Half of the memory is for what the kernels take: copies of weights that they cannot read in place.
  i64 batch_bytes(int) const override { return std::min(options_.device_memory_bytes / 2, i64{256} << 20); }
  std::string name() const override { return fmt::format("cuda:{}", device_); }

 private:
  /// Places in rows_.
  struct Rows {
    std::byte* x;
    std::byte* out;
    std::byte* splits;
    std::byte* probs;
  };

  static void reserve(DeviceBuffer& buffer, i64 bytes) {
    if (buffer.bytes() >= bytes) return;
    buffer = {};
    buffer = DeviceBuffer(bytes);
  }

  void upload(const std::vector<Upload>& uploads) {
    reserve(weights_, device_bytes(uploads));
    for (const Upload& piece : uploads) copy_up(weights_.data() + piece.at, piece.begin, piece.end - piece.begin);
  }

  /// Experts of one width, number `first` on, and their rows, number `row` on.
  void run_width(const GroupedMlp& mlp, const Rows& at, i64 row, i64 rows, std::size_t first) {
    const i64 row_bytes = mlp.hidden * dtype_bits(mlp.compute) / 8;
    const DeviceGroupedMlp device(mlp, std::max<i64>(1, rows), stream_->get());
    device.run(at.x + row * row_bytes, rows, reinterpret_cast<const i64*>(at.splits) + first,
               reinterpret_cast<const float*>(at.probs) + row, at.out + row * row_bytes, stream_->get());
    // The object and its memory are needed until then.
    device.check_splits(stream_->get());
  }

  void copy_up(std::byte* to, const void* from, i64 bytes) { copies_->up(to, from, bytes, stream_->get()); }

  Rows reserve_rows(i64 row_bytes, i64 rows, i64 num_experts) {
    const i64 x = 0, out = aligned(row_bytes), splits = 2 * out;
    const i64 probs = splits + aligned(num_experts * static_cast<i64>(sizeof(i64)));
    reserve(rows_, probs + aligned(rows * static_cast<i64>(sizeof(float))) + kAlignment);
    return {rows_.data() + x, rows_.data() + out, rows_.data() + splits, rows_.data() + probs};
  }

  int device_;
  BackendOptions options_;
  std::mutex mutex_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<PinnedCopies> copies_;
  DeviceBuffer weights_;
  DeviceBuffer rows_;
};

}  // namespace

std::unique_ptr<MlpRunner> make_cuda_mlp_runner(int device, const BackendOptions& options) {
  return std::make_unique<CudaMlpRunner>(device, options);
}

}  // namespace glu_ckpt
