#pragma once
/// The digest of a checkpoint that is open.

#include "glu_ckpt/verify.hpp"
#include "model/open_checkpoint.hpp"

namespace glu_ckpt {

/// Throws what digest() throws once the checkpoint is open.
Digest digest_of(Checkpoint& checkpoint, const SourceAnswers& answers, const RunOptions& run);

}  // namespace glu_ckpt
