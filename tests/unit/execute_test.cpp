#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <tuple>

#include "core/float_rows.hpp"
#include "exec/backends.hpp"
#include "exec/done_log.hpp"
#include "exec/execute_tasks.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/verify.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

ModelSpec model_of(i64 hidden, i64 width) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = hidden;
  block.widths = widths(4, width);
  block.bias = true;
  block.dtype = Dtype::BF16;
  model.blocks.push_back(block);
  return model;
}

const Spelling kContiguous{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), split()};
const Spelling kGrouped{"hf:qwen3_moe", Experts::Grouped, Experts::Grouped, interleaved(32), split()};
const Spelling kPacked{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};

/// Notes every read, so that a test sees how much was read how often.
class CountingSource final : public Source {
 public:
  explicit CountingSource(const MemorySource& source) : source_(source) {}
  const CheckpointInfo& info() const override { return source_.info(); }
  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return nullptr; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    for (const std::span<std::byte> piece : pieces) {
      bytes += std::ssize(piece);
      largest = std::max(largest.load(), static_cast<i64>(std::ssize(piece)));
    }
    if (fail_after >= 0 && bytes > fail_after) throw Error(ErrorCode::Io, "planted");
    source_.read_scattered(tensor, offset, pieces);
  }
  mutable std::atomic<i64> bytes{0};
  mutable std::atomic<i64> largest{0};
  i64 fail_after = -1;

 private:
  const MemorySource& source_;
};

TEST(Execute, BuffersKeepWithinTheMemoryAllowed) {
  const ModelSpec model = model_of(64, 96);
  const MemorySource source = make_source(model, kContiguous);
  const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, kPacked));
  for (const int jobs : {1, 2, 4}) {
    const CountingSource counting(source);
    MemorySink sink(plan.outputs);
    ExecuteOptions options;
    options.jobs = jobs;
    options.memory_bytes = 64 << 10;
    execute(plan, counting, sink, *make_backend("cpu"), options);
    EXPECT_EQ(sink.first_fault(), "");
    EXPECT_LE(counting.largest, options.memory_bytes / 2);
    EXPECT_LE(planned_buffer_bytes(plan, *make_backend("cpu"), options), options.memory_bytes);
  }
}

/// Where matrices fit into a buffer, a transpose reads its source about once.
TEST(Execute, ReadsAboutOnce) {
  const ModelSpec model = model_of(64, 96);
  const MemorySource source = make_source(model, kContiguous);
  const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, kPacked));
  const CountingSource counting(source);
  MemorySink sink(plan.outputs);
  execute(plan, counting, sink, *make_backend("cpu"), {});
  EXPECT_LE(counting.bytes, 2 * plan.bytes);
}

/// Tasks end between experts, and gate and up in turn are read together: into one tensor from either side, each byte is
/// read once.
TEST(Execute, ReadsOnceWhateverTheTasks) {
  const ModelSpec model = model_of(64, 96);
  for (const auto& [from, to] : {std::pair(kContiguous, kPacked), std::pair(kPacked, kContiguous)}) {
    const MemorySource source = make_source(model, from);
    const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, to));
    for (const i64 memory_bytes : {i64{120'000}, i64{240'000}, i64{1} << 30}) {
      const CountingSource counting(source);
      MemorySink sink(plan.outputs);
      ExecuteOptions options;
      options.memory_bytes = memory_bytes;
      execute(plan, counting, sink, *make_backend("cpu"), options);
      EXPECT_EQ(sink.first_fault(), "");
      EXPECT_EQ(counting.bytes, plan.bytes) << memory_bytes;
    }
  }
}

TEST(Execute, ReportsEveryByteOnce) {
  const ModelSpec model = model_of(64, 96);
  const MemorySource source = make_source(model, kContiguous);
  std::atomic<i64> reported{0};
  ExecuteOptions options;
  options.jobs = 3;
  options.memory_bytes = 30'000;
  options.on_progress = [&](i64 bytes) { reported += bytes; };
  const Converted converted = convert(source, recognize_source(source), options_for(model, kPacked), options);
  EXPECT_EQ(reported, converted.plan.bytes);
  EXPECT_EQ(converted.plan.bytes, source.bytes());
}

/// The same bytes, whatever the number of workers and the memory.
TEST(Execute, FilesTakeTurns) {
  Plan plan;
  for (const u32 shard : {0, 0, 1, 2, 2, 2, 3}) {
    plan.outputs.emplace_back();
    plan.outputs.back().shard = shard;
  }
  std::vector<Task> tasks;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t)
    for (i64 begin = 0; begin < (t == 2 ? 30 : 20); begin += 10) tasks.push_back({t, begin, begin + 10});
  const auto order = [&](int files_at_once) {
    std::string text;
    for (const Task& task : spread_over_files(tasks, plan, files_at_once))
      text += fmt::format("{}{} ", task.tensor, static_cast<char>('a' + task.begin / 10));
    return text;
  };
  EXPECT_EQ(order(1), "0a 0b 1a 1b 2a 2b 2c 3a 3b 4a 4b 5a 5b 6a 6b ");
  EXPECT_EQ(order(2), "0a 2a 0b 2b 1a 2c 1b 3a 6a 3b 6b 4a 4b 5a 5b ");
  EXPECT_EQ(order(9), "0a 2a 3a 6a 0b 2b 3b 6b 1a 2c 4a 1b 4b 5a 5b ");
  EXPECT_TRUE(spread_over_files({}, plan, 4).empty());
}

TEST(Execute, ThreadsThatOnlyWaitAreLeftOutWhereNoWriteWaits) {
  const ModelSpec model = model_of(64, 96);
  const MemorySource source = make_source(model, kContiguous);
  const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, kPacked));
  const auto backend = make_backend("cpu");
  ExecuteOptions options;
  options.jobs = 8;
  EXPECT_EQ(plan_workers(plan, *backend, options).workers, 12);
  EXPECT_EQ(plan_workers(plan, *backend, options).part_bytes, 0);
  options.writes_wait = false;
  EXPECT_EQ(plan_workers(plan, *backend, options).workers, 8);
  EXPECT_EQ(plan_workers(plan, *backend, options).part_bytes, backend->in_cache_bytes());
}

/// Notes the longest write.
class MeasuredSink final : public Sink {
 public:
  explicit MeasuredSink(MemorySink& sink) : sink_(sink) {}
  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override {
    longest = std::max(longest, static_cast<i64>(std::ssize(bytes)));
    sink_.write(tensor, offset, bytes);
  }
  i64 file_offset(std::size_t tensor) const override { return sink_.file_offset(tensor); }
  i64 longest = 0;

 private:
  MemorySink& sink_;
};

/// The bytes and the sums are those of long writes.
TEST(Execute, WritesToMemoryWhatACacheHolds) {
  const ModelSpec model = model_of(1024, 512);
  const MemorySource source = make_source(model, kContiguous);
  const Recognition recognition = recognize_source(source);
  const Plan plan = make_plan(source.inventory(), recognition, options_for(model, kGrouped));
  const ModelLeaves leaves(source.inventory(), recognition);
  const auto backend = make_backend("cpu");
  ASSERT_GT(plan.outputs[0].bytes, 4 * backend->in_cache_bytes());
  const auto written = [&](bool writes_wait) {
    ExecuteOptions options;
    options.writes_wait = writes_wait;
    options.source_leaves = &leaves;
    MemorySink sink(plan.outputs);
    MeasuredSink measured(sink);
    const RangeSums sums = execute(plan, source, measured, *backend, options);
    EXPECT_EQ(sink.first_fault(), "");
    EXPECT_EQ(sums.source.bytes, plan.bytes);
    return std::tuple(measured.longest, sums, sink.tensors());
  };
  const auto [long_writes, sums, tensors] = written(true);
  const auto [short_writes, same_sums, same] = written(false);
  EXPECT_GT(long_writes, backend->in_cache_bytes());
  EXPECT_EQ(short_writes, backend->in_cache_bytes());
  EXPECT_EQ(same_sums, sums);
  EXPECT_TRUE(same_tensors(same, tensors));
}

TEST(Execute, IsDeterministic) {
  const ModelSpec model = model_of(33, 12);
  const MemorySource source = make_source(model, kContiguous);
  const Recognition recognition = recognize_source(source);
  const Converted first = convert(source, recognition, options_for(model, kPacked));
  for (int jobs = 1; jobs <= 4; ++jobs) {
    ExecuteOptions options;
    options.jobs = jobs;
    options.memory_bytes = 8 << 10;
    EXPECT_TRUE(
        same_tensors(first.tensors, convert(source, recognition, options_for(model, kPacked), options).tensors));
  }
}

/// Every seventh element of a tensor, of `element_bytes`, is NaN.
class NanSource final : public Source {
 public:
  NanSource(const MemorySource& source, i64 element_bytes) : source_(source), element_bytes_(element_bytes) {}
  const CheckpointInfo& info() const override { return source_.info(); }
  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return nullptr; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    source_.read_scattered(tensor, offset, pieces);
    for (const std::span<std::byte> piece : pieces)
      for (std::byte& byte : piece)
        if (offset++ / element_bytes_ % 7 == 0) byte = std::byte{0xff};
  }

 private:
  const MemorySource& source_;
  i64 element_bytes_;
};

/// Each NaN of the outputs that are asked for is counted once, though buffers end within elements.
void expect_nans_counted_once(Dtype dtype, const Spelling& to) {
  ModelSpec model = model_of(64, 96);
  model.blocks[0].dtype = dtype;
  const MemorySource stored = make_source(model, kContiguous);
  const NanSource source(stored, dtype_bits(dtype) / 8);
  const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, to));
  ExecuteOptions options;
  MemorySink sink(plan.outputs);
  EXPECT_EQ(execute(plan, source, sink, *make_backend("cpu"), options).nans, 0) << "nobody asks";
  for (std::size_t t = 0; t < plan.outputs.size(); t += 2)
    if (plan.outputs[t].dtype == dtype) options.count_nans_of.push_back(t);
  i64 expected = 0;
  for (const std::size_t t : options.count_nans_of) expected += count_not_finite(sink.tensors()[t].bytes, dtype);
  EXPECT_GT(expected, 0);
  for (const i64 memory_bytes : {i64{1} << 30, i64{30'001}, i64{60'006}})
    for (options.jobs = 1; options.jobs <= 3; ++options.jobs) {
      options.memory_bytes = memory_bytes;
      DoneLog log(nullptr, nullptr, DoneLog::Kept::Ranges);
      options.log = &log;
      MemorySink again(plan.outputs);
      EXPECT_EQ(execute(plan, source, again, *make_backend("cpu"), options).nans, expected) << memory_bytes;
      i64 of_ranges = 0, of_outputs = 0;
      for (const DoneRange& range : log.take()) of_ranges += range.sums.nans;
      for (const auto& [output, nans] : log.moved().nans) of_outputs += nans;
      EXPECT_EQ(of_ranges, expected);
      EXPECT_EQ(of_outputs, expected);
      EXPECT_TRUE(log.take().empty());
    }
}

TEST(Execute, CountsNansOnce) {
  const Spelling grouped{"megatron", Experts::Grouped, Experts::Grouped, contiguous(), split()};
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
    for (const Spelling& to : {kPacked, grouped}) expect_nans_counted_once(dtype, to);
}

TEST(Execute, AFailureInAWorkerComesOut) {
  const ModelSpec model = model_of(64, 96);
  const MemorySource source = make_source(model, kContiguous);
  const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, kPacked));
  for (const int jobs : {1, 4}) {
    CountingSource counting(source);
    counting.fail_after = 10'000;
    MemorySink sink(plan.outputs);
    ExecuteOptions options;
    options.jobs = jobs;
    options.memory_bytes = 16 << 10;
    expect_error(
        ErrorCode::Io, [&] { execute(plan, counting, sink, *make_backend(test_device()), options); }, "planted");
  }
}

/// NaN payloads, negative zeros and subnormals are bits like any others.
TEST(Execute, MovesBitsAndComputesNothing) {
  const std::vector<std::uint32_t> patterns{0x7fc00001, 0x7f800001, 0xffc12345, 0x80000000,
                                            0x00000001, 0x807fffff, 0x7f7fffff, 0xff800000};
  ModelSpec model = model_of(8, 4);
  model.blocks[0].dtype = Dtype::F32;
  std::vector<MemoryTensor> tensors = build(model, kContiguous);
  for (MemoryTensor& tensor : tensors)
    for (std::size_t i = 0; i < tensor.bytes.size() / 4; ++i)
      std::memcpy(&tensor.bytes[4 * i], &patterns[i % patterns.size()], 4);
  const MemorySource source(tensors, {}, record_of(model, kContiguous));
  const Converted there = convert(source, recognize_source(source), options_for(model, kPacked));
  const MemorySource middle(there.tensors, {}, record_of(model, kPacked));
  EXPECT_EQ(digest_of(source), digest_of(middle));
  const Converted back = convert(middle, recognize_source(middle), options_for(model, kContiguous));
  EXPECT_TRUE(same_tensors(tensors, back.tensors));
}

TEST(Execute, GatherAnyRange) {
  const ModelSpec model = model_of(5, 12);
  const MemorySource source = make_source(model, kContiguous);
  const Converted whole = convert(source, recognize_source(source), options_for(model, kPacked));
  HostBuffer scratch;
  for (std::size_t t = 0; t < whole.plan.outputs.size(); ++t) {
    const std::span<const Move> moves(whole.plan.moves.data() + whole.plan.first_move[t],
                                      whole.plan.moves.data() + whole.plan.first_move[t + 1]);
    const i64 bytes = whole.plan.outputs[t].bytes;
    for (i64 begin = 0; begin <= bytes; begin += 7)
      for (const i64 length : {0, 1, 2, 3, 50, 333}) {
        const i64 end = std::min(bytes, begin + length);
        std::vector<std::byte> out(static_cast<std::size_t>(end - begin) + 1, std::byte{0x5A});
        RangeReader reader(source);
        gather(moves, reader, *make_backend("cpu"), begin, end, out.data(), scratch, 4096);
        EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, whole.tensors[t].bytes.begin() + begin));
        EXPECT_EQ(out.back(), std::byte{0x5A});
      }
  }
}

/// Every byte of an even index: windows are twice as long as what is wanted of them.
TEST(Execute, ScratchGrowsNoFurtherThanAllowed) {
  constexpr i64 kScratchBytes = 60'000;
  const MemorySource source({{"a", Dtype::U8, {100'000}, std::vector<std::byte>(100'000)}}, {}, {});
  HostBuffer scratch;
  std::vector<std::byte> out(100'000);
  for (i64 count = 1000; count <= 30'000; count += 9000) {
    Move move;
    move.dims[0] = {count, 2, 1};
    move.run_bytes = 1;
    RangeReader reader(source);
    gather(std::span(&move, 1), reader, *make_backend("cpu"), 0, count, out.data(), scratch, kScratchBytes);
    EXPECT_GE(scratch.bytes(), count);
    EXPECT_LE(scratch.bytes(), kScratchBytes);
  }
}

/// The promise of a plan: what its workers will have allocated, windows with gaps included.
TEST(Execute, PlannedBuffersHoldWhatIsRead) {
  const ModelSpec model = model_of(64, 96);
  const MemorySource source = make_source(model, kPacked);
  const Spelling apart{"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()};
  const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, apart));
  const CountingSource counting(source);
  MemorySink sink(plan.outputs);
  const ExecuteOptions options;
  i64 largest_output = 0;
  for (const OutputTensor& output : plan.outputs) largest_output = std::max(largest_output, output.bytes);
  execute(plan, counting, sink, *make_backend("cpu"), options);
  EXPECT_GT(counting.largest, largest_output);
  EXPECT_LE(largest_output + counting.largest, planned_buffer_bytes(plan, *make_backend("cpu"), options));
}

TEST(Execute, Backends) {
  EXPECT_EQ(make_backend("cpu")->name(), "cpu");
  for (const char* unknown : {"tpu", "cuda:", "cuda:-1", "cuda:1x", "cudaa", "cuda:all2"})
    expect_error(
        ErrorCode::Usage, [&] { make_backend(unknown); }, unknown);
  expect_error(ErrorCode::NoDevice, [] { make_backend(fmt::format("cuda:{}", cuda_device_count()))->ready(); });
  if (cuda_device_count() > 0) return;
  expect_error(ErrorCode::NoDevice, [] { make_backend("cuda")->ready(); });
  expect_error(ErrorCode::NoDevice, [] { make_backend("cuda:all"); });
  EXPECT_EQ(choose_device(i64{1} << 40, 1).device, "cpu");
}

/// Where there is nothing to gain, no GPU is asked: the reason is the same on every machine.
TEST(Execute, LittleToGatherNeedsNoGpu) {
  for (const i64 bytes : {i64{0}, i64{1}, i64{1} << 20}) {
    const DeviceChoice choice = choose_device(bytes, 1);
    EXPECT_EQ(choice.device, "cpu");
    EXPECT_NE(choice.reason.find("a GPU"), std::string::npos) << choice.reason;
  }
}

TEST(Execute, AutoTakesTheFasterDevice) {
  GpuRates rates;
  rates.transpose_bytes_per_second = 8e9;
  rates.free_bytes = 1000;
  const auto measure = [&] { return rates; };
  EXPECT_EQ(faster_device(1e9, 7, 1000, measure).device, "cuda:0");
  EXPECT_EQ(faster_device(1e9, 9, 1000, measure).device, "cpu");
  EXPECT_EQ(faster_device(1e9, 7, 1001, measure).device, "cpu");
}

TEST(Execute, AutoDoesWithoutAGpuThatFails) {
  const DeviceChoice choice =
      faster_device(1e9, 1, 0, []() -> GpuRates { throw Error(ErrorCode::NoMemory, "planted"); });
  EXPECT_EQ(choice.device, "cpu");
  EXPECT_NE(choice.reason.find("planted"), std::string::npos) << choice.reason;
}

}  // namespace
}  // namespace glu_ckpt
