#pragma once
/// Chooses the weights of a model that servers read as codes, and encodes them.

#include <memory>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Replaces a source by one whose linear layers are codes of SourceAnswers::encode, as the published models of its
/// family have them: all of attention and of MLPs, not embeddings, head, norms, routers, convolutions and gates. A
/// source whose weights are such codes already stays. Throws NotSupported for one with other codes, NoMap for a model
/// whose other matrices nobody knows, what recognition throws, and the errors of encode_source().
void encode_weights(std::unique_ptr<Source>& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
