/// The GPU backend by itself: what it may use, what it gives back, and what it says when a call fails.

#include <fmt/format.h>

#include <algorithm>

#include "exec/backends.hpp"
#include "fake_cuda/fake_runtime.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

const Spelling kContiguous{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), split()};
const Spelling kPacked{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};
const Spelling kApart{"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()};
const Spelling kBlocks{"megatron", Experts::Grouped, Experts::Grouped, interleaved(32), split()};

/// Rows are multiples of 256 bytes, so that windows need no alignment.
ModelSpec model_of(i64 hidden, i64 width) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = hidden;
  block.widths = widths(3, width);
  block.bias = true;
  block.dtype = Dtype::BF16;
  model.blocks.push_back(block);
  return model;
}

/// One conversion, made ready.
struct Job {
  MemorySource source;
  Plan plan;
  std::vector<MemoryTensor> expected;

  Job(const ModelSpec& model, const Spelling& from, const Spelling& to)
      : source(make_source(model, from)),
        plan(make_plan(source.inventory(), recognize_source(source), options_for(model, to))),
        expected(build(model, to)) {}

  ::testing::AssertionResult runs(const Backend& backend, const ExecuteOptions& options) const {
    MemorySink sink(plan.outputs);
    execute(plan, source, sink, backend, options);
    if (const std::string fault = sink.first_fault(); !fault.empty()) return ::testing::AssertionFailure() << fault;
    return same_tensors(expected, sink.tensors());
  }

  const std::vector<std::byte>& expected_first() const {
    return std::ranges::find(expected, plan.outputs[0].name, &MemoryTensor::name)->bytes;
  }

  /// The first output, by a worker of its own.
  std::vector<std::byte> first_tensor(const Backend& backend, int worker, i64 buffer_bytes) const {
    const std::span moves(plan.moves.data(), plan.moves.data() + plan.first_move[1]);
    const auto made = backend.make_worker(worker, buffer_bytes);
    RangeReader reader(source);
    const auto bytes = made->produce(moves, reader, 0, plan.outputs[0].bytes, 0);
    return {bytes.begin(), bytes.end()};
  }
};

ExecuteOptions options_of(int jobs, i64 memory_bytes) {
  ExecuteOptions options;
  options.jobs = jobs;
  options.memory_bytes = memory_bytes;
  return options;
}

/// Small enough for many flushes in one task.
constexpr i64 kLittleMemory = i64{256} << 10;
/// Holds any tensor whole.
constexpr i64 kLargeBuffer = i64{16} << 20;

/// Either the planned failure is met, and comes out as `code` with `word`, or all bytes are right. Leaves nothing.
void expect_failure(const Job& job, const std::string& device, const ExecuteOptions& options, ErrorCode code,
                    const std::string& word) {
  try {
    EXPECT_TRUE(job.runs(*make_backend(device), options));
    EXPECT_FALSE(fake_cuda::call_failed());
  } catch (const Error& error) {
    EXPECT_TRUE(fake_cuda::call_failed());
    EXPECT_EQ(slug(error.code()), slug(code)) << error.what();
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  EXPECT_EQ(fake_cuda::live_objects(), 0);
  EXPECT_EQ(fake_cuda::take_offences(), std::vector<std::string>{});
}

TEST(CudaBackend, KeepsWithinTheMemoryAllowed) {
  const ModelSpec model = model_of(128, 256);
  for (const Spelling& from : {kContiguous, kPacked, kApart, kBlocks})
    for (const Spelling& to : {kContiguous, kPacked, kApart, kBlocks}) {
      const Job job(model, from, to);
      for (const std::string device : {"cuda:0", "cuda:1", "cuda:all"})
        for (const int jobs : {1, 16})
          for (const i64 memory : {kLittleMemory, i64{1} << 20, i64{64} << 20})
            for (const i64 device_memory : {kLittleMemory, i64{16} << 20}) {
              SCOPED_TRACE(fmt::format("{} -> {}, {}, {} jobs, {} and {} bytes", from.describe(), to.describe(), device,
                                       jobs, memory, device_memory));
              fake_cuda::start();
              const auto backend = make_backend(device, {device_memory});
              const ExecuteOptions options = options_of(jobs, memory);
              ASSERT_TRUE(job.runs(*backend, options));
              EXPECT_LE(fake_cuda::device_usage(0).peak_bytes, device == "cuda:1" ? 0 : device_memory);
              EXPECT_LE(fake_cuda::device_usage(1).peak_bytes, device == "cuda:0" ? 0 : device_memory);
              const i64 planned = planned_buffer_bytes(job.plan, *backend, options);
              EXPECT_LE(fake_cuda::pinned_usage().peak_bytes, planned);
              EXPECT_LE(planned, memory);
              ASSERT_EQ(fake_cuda::take_offences(), std::vector<std::string>{});
            }
    }
}

/// Every piece comes from a tensor of its own: aligned on the device, they are many times what is wanted.
TEST(CudaBackend, PiecesOfAFewBytesAreNotMostlyAlignment) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = 1;
  block.widths = widths(256, 2);
  block.bias = true;
  block.dtype = Dtype::U8;
  model.blocks.push_back(block);
  const Job job(model, kContiguous, {"megatron", Experts::Grouped, Experts::Grouped, contiguous(), split()});
  const auto backend = make_backend("cuda:0");
  EXPECT_TRUE(job.runs(*backend, {}));
  EXPECT_LE(fake_cuda::pinned_usage().peak_bytes, planned_buffer_bytes(job.plan, *backend, {}));
}

/// What is downloaded takes the place of what was uploaded; nothing is page-locked for both.
TEST(CudaBackend, AWorkerPageLocksOneBuffer) {
  const Job job(model_of(128, 256), kContiguous, kPacked);
  const auto backend = make_backend("cuda:0");
  // Dense windows: as many bytes are read as are written.
  EXPECT_TRUE(job.first_tensor(*backend, 0, kLargeBuffer) == job.expected_first());
  EXPECT_EQ(fake_cuda::pinned_usage().peak_bytes, job.plan.outputs[0].bytes);
}

TEST(CudaBackend, WorkersTakeTurnsOnTheGpus) {
  const Job job(model_of(128, 256), kContiguous, kPacked);
  const auto backend = make_backend("cuda:all");
  EXPECT_EQ(backend->name(), "cuda:0,1");
  for (int number = 0; number < 4; ++number) {
    fake_cuda::start();
    EXPECT_TRUE(job.first_tensor(*backend, number, kLargeBuffer) == job.expected_first());
    EXPECT_GT(fake_cuda::device_usage(number % 2).peak_bytes, 0);
    EXPECT_EQ(fake_cuda::device_usage(1 - number % 2).peak_bytes, 0);
  }
}

TEST(CudaBackend, DevicesThatAreNotThere) {
  expect_error(
      ErrorCode::NoDevice, [] { make_backend("cuda:2")->ready(); }, "cuda:2: there are 2 devices here");
  fake_cuda::start(1);
  EXPECT_EQ(make_backend("cuda:all")->name(), "cuda:0");
  expect_error(
      ErrorCode::NoDevice, [] { make_backend("cuda:1")->make_worker(0, 4096); }, "there are 1 devices");
  fake_cuda::start(0);
  expect_error(
      ErrorCode::NoDevice, [] { make_backend("cuda:all"); }, "use --device cpu");
  expect_error(
      ErrorCode::NoDevice, [] { make_backend("cuda")->ready(); }, "use --device cpu");
}

/// What is wanted and what is free, whichever of a worker's three buffers does not fit.
TEST(CudaBackend, NoMemoryNamesTheAmounts) {
  const Job job(model_of(128, 256), kContiguous, kPacked);
  const auto backend = make_backend("cuda:0");
  const i64 output = job.plan.outputs[0].bytes;
  const auto expect_sentence = [&](const std::string& sentence) {
    expect_error(
        ErrorCode::NoMemory, [&] { job.first_tensor(*backend, 0, kLargeBuffer); }, sentence);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(fake_cuda::live_objects(), 0);
  };
  const i64 total = fake_cuda::kDeviceBytes;
  fake_cuda::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  expect_sentence(fmt::format("device memory: {} bytes are needed and {} of {} are free", output, total, total));
  // Dense windows: as many bytes are read as are written.
  fake_cuda::fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  expect_sentence(
      fmt::format("device memory: {} bytes are needed and {} of {} are free", output, total - output, total));
  fake_cuda::limit_pinned(output - 1);
  expect_sentence(fmt::format("page-locked host memory: {} bytes are needed; lower --max-memory", output));
}

TEST(CudaBackend, NoMemoryAtAnyAllocation) {
  const Job job(model_of(128, 256), kContiguous, kPacked);
  const ExecuteOptions options = options_of(2, kLittleMemory);
  for (const char* device : {"cuda:0", "cuda:all"})
    for (int nth = 1; nth <= 20; ++nth) {
      SCOPED_TRACE(fmt::format("{}: cudaMalloc {}", device, nth));
      fake_cuda::start();
      fake_cuda::fail_call("cudaMalloc", nth, cudaErrorMemoryAllocation);
      expect_failure(job, device, options, ErrorCode::NoMemory, "bytes are needed");
      // One worker does everything where the others start late: it needs an input and an output.
      EXPECT_TRUE(fake_cuda::call_failed() || nth > 2);
    }
}

/// What CUDA does not lock is asked of CUDA itself.
TEST(CudaBackend, HostMemoryThatCannotBeRegistered) {
  const Job job(model_of(512, 1024), kContiguous, kPacked);
  for (const char* device : {"cuda:0", "cuda:all"})
    for (int nth = 1; nth <= 3; ++nth) {
      SCOPED_TRACE(fmt::format("{}: cudaHostRegister {}", device, nth));
      fake_cuda::start();
      fake_cuda::fail_call("cudaHostRegister", nth, cudaErrorNotSupported);
      EXPECT_TRUE(job.runs(*make_backend(device), options_of(2, i64{64} << 20)));
      EXPECT_TRUE(fake_cuda::call_failed() || nth > 1);
      EXPECT_EQ(fake_cuda::live_objects(), 0);
      EXPECT_EQ(fake_cuda::take_offences(), std::vector<std::string>{});
    }
}

/// A failure comes out with the name of the call, wherever a worker is; its copies end before its buffers are freed.
TEST(CudaBackend, AFailingCallIsNamed) {
  const Job job(model_of(128, 256), kContiguous, kPacked);
  const ExecuteOptions options = options_of(2, kLittleMemory);
  // A worker's end calls cudaSetDevice and cudaFree too, and has nobody to tell. The first four and two calls are made
  // while the devices open, the fifth by the first worker; the others may start after it has ended.
  const std::pair<const char*, int> calls[] = {{"cudaSetDevice", 5},
                                               {"cudaFree", 2},
                                               {"cudaMemGetInfo", 2},
                                               {"cudaStreamCreateWithFlags", 4},
                                               {"cudaEventCreateWithFlags", 4},
                                               {"cudaMalloc", 12},
                                               {"cudaMemcpyAsync", 12},
                                               {"device_copy", 12},
                                               {"cudaEventRecord", 12},
                                               {"cudaEventSynchronize", 12}};
  for (const auto& [call, most] : calls)
    for (int nth = 1; nth <= most; ++nth) {
      SCOPED_TRACE(fmt::format("{} {}", call, nth));
      fake_cuda::start();
      fake_cuda::fail_call(call, nth, cudaErrorLaunchFailure);
      expect_failure(job, "cuda:all", options, ErrorCode::DeviceFailed, call);
      EXPECT_TRUE(fake_cuda::call_failed() || nth > 1);
    }
}

TEST(CudaBackend, ReleaseAfterUse) {
  const Job job(model_of(128, 256), kContiguous, kPacked);
  for (const char* device : {"cuda:1", "cuda:all"}) {
    fake_cuda::start();
    auto backend = make_backend(device);
    EXPECT_TRUE(job.runs(*backend, options_of(4, kLittleMemory)));
    EXPECT_EQ(fake_cuda::device_resets(0) + fake_cuda::device_resets(1), 0);
    backend->release();
    backend.reset();
    EXPECT_EQ(fake_cuda::device_resets(0), std::string(device) == "cuda:1" ? 0 : 1);
    EXPECT_EQ(fake_cuda::device_resets(1), 1);
  }
  // Nothing is to be done about a failure.
  auto backend = make_backend("cuda:0");
  fake_cuda::fail_call("cudaDeviceReset", 1, cudaErrorLaunchFailure);
  backend->release();
  backend.reset();
  EXPECT_TRUE(fake_cuda::call_failed());
}

TEST(CudaBackend, IsMeasured) {
  const GpuRates rates = measure_gpu(1);
  EXPECT_EQ(rates.free_bytes, fake_cuda::kDeviceBytes);
  // The fake's events are a millisecond apart.
  EXPECT_EQ(rates.transpose_bytes_per_second, rates.upload_bytes_per_second);
  EXPECT_EQ(rates.transpose_bytes_per_second, rates.download_bytes_per_second);
  EXPECT_GT(rates.transpose_bytes_per_second, 0);
  EXPECT_EQ(fake_cuda::device_usage(0).peak_bytes, 0);
  for (int nth = 1; nth <= 2; ++nth) {
    fake_cuda::fail_call("cudaMalloc", nth, cudaErrorMemoryAllocation);
    expect_error(
        ErrorCode::NoMemory, [] { measure_gpu(0); }, "16777216 bytes are needed");
    EXPECT_EQ(fake_cuda::live_objects(), 0);
  }
}

}  // namespace
}  // namespace glu_ckpt
