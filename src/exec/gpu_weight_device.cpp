#include "exec/gpu_weight_device.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>

#include "core/checked_math.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/quant/add_products.hpp"
#include "kernels/quant/encode_cells.hpp"

namespace glu_ckpt {
namespace {

/// A matrix of an expert of a few MiB is one batch; a smaller part of it would wait as long for each step.
constexpr i64 kCellBatchBytes = i64{4} << 20;
/// Places on one GPU: as many threads as a host has for each of its GPUs. Others encode on the CPU.
constexpr i64 kMostPlaces = 32;
/// Each part of a buffer begins at a multiple of this many bytes: kernels need 16.
constexpr i64 kPartAlignment = 256;

/// The buffer of a batch, in host memory as on the GPU: weights and flag go there by one copy, flag, codes and scales
/// come back by another.
struct CellLayout {
  explicit CellLayout(const CellBatch& batch)
      : flag(round_up(batch.weight_bytes(), kPartAlignment)),
        codes(flag + kPartAlignment),
        scales(codes + round_up(batch.code_bytes(), kPartAlignment)),
        bytes(scales + batch.scales_bytes()) {}

  i64 flag = 0;
  i64 codes = 0;
  i64 scales = 0;
  i64 bytes = 0;
};

/// The same for lines with products: all goes there by one copy, flag and weights come back by another.
struct ProductLayout {
  explicit ProductLayout(const ProductBatch& batch)
      : vectors(round_up(batch.coefficient_bytes(), kPartAlignment)),
        scales(vectors + round_up(batch.vector_bytes(), kPartAlignment)),
        flag(scales + round_up(batch.scales_bytes(), kPartAlignment)),
        weights(flag + kPartAlignment),
        bytes(weights + batch.weight_bytes()) {}

  i64 vectors = 0;
  i64 scales = 0;
  i64 flag = 0;
  i64 weights = 0;
  i64 bytes = 0;
};

ProductScales scales_of(const RowScales& scales) {
  if (scales.values == nullptr) return ProductScales::None;
  return scales.step == 0 ? ProductScales::OfLines : ProductScales::OfColumns;
}

void put_floats(std::byte* to, const float* from, i64 count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

/// Puts what stands in host memory where add_products() takes it.
void pack_products(const ProductBatch& batch, const ProductLayout& at, std::span<const ProductLine> lines,
                   const ProductVectors& vectors, std::byte* out) {
  const i64 size = dtype_bits(batch.dtype) / 8, pitch = batch.pitch();
  for (i64 i = 0; i < batch.lines; ++i) {
    const ProductLine& line = lines[static_cast<std::size_t>(i)];
    put_floats(out + i * batch.rank * i64{sizeof(float)}, line.coefficients, batch.rank);
    std::memcpy(out + at.weights + i * pitch * size, line.data, static_cast<std::size_t>(batch.cols * size));
    if (batch.scales == ProductScales::OfLines)
      put_floats(out + at.scales + i * i64{sizeof(float)}, line.scales.values, 1);
  }
  for (i64 j = 0; j < batch.rank; ++j)
    put_floats(out + at.vectors + j * pitch * i64{sizeof(float)}, vectors.values + j * vectors.stride, batch.cols);
  if (batch.scales == ProductScales::OfColumns) put_floats(out + at.scales, lines[0].scales.values, batch.cols);
}

/// The means of one caller.
class WeightBuffers {
 public:
  explicit WeightBuffers(int device) : device_(device) {
    const OnCudaDevice on(device_);
    stream_ = std::make_unique<CudaStream>();
    // A spinning wait would take the core that another worker reads with.
    done_ = std::make_unique<CudaEvent>(cudaEventBlockingSync | cudaEventDisableTiming);
  }
  WeightBuffers(const WeightBuffers&) = delete;
  WeightBuffers& operator=(const WeightBuffers&) = delete;
  // After an error the buffers may still be in use.
  ~WeightBuffers() {
    (void)cudaSetDevice(device_);
    (void)cudaStreamSynchronize(stream_->get());
  }

  /// `most_bytes` are not less.
  std::byte* reserve(i64 bytes, i64 most_bytes) {
    if (host_.bytes() >= bytes) return host_.data();
    // Batches differ a little, and page-locking takes longer than a batch.
    const i64 room = std::min(most_bytes, static_cast<i64>(std::bit_ceil(static_cast<u64>(bytes))));
    const OnCudaDevice on(device_);
    host_ = {};
    on_gpu_ = {};
    host_ = PinnedBuffer(room);
    on_gpu_ = DeviceBuffer(room);
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
    bring_back(at.flag, at.bytes);
    return *flag;
  }

  /// Returns the flag.
  u32 add_products(const ProductBatch& batch, const ProductLayout& at) {
    const OnCudaDevice on(device_);
    const cudaStream_t stream = stream_->get();
    auto* const flag = reinterpret_cast<u32*>(host_.data() + at.flag);
    std::byte* const gpu = on_gpu_.data();
    *flag = 0;
    CUDA_CHECK(cudaMemcpyAsync(gpu, host_.data(), static_cast<std::size_t>(at.bytes), cudaMemcpyHostToDevice, stream));
    const ProductBuffers buffers{gpu + at.weights, reinterpret_cast<const float*>(gpu),
                                 reinterpret_cast<const float*>(gpu + at.vectors),
                                 reinterpret_cast<const float*>(gpu + at.scales)};
    glu_ckpt::add_products(batch, buffers, reinterpret_cast<u32*>(gpu + at.flag), stream);
    bring_back(at.flag, at.bytes);
    return *flag;
  }

  const std::byte* data() const { return host_.data(); }

 private:
  /// Copies bytes [begin, end) of the buffer to the host, and waits for them.
  void bring_back(i64 begin, i64 end) {
    CUDA_CHECK(cudaMemcpyAsync(host_.data() + begin, on_gpu_.data() + begin, static_cast<std::size_t>(end - begin),
                               cudaMemcpyDeviceToHost, stream_->get()));
    CUDA_CHECK(cudaEventRecord(done_->get(), stream_->get()));
    CUDA_CHECK(cudaEventSynchronize(done_->get()));
  }

  int device_;
  PinnedBuffer host_;
  DeviceBuffer on_gpu_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaEvent> done_;
};

class GpuWeightDevice final : public WeightDevice {
 public:
  GpuWeightDevice(const std::vector<int>& devices, i64 device_memory_bytes, std::shared_future<void> opened)
      : devices_(devices), most_bytes_(device_memory_bytes / kMostPlaces), opened_(std::move(opened)) {}

  i64 batch_bytes() const override { return std::min(kCellBatchBytes, most_bytes_ / 2); }
  i64 most_bytes() const { return most_bytes_; }

  std::unique_ptr<Place> take_place() override;

  void give_back(std::unique_ptr<WeightBuffers> buffers) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffers));
  }

 private:
  std::vector<int> devices_;
  i64 most_bytes_;
  std::shared_future<void> opened_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WeightBuffers>> free_;
  std::size_t made_ = 0;
};

class GpuWeightPlace final : public WeightDevice::Place {
 public:
  GpuWeightPlace(GpuWeightDevice& device, std::unique_ptr<WeightBuffers> buffers)
      : device_(device), buffers_(std::move(buffers)) {}
  GpuWeightPlace(const GpuWeightPlace&) = delete;
  GpuWeightPlace& operator=(const GpuWeightPlace&) = delete;
  ~GpuWeightPlace() override { device_.give_back(std::move(buffers_)); }

  std::byte* weights_of(const CellBatch& batch) override {
    const CellLayout at(batch);
    return takes_cells(batch) && at.bytes <= device_.most_bytes() ? buffers_->reserve(at.bytes, device_.most_bytes())
                                                                  : nullptr;
  }

  bool encode(const CellBatch& batch, MadeCells& made) override {
    const CellLayout at(batch);
    if (buffers_->encode(batch, at) != 0) return false;
    made.codes = {buffers_->data() + at.codes, static_cast<std::size_t>(batch.code_bytes())};
    made.scales = {buffers_->data() + at.scales, static_cast<std::size_t>(batch.scales_bytes())};
    return true;
  }

  bool add_product(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging,
                   Dtype dtype, i64 count) override {
    if (lines.empty()) return true;
    const ProductBatch batch{merging, dtype, std::ssize(lines), count, vectors.rank, scales_of(lines[0].scales)};
    if (!takes_products(batch)) return false;
    const ProductLayout at(batch);
    if (at.bytes > device_.most_bytes()) return false;
    std::byte* const host = buffers_->reserve(at.bytes, device_.most_bytes());
    pack_products(batch, at, lines, vectors, host);
    if (buffers_->add_products(batch, at) != 0) return false;
    const i64 size = dtype_bits(dtype) / 8;
    for (i64 i = 0; i < batch.lines; ++i)
      std::memcpy(lines[static_cast<std::size_t>(i)].data, host + at.weights + i * batch.pitch() * size,
                  static_cast<std::size_t>(count * size));
    return true;
  }

 private:
  GpuWeightDevice& device_;
  std::unique_ptr<WeightBuffers> buffers_;
};

std::unique_ptr<WeightDevice::Place> GpuWeightDevice::take_place() {
  if (opened_.valid()) {
    if (opened_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return nullptr;
    opened_.get();
  }
  std::size_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<WeightBuffers> buffers = std::move(free_.back());
      free_.pop_back();
      return std::make_unique<GpuWeightPlace>(*this, std::move(buffers));
    }
    if (made_ == static_cast<std::size_t>(kMostPlaces) * devices_.size()) return nullptr;
    number = made_++;
  }
  return std::make_unique<GpuWeightPlace>(*this, std::make_unique<WeightBuffers>(devices_[number % devices_.size()]));
}

}  // namespace

std::shared_ptr<WeightDevice> make_gpu_weight_device(const std::vector<int>& devices, i64 device_memory_bytes,
                                                     std::shared_future<void> opened) {
  return std::make_shared<GpuWeightDevice>(devices, device_memory_bytes, std::move(opened));
}

}  // namespace glu_ckpt
