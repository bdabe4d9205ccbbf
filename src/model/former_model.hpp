#pragma once
/// The model as it was in Hugging Face's form, as far as the record of a conversion, or its configuration, says it.

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// The text in front of its keys, its copies and the dtype of what was computed. The forms of its layers, and the text
/// in front of experts that are renamed alone, depend on what is asked for.
FormerModel former_model(const Record& record, const ModelHints& hints, const Recognition& model);

}  // namespace glu_ckpt
