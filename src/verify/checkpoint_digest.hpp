#pragma once
/// The digest of a checkpoint that is open.

#include <string_view>

#include "glu_ckpt/verify.hpp"
#include "model/open_checkpoint.hpp"

namespace glu_ckpt {

/// Throws what digest() throws once the checkpoint is open.
Digest digest_of(Checkpoint& checkpoint, const SourceAnswers& answers, const RunOptions& run);

/// compute_digest() as a stage of this title.
Digest digest_stage(const RunOptions& run, const Model& model, const Backend& backend, std::string_view title);

}  // namespace glu_ckpt
