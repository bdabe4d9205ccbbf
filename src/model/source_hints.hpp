#pragma once
/// What the files beside the tensors, the record and the answers say of a model: its config.json, or one that is made
/// from the arguments that a trainer saved, and how its weights are quantized.

#include <string>

#include "glu_ckpt/model.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {

/// A config.json that was named comes first, then one beside the checkpoint, a recorded one, and one that is made.
ModelHints hints_of(const Source& source, const SourceAnswers& answers);

/// Reads what config.json and the files beside it say of how weights are quantized.
QuantConfig quant_config_of(const Source& source, const ModelHints& hints);

/// Refuses what needs a model that is known: asks at once for its config.json, the orders that nobody knows, and for an
/// optimizer to be left out. `what`: "--encode mxfp4 would have to know ..., and".
[[noreturn]] void fail_without_model(const Source& source, const ModelHints& hints, const Recognition& model,
                                     const SourceAnswers& answers, const std::string& what);

/// Names the configuration that says that weights are quantized where none of the source's is: that of the model that a
/// run began from, or that was left behind. Programs would look for codes and scales. Empty where there is none.
std::string stale_quantization(const Source& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
