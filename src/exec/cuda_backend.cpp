/// Conversion through GPUs. Every worker owns a place in a ring: a pinned buffer, first for what was read and then for
/// what will be written, device buffers for both, and a stream. Its steps follow one another: read, upload, kernel,
/// download, write; the workers' steps overlap, so that disk, both directions of the bus, and the kernels are busy at
/// once.

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "exec/backends.hpp"
#include "exec/gpu_weight_device.hpp"
#include "exec/move_parts.hpp"
#include "exec/read_pieces.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/device_copy.hpp"
#include "kernels/common/device_buffer.hpp"

namespace glu_ckpt {
namespace {

/// Workers on one GPU. Fewer leave a disk or the bus idle while a worker is at another step; more wait for each other,
/// since a filesystem lets one at a time write to a file: 4.8 GB of single elements took 1.27 s with 8 workers, 1.23 s
/// with 6 and 1.14 s with 4 from and to a page cache, which never makes a read wait as a disk does.
constexpr int kLeastWorkers = 4;
constexpr int kMostWorkers = 6;
/// Windows start at multiples of this, so that runs which are aligned in the source are aligned on the device.
constexpr i64 kWindowAlignment = 256;

i64 room(const ReadPiece& piece) { return round_up(piece.wanted, kWindowAlignment); }

/// Makes room for `bytes`; what was in it is lost.
template <typename Buffer>
void reserve(Buffer& buffer, i64 bytes) {
  if (buffer.bytes() >= bytes) return;
  buffer = {};
  buffer = Buffer(bytes);
}

/// The whole range as one run, where it is one: it needs no GPU.
const Move* only_run(const std::vector<Move>& parts, i64 bytes) {
  return parts.size() == 1 && parts[0].runs() == 1 && parts[0].run_bytes == bytes ? parts.data() : nullptr;
}

class CudaWorker final : public Backend::Worker {
 public:
  CudaWorker(int device, i64 buffer_bytes) : device_(device), buffer_bytes_(buffer_bytes) {
    CUDA_CHECK(cudaSetDevice(device));
    stream_ = std::make_unique<CudaStream>();
    // A spinning wait would take the core that another worker reads with.
    done_ = std::make_unique<CudaEvent>(cudaEventBlockingSync | cudaEventDisableTiming);
  }
  CudaWorker(const CudaWorker&) = delete;
  CudaWorker& operator=(const CudaWorker&) = delete;
  // The destructor may run on another thread, with another current device, which freeing would open. After an error the
  // buffers may still be in use.
  ~CudaWorker() override {
    (void)cudaSetDevice(device_);
    (void)cudaStreamSynchronize(stream_->get());
  }

  std::span<const std::byte> produce(std::span<const Move> moves, RangeReader& reader, i64 begin, i64 end,
                                     i64 phase) override {
    const i64 bytes = end - begin;
    std::vector<Move> parts;
    for (const Move& move : moves) clip_move(move, begin, end, [&](const Move& part) { parts.push_back(part); });
    if (const Move* run = only_run(parts, bytes)) {
      reserve(host_, bytes + phase);
      const std::span<std::byte> result(host_.data() + phase, static_cast<std::size_t>(bytes));
      std::vector<RangeReader::Run> only = {{run->src, run->src_offset, result}};
      reader.read_runs(only);
      return result;
    }
    for (Move& part : parts) part.dst_offset -= begin;
    const std::vector<ReadPiece> pieces = make_pieces(parts, buffer_bytes_, kWindowAlignment);
    i64 wanted_bytes = 0, largest_piece = 0;
    for (const ReadPiece& piece : pieces) {
      wanted_bytes += room(piece);
      largest_piece = std::max(largest_piece, room(piece));
    }
    // Many pieces of a few bytes are mostly alignment; planned_buffer_bytes() does not count on more.
    const i64 input_bytes = std::min({buffer_bytes_, wanted_bytes, std::max(largest_piece, kMaxReadWaste * bytes)});
    reserve(host_, std::max(bytes + phase, input_bytes));
    reserve(output_, bytes);
    reserve(input_, input_bytes);
    for (const ReadPiece& piece : pieces) load(piece, reader);
    launch();
    // This comes after the upload from the same buffer, since both are on one stream.
    CUDA_CHECK(cudaMemcpyAsync(host_.data() + phase, output_.data(), static_cast<std::size_t>(bytes),
                               cudaMemcpyDeviceToHost, stream_->get()));
    wait();
    return {host_.data() + phase, static_cast<std::size_t>(bytes)};
  }

 private:
  /// Reads what a piece wants into the input buffer, and queues its moves.
  void load(const ReadPiece& piece, RangeReader& reader) {
    if (used_ + room(piece) > input_.bytes()) {
      launch();
      wait();
    }
    if (piece.window)
      read_window(piece, reader);
    else
      read_runs(piece.moves.front(), reader);
    used_ += room(piece);
  }

  void read_window(const ReadPiece& piece, RangeReader& reader) {
    reader.read_window(piece.src, piece.begin, {host_.data() + used_, static_cast<std::size_t>(piece.wanted)},
                       piece.moves);
    for (Move local : piece.moves) {
      local.src = local.dst = 0;
      local.src_offset += used_ - piece.begin;
      queued_.push_back(local);
    }
  }

  void read_runs(const Move& part, RangeReader& reader) {
    Move local = part;
    local.src = local.dst = 0;
    local.src_offset = used_;
    i64 step = part.run_bytes;
    for (std::size_t l = part.dims.size(); l-- > 0;) {
      local.dims[l].src_step = step;
      step *= part.dims[l].count;
    }
    i64 at = used_;
    std::vector<RangeReader::Run> runs;
    for_each_run(part, [&](i64 src, i64) {
      runs.push_back({part.src, src, {host_.data() + at, static_cast<std::size_t>(part.run_bytes)}});
      at += part.run_bytes;
    });
    reader.read_runs(runs);
    queued_.push_back(local);
  }

  /// Starts to upload and execute what is queued. The host buffer may be filled again after wait().
  void launch() {
    if (queued_.empty()) return;
    CUDA_CHECK(cudaMemcpyAsync(input_.data(), host_.data(), static_cast<std::size_t>(used_), cudaMemcpyHostToDevice,
                               stream_->get()));
    const std::byte* const src = input_.data();
    std::byte* const dst = output_.data();
    device_copy(queued_, std::span(&src, 1), std::span(&dst, 1), stream_->get());
    queued_.clear();
    used_ = 0;
  }

  void wait() {
    CUDA_CHECK(cudaEventRecord(done_->get(), stream_->get()));
    CUDA_CHECK(cudaEventSynchronize(done_->get()));
  }

  int device_;
  i64 buffer_bytes_;
  /// Holds what is uploaded, and once that is done what is downloaded: half as much to page-lock, and to keep in cache.
  PinnedBuffer host_;
  DeviceBuffer input_, output_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaEvent> done_;
  std::vector<Move> queued_;
  i64 used_ = 0;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(const std::vector<int>& devices, const BackendOptions& options) : devices_(devices), options_(options) {
    opened_ = std::async(std::launch::async, [devices] {
      if (cuda_device_count() == 0)
        fail(ErrorCode::NoDevice, {}, "cuda:{}: {}; use --device cpu", devices.front(), why_no_cuda());
      for (const int device : devices) {
        (void)cuda_device(device);
        CUDA_CHECK(cudaSetDevice(device));
        CUDA_CHECK(cudaFree(nullptr));
      }
    });
  }

  const std::vector<int>& devices() const { return devices_; }
  void ready() const override { opened_.get(); }
  // A tenth of a second, which would otherwise pass at the program's end.
  void release() override {
    released_ = std::async(std::launch::async, [devices = devices_, opened = opened_] {
      // Nobody may have waited for it.
      opened.wait();
      // A failure changes nothing for a process that is done with the device.
      for (const int device : devices)
        if (cudaSetDevice(device) == cudaSuccess) (void)cudaDeviceReset();
    });
  }
  // A disk takes long direct writes faster than short ones.
  i64 task_bytes(bool) const override { return i64{8} << 20; }
  void copy(std::span<const Move> moves, const std::byte* src, std::byte* dst) const override {
    copy_in_host(moves, src, dst);
  }
  int workers(int jobs) const override {
    const int gpus = static_cast<int>(devices_.size());
    return std::clamp(jobs, kLeastWorkers * gpus, kMostWorkers * gpus);
  }
  i64 buffer_bytes(int workers, i64 memory_bytes) const override {
    const int on_one = (workers + static_cast<int>(devices_.size()) - 1) / static_cast<int>(devices_.size());
    const i64 bytes = std::min(memory_bytes / (2 * workers), options_.device_memory_bytes / (2 * on_one));
    return std::max(kDirectRunBytes, bytes / kWindowAlignment * kWindowAlignment);
  }
  std::unique_ptr<Worker> make_worker(int number, i64 buffer_bytes) const override {
    ready();
    return std::make_unique<CudaWorker>(devices_[static_cast<std::size_t>(number) % devices_.size()], buffer_bytes);
  }
  std::string name() const override {
    std::string name = "cuda";
    char before = ':';
    for (const int device : devices_) {
      name += before;
      name += std::to_string(device);
      before = ',';
    }
    return name;
  }

 protected:
  const std::shared_future<void>& opened() const { return opened_; }

 private:
  std::vector<int> devices_;
  BackendOptions options_;
  std::shared_future<void> opened_;
  std::future<void> released_;
};

/// Codes and merged weights are made on GPUs, and all else is done by the CPU's workers. They do not wait until a GPU
/// is open, which takes as long as encoding gigabytes: the CPU makes the first ones.
class ComputingBackend final : public CudaBackend {
 public:
  ComputingBackend(const std::vector<int>& devices, const BackendOptions& options)
      : CudaBackend(devices, options),
        weights_(make_gpu_weight_device(devices, options.device_memory_bytes, opened())) {}

  // A GPU that is not there is known before it is open.
  void ready() const override {
    if (cuda_device_count() <= std::ranges::max(devices())) opened().get();
  }
  void release() override {
    weights_.reset();
    CudaBackend::release();
  }
  i64 task_bytes(bool short_runs) const override { return cpu_->task_bytes(short_runs); }
  i64 in_cache_bytes() const override { return cpu_->in_cache_bytes(); }
  int workers(int jobs) const override { return cpu_->workers(jobs); }
  int computing(int jobs) const override { return cpu_->computing(jobs); }
  i64 buffer_bytes(int workers, i64 memory_bytes) const override { return cpu_->buffer_bytes(workers, memory_bytes); }
  std::unique_ptr<Worker> make_worker(int number, i64 buffer_bytes) const override {
    return cpu_->make_worker(number, buffer_bytes);
  }
  std::weak_ptr<WeightDevice> weight_device() const override { return weights_; }

 private:
  std::unique_ptr<Backend> cpu_ = make_cpu_backend();
  std::shared_ptr<WeightDevice> weights_;
};

float elapsed_seconds(const CudaEvent& begin, const CudaEvent& end) {
  CUDA_CHECK(cudaEventSynchronize(end.get()));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return milliseconds / 1e3F;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const std::vector<int>& devices, const BackendOptions& options) {
  if (options.computes) return std::make_unique<ComputingBackend>(devices, options);
  return std::make_unique<CudaBackend>(devices, options);
}

std::vector<int> devices_of(const Backend& backend) {
  const auto* const cuda = dynamic_cast<const CudaBackend*>(&backend);
  return cuda != nullptr ? cuda->devices() : std::vector<int>();
}

void copy_off_gpu(int device, const std::byte* from, std::span<std::byte> to) {
  const OnCudaDevice on(device);
  // Whoever made the bytes may have done so on a stream that the default one does not wait for.
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost));
}

void copy_onto_gpu(int device, std::span<const std::byte> from, std::byte* to) {
  const OnCudaDevice on(device);
  CUDA_CHECK(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaDeviceSynchronize());
}

GpuRates measure_gpu(int device) {
  // A [2048, 4096] matrix of 2-byte elements.
  constexpr i64 kRows = 2048, kCols = 4096, kBytes = kRows * kCols * 2;
  GpuRates rates;
  const auto start = std::chrono::steady_clock::now();
  rates.free_bytes = cuda_device(device).free_bytes;
  CUDA_CHECK(cudaSetDevice(device));
  const PinnedBuffer host(kBytes);
  const DeviceBuffer input(kBytes), output(kBytes);
  std::fill_n(host.data(), kBytes, std::byte{1});
  const CudaStream stream;
  const CudaEvent begin, uploaded, turned, end;
  Move transpose;
  transpose.dims[0] = {kCols, 2, kRows * 2};
  transpose.dims[1] = {kRows, kCols * 2, 2};
  transpose.run_bytes = 2;
  const std::byte* const src = input.data();
  std::byte* const dst = output.data();
  // The first round loads the kernel.
  for (int round = 0; round < 2; ++round) {
    if (round == 1)
      rates.open_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    CUDA_CHECK(cudaEventRecord(begin.get(), stream.get()));
    CUDA_CHECK(cudaMemcpyAsync(input.data(), host.data(), kBytes, cudaMemcpyHostToDevice, stream.get()));
    CUDA_CHECK(cudaEventRecord(uploaded.get(), stream.get()));
    device_copy(std::span(&transpose, 1), std::span(&src, 1), std::span(&dst, 1), stream.get());
    CUDA_CHECK(cudaEventRecord(turned.get(), stream.get()));
    CUDA_CHECK(cudaMemcpyAsync(host.data(), output.data(), kBytes, cudaMemcpyDeviceToHost, stream.get()));
    CUDA_CHECK(cudaEventRecord(end.get(), stream.get()));
    CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  }
  rates.upload_bytes_per_second = kBytes / elapsed_seconds(begin, uploaded);
  rates.download_bytes_per_second = kBytes / elapsed_seconds(turned, end);
  rates.transpose_bytes_per_second = kBytes / elapsed_seconds(begin, end);
  return rates;
}

}  // namespace glu_ckpt
