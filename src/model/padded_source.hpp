#pragma once
/// A model whose routed experts are wider by rows and columns of zeros, which add nothing to any sum; and the way back.

#include <memory>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Returns the width of experts that a record says they had before an earlier run padded them; 0 where it says nothing.
i64 recorded_width_before_padding(const Record& record);

/// Replaces a source by one whose experts have the least width that is a multiple of SourceAnswers::pad_experts, or
/// where unpad says so, the width that they had before; where they have that width already, the source stays. The rows
/// behind the last one of gate and up, and the columns behind the last one of down, are zero; new scales are 1.
/// config.json has the new width, a shared expert whose width is made of it follows, and the record has the old one
/// (`padded_from`). The experts become tensors of their own, as lay_out_apart() has them. Throws NotExact where
/// --unpad would take away what is not zero, RecordContradicts where nothing says what was added, and NotSupported for
/// an optimizer's states, for codes of other formats than FP8, and where config.json has no words for it.
void pad_experts(std::unique_ptr<Source>& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
