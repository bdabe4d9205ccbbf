#pragma once
/// A part of a model, seen as a model of its own.

#include <memory>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Returns whether the answers ask for a part.
bool asks_for_part(const SourceAnswers& answers);

/// Replaces a source by one that has the layers that SourceAnswers::layers names, counted anew from 0, the
/// routed experts that keep_experts names, with their routers' rows, and no multi-token prediction where drop_mtp says
/// so; its config.json says the same, and its record what was left out
/// (`part`). Another naming becomes Hugging Face's first. Where it throws, the source stays. Throws LayerMissing for
/// layers that there are not, Usage for a list with holes, NoMap for a model whose layers nobody knows, and
/// NotSupported where its configuration has no words for the part.
void take_part(std::unique_ptr<Source>& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
