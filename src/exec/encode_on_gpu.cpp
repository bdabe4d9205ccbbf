#include "exec/encode_on_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "core/checked_math.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/quant/encode_cells.hpp"

namespace glu_ckpt {
namespace {

/// A matrix of an expert of a few MiB is one batch; a smaller part of it would wait as long for each step.
constexpr i64 kCellBatchBytes = i64{4} << 20;
/// Places on one GPU: as many threads as a host has for each of its GPUs. Others encode on the CPU.
constexpr i64 kMostCellPlaces = 32;
/// Of the parts of a buffer: what kernels take, and more than a copy needs.
constexpr i64 kCellAlignment = 256;

/// The buffer of a batch, in host memory as on the GPU: weights and flag go there by one copy, flag, codes and scales
/// come back by another.
struct CellLayout {
  explicit CellLayout(const CellBatch& batch)
      : flag(round_up(batch.weight_bytes(), kCellAlignment)),
        codes(flag + kCellAlignment),
        scales(codes + round_up(batch.code_bytes(), kCellAlignment)),
        bytes(scales + batch.scales_bytes()) {}

  i64 flag = 0;
  i64 codes = 0;
  i64 scales = 0;
  i64 bytes = 0;
};

/// The means of one caller.
class CellBuffers {
 public:
  explicit CellBuffers(int device) : device_(device) {
    const OnCudaDevice on(device_);
    stream_ = std::make_unique<CudaStream>();
    // A spinning wait would take the core that another worker reads with.
    done_ = std::make_unique<CudaEvent>(cudaEventBlockingSync | cudaEventDisableTiming);
  }
  CellBuffers(const CellBuffers&) = delete;
  CellBuffers& operator=(const CellBuffers&) = delete;
  // After an error the buffers may still be in use.
  ~CellBuffers() {
    (void)cudaSetDevice(device_);
    (void)cudaStreamSynchronize(stream_->get());
  }

  std::byte* reserve(i64 bytes) {
    if (host_.bytes() >= bytes) return host_.data();
    const OnCudaDevice on(device_);
    host_ = {};
    on_gpu_ = {};
    host_ = PinnedBuffer(bytes);
    on_gpu_ = DeviceBuffer(bytes);
    return host_.data();
  }

  /// Returns the flag.
  u32 encode(const CellBatch& batch, const CellLayout& at) {
    const OnCudaDevice on(device_);
    const cudaStream_t stream = stream_->get();
    auto* const flag = reinterpret_cast<u32*>(host_.data() + at.flag);
    std::byte* const gpu = on_gpu_.data();
    *flag = 0;
    CUDA_CHECK(cudaMemcpyAsync(gpu, host_.data(), static_cast<std::size_t>(at.codes), cudaMemcpyHostToDevice, stream));
    encode_cells(batch, gpu, reinterpret_cast<u32*>(gpu + at.flag), gpu + at.codes, gpu + at.scales, stream);
    CUDA_CHECK(cudaMemcpyAsync(flag, gpu + at.flag, static_cast<std::size_t>(at.bytes - at.flag),
                               cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaEventRecord(done_->get(), stream));
    CUDA_CHECK(cudaEventSynchronize(done_->get()));
    return *flag;
  }

  const std::byte* data() const { return host_.data(); }

 private:
  int device_;
  PinnedBuffer host_;
  DeviceBuffer on_gpu_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaEvent> done_;
};

class GpuCellDevice final : public CellDevice {
 public:
  GpuCellDevice(const std::vector<int>& devices, i64 device_memory_bytes, std::shared_future<void> opened)
      : devices_(devices), most_bytes_(device_memory_bytes / kMostCellPlaces), opened_(std::move(opened)) {}

  i64 batch_bytes() const override { return std::min(kCellBatchBytes, most_bytes_ / 2); }
  i64 most_bytes() const { return most_bytes_; }

  std::unique_ptr<Place> take_place() override;

  void give_back(std::unique_ptr<CellBuffers> buffers) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffers));
  }

 private:
  std::vector<int> devices_;
  i64 most_bytes_;
  std::shared_future<void> opened_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CellBuffers>> free_;
  std::size_t made_ = 0;
};

class GpuCellPlace final : public CellDevice::Place {
 public:
  GpuCellPlace(GpuCellDevice& device, std::unique_ptr<CellBuffers> buffers)
      : device_(device), buffers_(std::move(buffers)) {}
  GpuCellPlace(const GpuCellPlace&) = delete;
  GpuCellPlace& operator=(const GpuCellPlace&) = delete;
  ~GpuCellPlace() override { device_.give_back(std::move(buffers_)); }

  std::byte* weights_of(const CellBatch& batch) override {
    const CellLayout at(batch);
    return takes_cells(batch) && at.bytes <= device_.most_bytes() ? buffers_->reserve(at.bytes) : nullptr;
  }

  bool encode(const CellBatch& batch, MadeCells& made) override {
    const CellLayout at(batch);
    if (buffers_->encode(batch, at) != 0) return false;
    made.codes = {buffers_->data() + at.codes, static_cast<std::size_t>(batch.code_bytes())};
    made.scales = {buffers_->data() + at.scales, static_cast<std::size_t>(batch.scales_bytes())};
    return true;
  }

 private:
  GpuCellDevice& device_;
  std::unique_ptr<CellBuffers> buffers_;
};

std::unique_ptr<CellDevice::Place> GpuCellDevice::take_place() {
  if (opened_.valid()) {
    if (opened_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return nullptr;
    opened_.get();
  }
  std::size_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<CellBuffers> buffers = std::move(free_.back());
      free_.pop_back();
      return std::make_unique<GpuCellPlace>(*this, std::move(buffers));
    }
    if (made_ == static_cast<std::size_t>(kMostCellPlaces) * devices_.size()) return nullptr;
    number = made_++;
  }
  return std::make_unique<GpuCellPlace>(*this, std::make_unique<CellBuffers>(devices_[number % devices_.size()]));
}

}  // namespace

std::shared_ptr<CellDevice> make_gpu_cell_device(const std::vector<int>& devices, i64 device_memory_bytes,
                                                 std::shared_future<void> opened) {
  return std::make_shared<GpuCellDevice>(devices, device_memory_bytes, std::move(opened));
}

}  // namespace glu_ckpt
