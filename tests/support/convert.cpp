#include "support/convert.hpp"

#include <algorithm>
#include <limits>

namespace glu_ckpt::support {

std::string& test_device() {
  static std::string device = "cpu";
  return device;
}

Recognition recognize_source(const Source& source, const SourceAnswers& answers) {
  return recognize(source.inventory(), source.hints(), source.record(), answers);
}

Converted convert(const MemorySource& source, const Recognition& recognition, const PlanOptions& options,
                  const ExecuteOptions& execution) {
  Converted result;
  result.plan = make_plan(source.inventory(), recognition, options);
  check_plan(source.inventory(), result.plan);
  MemorySink sink(result.plan.outputs);
  execute(result.plan, source, sink, *make_backend(test_device()), execution);
  EXPECT_EQ(sink.first_fault(), "");
  result.tensors = sink.tensors();
  return result;
}

PlanOptions options_for(const ModelSpec& model, const Spelling& spelling) {
  PlanOptions options;
  options.to.naming = spelling.naming;
  options.to.scope = Scope::Experts;
  options.to.experts = spelling.experts;
  options.to.bias_experts = spelling.bias_experts;
  if (model.blocks.front().gated) {
    options.to.glu = spelling.glu;
    options.to.shared_glu = spelling.shared_glu;
  }
  options.force = true;
  return options;
}

Digest digest_of(const Source& source, const SourceAnswers& answers) {
  const Recognition recognition = recognize_source(source, answers);
  return compute_digest({&source, &recognition}, *make_backend("cpu"), {});
}

::testing::AssertionResult converts(const ModelSpec& model, const Spelling& from, const Spelling& to,
                                    const ExecuteOptions& execution, i64 max_shard_bytes) {
  SCOPED_TRACE(from.describe() + "  ->  " + to.describe());
  try {
    const MemorySource source = make_source(model, from);
    const Recognition recognition = recognize_source(source);
    PlanOptions options = options_for(model, to);
    options.max_shard_bytes = max_shard_bytes;
    const Converted converted = convert(source, recognition, options, execution);
    expect_good_shards(source.inventory(), converted.plan, max_shard_bytes);
    if (const auto same = same_tensors(build(model, to), converted.tensors); !same) return same;
    const MemorySource target(converted.tensors, {}, record_of(model, to));
    const std::string expected = to_string(digest_of(source));
    const std::string found = to_string(digest_of(target));
    if (found == expected) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "the digest is " << found << ", expected " << expected;
  } catch (const Error& error) {
    return ::testing::AssertionFailure() << slug(error.code()) << ": " << error.what();
  }
}

void expect_converts(const ModelSpec& model, const Spelling& from, const Spelling& to, const ExecuteOptions& execution,
                     i64 max_shard_bytes) {
  EXPECT_TRUE(converts(model, from, to, execution, max_shard_bytes)) << from.describe() << "  ->  " << to.describe();
}

namespace {

/// The first file that an output's bytes come from.
u32 first_file(const Inventory& inventory, const Plan& plan, std::size_t output) {
  u32 file = std::numeric_limits<u32>::max();
  for (std::size_t m = plan.first_move[output]; m < plan.first_move[output + 1]; ++m)
    file = std::min(file, inventory.tensors[plan.moves[m].src].file);
  return file;
}

}  // namespace

void expect_good_shards(const Inventory& inventory, const Plan& plan, i64 max_shard_bytes) {
  ASSERT_EQ(plan.first_move.size(), plan.outputs.size() + 1);
  i64 offset = 0;
  i64 tensors_in_shard = 0;
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    const OutputTensor& output = plan.outputs[i];
    const bool first = i == 0 || plan.outputs[i - 1].shard != output.shard;
    if (first) {
      EXPECT_EQ(output.shard, i == 0 ? 0 : plan.outputs[i - 1].shard + 1);
      offset = 0;
      tensors_in_shard = 0;
    } else {
      const OutputTensor& before = plan.outputs[i - 1];
      EXPECT_GE(before.dtype, output.dtype) << before.name << " before " << output.name;
      if (before.dtype == output.dtype && before.bytes > 0 && output.bytes > 0) {
        EXPECT_LE(first_file(inventory, plan, i - 1), first_file(inventory, plan, i))
            << before.name << " before " << output.name;
      }
    }
    EXPECT_EQ(output.offset, offset) << output.name;
    EXPECT_EQ(output.bytes, tensor_bytes(output.dtype, output.shape)) << output.name;
    offset += output.bytes;
    tensors_in_shard += output.bytes > 0 ? 1 : 0;
    EXPECT_TRUE(offset <= max_shard_bytes || tensors_in_shard == 1) << "shard " << output.shard << " is too large";
  }
  if (!plan.outputs.empty()) {
    EXPECT_EQ(plan.num_shards, plan.outputs.back().shard + 1);
  }
}

}  // namespace glu_ckpt::support
