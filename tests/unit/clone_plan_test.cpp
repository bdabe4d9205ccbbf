#include "exec/clone_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "core/compare_names.hpp"
#include "exec/done_log.hpp"
#include "exec/execute_tasks.hpp"
#include "format/staged_output.hpp"
#include "io/file.hpp"
#include "plan/draft_outputs.hpp"
#include "support/convert.hpp"
#include "support/memory_system.hpp"
#include "verify/sample_rows.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr CloneLimits kAll{4096, 0, 0};

/// Rows of 1 KiB in matrices of 40 and 20 KiB, so that runs begin and end within blocks.
ModelSpec model_of() {
  ModelSpec model;
  for (const i64 layer : {0, 1}) {
    BlockSpec block;
    block.layer = layer;
    block.hidden = 512;
    block.widths = widths(6, 40);
    block.bias = true;
    block.dtype = Dtype::BF16;
    model.blocks.push_back(block);
  }
  model.others = other_tensors();
  MemoryTensor embedding{"embedding.word_embeddings.weight", Dtype::U8, {50'000}, {}};
  for (std::size_t i = 0; i < 50'000; ++i) embedding.bytes.push_back(static_cast<std::byte>(i * 31 + i / 251));
  model.others.push_back(embedding);
  return model;
}

const Spelling kIndexed{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), split()};
const Spelling kGrouped{"megatron", Experts::Grouped, Experts::Grouped, contiguous(), split()};
const Spelling kTurned{"megatron", Experts::Grouped, Experts::Grouped, interleaved(8), split()};
const Spelling kPacked{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};

/// A source whose tensors are said to lie elsewhere than they do.
class MovedSource final : public Source, public FileBacked {
 public:
  MovedSource(const Source& source, i64 shift) : source_(source), shift_(shift) {}
  const CheckpointInfo& info() const override { return source_.info(); }
  const ContentCheck* content_check() const override { return source_.content_check(); }
  const FileBacked* file_backed() const override { return this; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    source_.read_scattered(tensor, offset, pieces);
  }
  FilePlace place(std::size_t tensor) const override {
    FilePlace place = source_.file_backed()->place(tensor);
    place.offset += shift_;
    return place;
  }
  bool reads_past_cache(std::size_t tensor) const override { return source_.file_backed()->reads_past_cache(tensor); }
  void keep_in_cache() const override { source_.file_backed()->keep_in_cache(); }

 private:
  const Source& source_;
  i64 shift_;
};

class CloneTest : public testing::Test {
 protected:
  CloneTest() : scope_(disk_) { disk_.allow_clone(true); }

  /// A checkpoint of the model, on the disk, layer by layer in shards of at most so many bytes.
  void put(const std::string& path, const Spelling& spelling, i64 max_shard_bytes = 400'000) {
    std::vector<MemoryTensor> tensors = build(model_, spelling);
    std::ranges::sort(tensors, {}, [](const MemoryTensor& tensor) { return natural_key(tensor.name); });
    const MemorySource from(std::move(tensors), {}, record_of(model_, spelling));
    PlanOptions options;
    options.force = true;
    options.max_shard_bytes = max_shard_bytes;
    const Plan plan = make_plan(from.inventory(), recognize_source(from), options);
    OutputOptions to;
    to.path = path;
    to.record = from.record();
    const auto sink = create_output(to, plan.outputs);
    (void)execute(plan, from, *sink, *backend_, {});
    sink->finish(from.record());
    sink->commit();
  }

  struct Made {
    Plan plan;
    i64 bytes_to_clone = 0;
    i64 bytes_cloned = 0;
    i64 bytes_written = 0;
  };

  Made convert(const Source& source, const std::string& path, const Spelling& to, const CloneLimits& limits,
               ExecuteOptions execution = {}, bool clone = true, i64 max_shard_bytes = 500'000) {
    Made made;
    PlanOptions options = options_for(model_, to);
    options.max_shard_bytes = max_shard_bytes;
    made.plan = make_plan(source.inventory(), recognize_source(source), options);
    made.plan.data_phases = choose_data_phases(source.inventory(), made.plan);
    ClonePlan clones(made.plan, source, limits, [&](const File&) { return clone; });
    made.bytes_to_clone = clones.bytes();
    OutputOptions sink_options;
    sink_options.path = path;
    sink_options.record = record_of(model_, to);
    sink_options.data_phases = made.plan.data_phases;
    sink_options.cloned_shards = clones.shards();
    const auto sink = create_output(sink_options, made.plan.outputs);
    clone_ranges(clones, made.plan, source, *sink, execution);
    execution.clones = &clones;
    (void)execute(made.plan, source, *sink, *backend_, execution);
    sink->finish(sink_options.record);
    made.bytes_written = sink->bytes_written();
    made.bytes_cloned = clones.bytes();
    sink->commit();
    return made;
  }

  static std::vector<MemoryTensor> tensors_of(const Source& source) {
    std::vector<MemoryTensor> tensors;
    for (const TensorRef& tensor : source.inventory().tensors) {
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
      tensors.back().bytes.resize(static_cast<std::size_t>(tensor.bytes));
      source.read(tensors.size() - 1, 0, tensors.back().bytes);
    }
    return tensors;
  }

  /// Of all tensors of the output that the limits reach, by both models' own placements.
  Sample sample(const std::string& a, const std::string& b, const SampleLimits& limits = {}, u64 seed = 0) {
    const auto left = open_source(a), right = open_source(b);
    const Recognition left_recognition = recognize_source(*left), right_recognition = recognize_source(*right);
    std::vector<std::size_t> all(right->inventory().tensors.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return sample_rows({left.get(), &left_recognition}, {right.get(), &right_recognition}, all, *backend_, {}, seed,
                       limits);
  }

  MemorySystem disk_;
  SystemCallsScope scope_;
  ModelSpec model_ = model_of();
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

TEST_F(CloneTest, GivesTheBytesThatWritingGives) {
  for (const auto& [from, to] : {std::pair(kIndexed, kGrouped), std::pair(kGrouped, kIndexed),
                                 std::pair(kIndexed, kTurned), std::pair(kTurned, kPacked)}) {
    SCOPED_TRACE(from.describe() + "  ->  " + to.describe());
    put("/source", from);
    const auto source = open_source("/source");
    const auto before = tensors_of(*source);
    const Made made = convert(*source, "/cloned", to, kAll);
    const Made plain = convert(*source, "/written", to, kAll, {}, false);
    EXPECT_GT(made.bytes_to_clone, 0);
    EXPECT_EQ(made.bytes_cloned, made.bytes_to_clone);
    EXPECT_EQ(plain.bytes_to_clone, 0);
    EXPECT_EQ(made.bytes_written + made.bytes_to_clone - plain.bytes_written,
              std::ssize(*disk_.get("/cloned/glu_ckpt.json")) - std::ssize(*disk_.get("/written/glu_ckpt.json")));
    EXPECT_TRUE(same_tensors(build(model_, to), tensors_of(*open_source("/cloned"))));
    EXPECT_TRUE(same_tensors(before, tensors_of(*open_source("/source"))));
    const auto written = open_source("/written");
    for (const std::string& file : written->inventory().files)
      EXPECT_EQ(disk_.get("/cloned/" + file), disk_.get("/written/" + file));
    for (const std::string path : {"/source", "/cloned", "/written"}) (void)remove_own(path, Own::MadeHere);
  }
}

/// Files of three layers and a part, with a tensor of an odd size beside each layer, onto shards of about as
/// much.
TEST_F(CloneTest, MostOfACheckpointOfSeveralFilesIsCloned) {
  model_.others.clear();
  model_.blocks.resize(1);
  model_.blocks[0].bias = false;
  for (i64 layer = 0; layer < 12; ++layer) {
    if (layer > 0) model_.blocks.push_back(model_.blocks[0]);
    model_.blocks.back().layer = layer;
    const i64 elements = 132 + 4 * layer;
    model_.others.push_back({fmt::format("model.layers.{}.norm.weight", layer), Dtype::BF16, {elements}, {}});
    model_.others.back().bytes.resize(2 * static_cast<std::size_t>(elements), static_cast<std::byte>(layer));
  }
  put("/source", {"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()}, 2'500'000);
  const Made made = convert(*open_source("/source"), "/out", kGrouped, kAll, {}, true, 2'700'000);
  ASSERT_GE(made.plan.num_shards, 4U);
  // A fifteenth are the ends of runs.
  EXPECT_GT(10 * made.bytes_to_clone, 7 * made.plan.bytes) << made.bytes_to_clone << " of " << made.plan.bytes;
}

/// Of each tensor, and of each range that an earlier run did, all bytes are there once.
TEST_F(CloneTest, WhatIsDoneIsLeftOut) {
  put("/source", kIndexed);
  const auto source = open_source("/source");
  const Made whole = convert(*source, "/whole", kTurned, kAll);
  ExecuteOptions execution;
  DoneLog log(nullptr, nullptr, DoneLog::Kept::Ranges);
  execution.log = &log;
  for (std::size_t t = 0; t < whole.plan.outputs.size(); t += 2)
    if (const i64 bytes = whole.plan.outputs[t].bytes; bytes > 50)
      for (const auto& [begin, end] : {std::pair(i64{0}, bytes / 50), std::pair(bytes / 3, bytes / 2)})
        execution.done.push_back({t, begin, end, {}});
  const Made rest = convert(*source, "/rest", kTurned, kAll, execution);
  for (const DoneRange& range : log.take())
    for (const DoneRange& done : execution.done)
      EXPECT_FALSE(range.tensor == done.tensor && range.begin < done.end && done.begin < range.end);
  // All else is in place.
  const auto expected = tensors_of(*open_source("/whole"));
  const auto found = tensors_of(*open_source("/rest"));
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t t = 0; t < whole.plan.outputs.size(); ++t) {
    const auto named = [&](const MemoryTensor& tensor) { return tensor.name == whole.plan.outputs[t].name; };
    auto a = std::ranges::find_if(expected, named)->bytes;
    auto b = std::ranges::find_if(found, named)->bytes;
    for (const DoneRange& done : execution.done)
      for (auto* const bytes : {&a, &b})
        if (done.tensor == t) std::fill(bytes->begin() + done.begin, bytes->begin() + done.end, std::byte{});
    EXPECT_EQ(a, b) << whole.plan.outputs[t].name;
  }
}

/// One tensor of 410 MB, of which nothing is ever read, somewhere in a file.
class LongSource final : public Source, public FileBacked {
 public:
  LongSource() { info_.inventory.tensors.push_back({"long", Dtype::U8, {kBytes}, 0, 24, kBytes}); }
  const CheckpointInfo& info() const override { return info_; }
  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return this; }
  void read_scattered(std::size_t, i64, std::span<const std::span<std::byte>>) const override { FAIL(); }
  FilePlace place(std::size_t) const override { return {&file_, 24}; }
  bool reads_past_cache(std::size_t) const override { return false; }
  void keep_in_cache() const override {}

  static constexpr i64 kBytes = 410'000'000;

 private:
  CheckpointInfo info_;
  File file_;
};

/// `runs` as long as each other, one behind the other in the output and each apart from the next in the source.
Plan plan_of_runs(i64 runs, i64 run_bytes) {
  Plan plan;
  plan.outputs.push_back({"long", Dtype::U8, {runs * run_bytes}, runs * run_bytes, 0, 0, {}});
  plan.moves.push_back({0, 0, 0, 0, {{{runs, 2 * run_bytes, run_bytes}}}, run_bytes});
  plan.first_move = {0, 1};
  plan.num_shards = 1;
  plan.data_phases = {24};
  return plan;
}

/// However long a tensor is, the list of what to do next is not, and no block is lost between two of them.
TEST(ClonePlan, ALongTensorIsCutBetweenBlocks) {
  const LongSource source;
  const auto backend = make_backend("cpu");
  for (const auto& [runs, run_bytes] : {std::pair<i64, i64>{1, 200'000'001}, {1525, 131072}, {50'000, 4096}}) {
    const Plan plan = plan_of_runs(runs, run_bytes);
    const i64 bytes = plan.outputs[0].bytes;
    const ClonePlan clones(plan, source, kAll, [](const File&) { return true; });
    EXPECT_EQ(clones.empty(), run_bytes == 4096);
    EXPECT_EQ(clones.bytes(), runs * whole_blocks(24, run_bytes, 4096).bytes());
    if (clones.empty()) continue;
    ExecuteOptions options;
    options.clones = &clones;
    const auto tasks = plan_tasks(plan, *backend, options).tasks;
    EXPECT_EQ(tasks.size(), 3U);
    i64 done = 0;
    for (const Task& task : tasks) {
      EXPECT_EQ(task.begin, done);
      EXPECT_TRUE((24 + task.end) % 4096 == 0 || task.end == bytes);
      done = task.end;
    }
    EXPECT_EQ(done, bytes);
    EXPECT_EQ(std::ssize(clones.written(0, 0, bytes)), runs + 1);
    // As it is written, in memory that is bounded.
    const i64 buffers = planned_buffer_bytes(plan, *backend, options);
    options.clones = nullptr;
    EXPECT_GT(plan_tasks(plan, *backend, options).tasks.size(), 20U);
    EXPECT_EQ(planned_buffer_bytes(plan, *backend, options), buffers);
  }
}

/// Wherever the parts are cut, and what is in two of the lists is written once.
TEST(ClonePlan, WhatIsRefusedIsWritten) {
  const LongSource source;
  const Plan plan = plan_of_runs(1, 200'000'001);
  const i64 end = plan.outputs[0].bytes;
  ClonePlan clones(plan, source, kAll, [](const File&) { return true; });
  const i64 all = clones.bytes(), first = 4096 - 24, last = first + all;
  EXPECT_EQ(clones.written(0, 0, end), (std::vector<ByteRange>{{0, first}, {last, end}}));
  const ByteRange refused{first + (10 << 20), first + (90 << 20)};
  clones.refuse(std::vector<ClonePlan::Refused>{{0, {refused.begin + 4096, refused.end}}});
  clones.refuse(std::vector<ClonePlan::Refused>{{0, {refused.begin, refused.begin + 4096}}, {0, {last - 4096, last}}});
  EXPECT_EQ(clones.bytes(), all - refused.bytes() - 4096);
  EXPECT_EQ(clones.written(0, 0, end), (std::vector<ByteRange>{{0, first}, refused, {last - 4096, end}}));
  EXPECT_EQ(clones.written(0, refused.begin + 8192, refused.end + 8192),
            (std::vector<ByteRange>{{refused.begin + 8192, refused.end}}));
  EXPECT_EQ(clones.written(0, first + (1 << 20), refused.begin), std::vector<ByteRange>{});
  EXPECT_EQ(clones.written(0, 1, refused.begin + 1),
            (std::vector<ByteRange>{{1, first}, {refused.begin, refused.begin + 1}}));
}

TEST_F(CloneTest, ShortRunsAreNotWorthIt) {
  put("/source", kIndexed);
  EXPECT_EQ(convert(*open_source("/source"), "/out", kGrouped, {}).bytes_to_clone, 0);
}

/// Phases are chosen for blocks of 4 KiB, so that other runs would be there by chance only.
TEST_F(CloneTest, LargerBlocksAreNotCloned) {
  put("/source", kIndexed);
  EXPECT_EQ(convert(*open_source("/source"), "/out", kGrouped, {65536, 0, 0}).bytes_to_clone, 0);
}

TEST_F(CloneTest, WhatTheFileSystemRefusesIsWritten) {
  put("/source", kIndexed);
  disk_.allow_clone(false);
  const Made made = convert(*open_source("/source"), "/out", kGrouped, kAll);
  EXPECT_GT(made.bytes_to_clone, 0);
  EXPECT_EQ(made.bytes_cloned, 0);
  EXPECT_TRUE(same_tensors(build(model_, kGrouped), tensors_of(*open_source("/out"))));
  // One of them alone.
  disk_.allow_clone(true);
  disk_.reset();
  disk_.fail(CallKind::Clone, 3, EINVAL);
  const Made most = convert(*open_source("/source"), "/most", kGrouped, kAll);
  EXPECT_GT(most.bytes_cloned, 0);
  EXPECT_LT(most.bytes_cloned, most.bytes_to_clone);
  EXPECT_TRUE(same_tensors(build(model_, kGrouped), tensors_of(*open_source("/most"))));
}

TEST_F(CloneTest, NothingStaysWhereACloneFails) {
  put("/source", kIndexed);
  const auto source = open_source("/source");
  for (const auto& [error, code] : {std::pair(EIO, ErrorCode::Io), std::pair(ENOSPC, ErrorCode::NoSpace)})
    for (const i64 number : {1, 2, 7}) {
      disk_.reset();
      disk_.fail(CallKind::Clone, number, error);
      expect_error(
          code, [&] { convert(*source, "/out", kGrouped, kAll); }, "/out.partial/model-");
      EXPECT_FALSE(path_exists("/out"));
      EXPECT_FALSE(path_exists("/out.partial"));
    }
  EXPECT_TRUE(same_tensors(build(model_, kIndexed), tensors_of(*source)));
}

TEST_F(CloneTest, StopsBetweenClones) {
  put("/source", kIndexed);
  const auto source = open_source("/source");
  disk_.reset();
  ExecuteOptions execution;
  i64 calls = 0;
  execution.on_progress = [&](i64) {
    if (++calls == 4) throw Error(ErrorCode::Interrupted, "stopped");
  };
  expect_error(ErrorCode::Interrupted, [&] { convert(*source, "/out", kGrouped, kAll, execution); });
  EXPECT_EQ(disk_.calls(CallKind::Clone), 4);
}

/// A block that is reserved and then cloned over has to be free all the same.
TEST_F(CloneTest, ReservesNothingForWhatIsCloned) {
  put("/source", kIndexed);
  const auto source = open_source("/source");
  disk_.reset();
  const Made made = convert(*source, "/out", kGrouped, kAll);
  const i64 whole =
      made.plan.num_shards - std::ssize(ClonePlan(made.plan, *source, kAll, [](const File&) { return true; }).shards());
  EXPECT_EQ(disk_.calls(CallKind::Reserve), whole);
}

TEST_F(CloneTest, DataWithClonesHaveNoChecksum) {
  put("/source", kIndexed);
  const auto source = open_source("/source");
  const Made made = convert(*source, "/out", kGrouped, kAll);
  const ClonePlan clones(made.plan, *source, kAll, [](const File&) { return true; });
  const RecordFile record = parse_record_json(*disk_.get("/out/glu_ckpt.json"), {"glu_ckpt.json"});
  i64 without = 0;
  for (const FileRecord& file : record.files) {
    EXPECT_EQ(file.bytes, std::ssize(*disk_.get("/out/" + file.name)));
    EXPECT_EQ(file.header_xxh3_128.size(), 32U);
    without += file.data_xxh3_128.empty() ? 1 : 0;
  }
  EXPECT_EQ(without, std::ssize(clones.shards()));
}

TEST_F(CloneTest, ASampleOfEqualModelsIsEqual) {
  put("/source", kIndexed);
  for (const auto& [name, to] :
       {std::pair("/grouped", kGrouped), std::pair("/turned", kTurned), std::pair("/packed", kPacked)}) {
    convert(*open_source("/source"), name, to, kAll);
    const Sample all = sample("/source", name, {100'000, i64{1} << 40});
    EXPECT_EQ(all.difference, "") << name;
    EXPECT_GT(all.rows, 90'000);
    const Sample few = sample("/source", name, {30, i64{1} << 40});
    EXPECT_EQ(few.difference, "");
    EXPECT_LE(few.rows, 30);
    EXPECT_GT(few.rows, 0);
    EXPECT_LE(sample("/source", name, {100'000, 5000}).bytes, 5000 + 4096);
  }
}

TEST_F(CloneTest, ASampleFindsClonesOfOtherBytes) {
  put("/source", kIndexed);
  const auto source = open_source("/source");
  for (const i64 shift : {4096, -4096}) {
    const MovedSource moved(*source, shift);
    const std::string path = shift < 0 ? "/before" : "/behind";
    convert(moved, path, kGrouped, kAll);
    for (const u64 seed : {0, 1, 2}) EXPECT_NE(sample("/source", path, {}, seed).difference, "") << shift;
  }
}

/// With enough rows no byte is left out, and with three for each tensor neither its first row nor its last.
TEST_F(CloneTest, ASampleOfAllRowsFindsOneByte) {
  put("/source", kIndexed);
  convert(*open_source("/source"), "/out", kGrouped, kAll);
  const auto out = open_source("/out");
  std::size_t tensor = 0;
  while (!out->inventory().tensors[tensor].name.ends_with("linear_fc2.weight")) ++tensor;
  const TensorRef& found = out->inventory().tensors[tensor];
  const FilePlace place = out->file_backed()->place(tensor);
  for (const i64 at : {i64{0}, found.bytes / 2 + 77, found.bytes - 1}) {
    const File file = File::open_write(place.file->path());
    std::byte byte{};
    file.pread_exact({&byte, 1}, place.offset + at);
    const std::byte other = ~byte;
    file.pwrite_exact({&other, 1}, place.offset + at);
    const Sample whole = sample("/source", "/out", {400'000, i64{1} << 40});
    EXPECT_NE(whole.difference.find("down weight"), std::string::npos) << at << ": " << whole.difference;
    const i64 few = 3 * std::ssize(out->inventory().tensors);
    if (at == 0 || at == found.bytes - 1) {
      for (const u64 seed : {0, 1, 2}) EXPECT_NE(sample("/source", "/out", {few, i64{1} << 40}, seed).difference, "");
    }
    file.pwrite_exact({&byte, 1}, place.offset + at);
  }
  EXPECT_EQ(sample("/source", "/out", {400'000, i64{1} << 40}).difference, "");
}

void expect_places(const Source& source, bool all) {
  for (std::size_t t = 0; t < source.inventory().tensors.size(); ++t) {
    const FilePlace place = source.file_backed()->place(t);
    if (all) {
      ASSERT_NE(place.file, nullptr);
    }
    if (place.file == nullptr) continue;
    std::vector<std::byte> read(static_cast<std::size_t>(source.inventory().tensors[t].bytes)), there(read.size());
    source.read(t, 0, read);
    place.file->pread_exact(there, place.offset);
    EXPECT_EQ(read, there) << source.inventory().tensors[t].name;
  }
}

TEST_F(CloneTest, PlacesAreWhereBytesAre) {
  put("/source", kIndexed);
  expect_places(*open_source("/source"), true);
}

/// Views with strides, which are nowhere, among them.
TEST(FilePlaces, AreWhereBytesAreInTorchFiles) {
  i64 files = 0;
  const std::filesystem::path root = std::filesystem::path(std::getenv("GLU_CKPT_TESTDATA")) / "torch";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string suffix = entry.path().extension().string();
    if (suffix != ".pt" && suffix != ".pth" && suffix != ".bin") continue;
    expect_places(*open_source(entry.path()), false);
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace glu_ckpt
