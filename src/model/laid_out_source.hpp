#pragma once
/// A checkpoint, seen in another layout before it is written: the outputs of a plan as a Source.

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "glu_ckpt/model.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Returns whether keys are those of Hugging Face's files.
bool is_hub_form(const Recognition& model);

/// Replaces a source by one that has the model as Hugging Face's files have it, with each expert's gate, up and down a
/// tensor [out, in] of its own; where it throws, or where the source has it so already, it stays. Bytes are moved when
/// they are read, and nothing is kept. The files beside the tensors are those that such a directory has, and its
/// info() says how the experts were stored (`laid_out_from`). Throws what make_plan() throws, and CopyDiffers where a
/// tensor that would be left out repeats no other.
void lay_out_apart(std::unique_ptr<Source>& source, const ModelHints& hints, const Recognition& model);

/// What is still to be said of a source: --from-naming and --from-glu speak of the files, and a source that was laid
/// out anew has a layout of its own.
SourceAnswers answers_about(const Source& source, SourceAnswers answers);

/// recognize_model() of a source as it is now, in its files' layout or laid out anew.
Recognition recognize_source(const Source& source, const ModelHints& hints, const SourceAnswers& answers);

/// The bytes of outputs that are made of nothing in the source.
using Constants = std::map<std::size_t, std::vector<std::byte>>;

/// The outputs of a plan as a source of that info. Bytes that no move writes are zeros.
std::unique_ptr<Source> lay_out_source(std::unique_ptr<Source> stored, Plan plan, CheckpointInfo info,
                                       Constants constants);

}  // namespace glu_ckpt
