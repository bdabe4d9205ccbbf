#pragma once
/// Opens checkpoints as the answers ask, and recognizes each once.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "glu_ckpt/model.hpp"
#include "glu_ckpt/run_options.hpp"
#include "model/stored_codes.hpp"

namespace glu_ckpt {

/// Opens a checkpoint as it is stored, each time that it is called.
using SourceOpener = std::function<std::unique_ptr<Source>()>;

/// Shows what is stored under the keys and in the encoding that the answers ask for.
std::unique_ptr<Source> open_as(std::unique_ptr<Source> stored, const SourceAnswers& answers);

/// open_checkpoint() of what is open already.
Checkpoint open_checkpoint(std::unique_ptr<Source> stored, const SourceAnswers& answers);

/// A source that was opened, and what is wrong of it.
struct JudgedSource {
  ModelHints hints;
  std::optional<Recognition> model;
  /// Why there is no model.
  std::optional<Error> unrecognized;
  JudgedCodes codes;
};

JudgedSource judge_source(const Source& source, const SourceAnswers& answers);

/// The digest in the checkpoint's own record, where it is of what was recognized: one of a whole model says nothing
/// once its config.json is gone, nor of what is left once some tensors are dropped. Empty where there is none.
std::string recorded_digest_of(const Checkpoint& checkpoint);

/// open_checkpoint(), and tells `run` what is doubtful about the set of files: every command that reads them says so.
Checkpoint open_and_warn(const RunOptions& run, const std::filesystem::path& path, const SourceAnswers& answers = {});

/// Bytes of all tensors that calls read: all but those that SourceAnswers::drop_optimizer left out.
i64 tensor_bytes(const Model& model);

}  // namespace glu_ckpt
