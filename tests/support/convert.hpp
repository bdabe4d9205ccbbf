#pragma once
/// Whole conversions in memory, with the checks that every conversion must pass.

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/plan.hpp"
#include "glu_ckpt/verify.hpp"
#include "support/position_model.hpp"

namespace glu_ckpt::support {

/// The device that convert() and all that uses it execute on: "cpu" until a test program says otherwise.
std::string& test_device();

struct Converted {
  Plan plan;
  std::vector<MemoryTensor> tensors;
};

/// Plans, proves, executes, and expects that every byte was written once.
Converted convert(const MemorySource& source, const Recognition& recognition, const PlanOptions& options,
                  const ExecuteOptions& execution = {});

Recognition recognize_source(const Source& source, const SourceAnswers& answers = {});

/// What to ask for to get from any layout of the model to this one.
PlanOptions options_for(const ModelSpec& model, const Spelling& spelling);

/// Digest of a source, recognized by its own record.
Digest digest_of(const Source& source, const SourceAnswers& answers = {});

/// Converts from one spelling to another and compares with the model spelled there directly.
::testing::AssertionResult converts(const ModelSpec& model, const Spelling& from, const Spelling& to,
                                    const ExecuteOptions& execution = {}, i64 max_shard_bytes = i64{1} << 40);
/// Expects that it does.
void expect_converts(const ModelSpec& model, const Spelling& from, const Spelling& to,
                     const ExecuteOptions& execution = {}, i64 max_shard_bytes = i64{1} << 40);

/// What holds of every plan's shards: their sizes, no holes, and the order of dtypes and of the source's files.
void expect_good_shards(const Inventory& inventory, const Plan& plan, i64 max_shard_bytes);

/// Runs `action` and expects the Error `code`; the message must contain `word`.
template <typename Action>
void expect_error(ErrorCode code, const Action& action, const std::string& word = {}) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; expected " << slug(code);
  } catch (const Error& error) {
    EXPECT_EQ(slug(error.code()), slug(code)) << error.what();
    EXPECT_NE((error.what() + error.tensor()).find(word), std::string::npos) << error.what();
  }
}

}  // namespace glu_ckpt::support
