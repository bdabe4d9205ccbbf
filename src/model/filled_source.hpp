#pragma once
/// A model that gets the tensors which it lacks from another checkpoint of the same model.

#include <memory>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Replaces a source by one that has, beside all of its own tensors, those of the checkpoint SourceAnswers::fill_from
/// that it lacks: multi-token prediction, a head, a vision or audio tower, and single matrices of its layers outside of
/// the experts; no whole layer of the main stack, and none of its experts. A copy of the embedding or of the head is
/// made of the source's own. config.json follows, and the record lists what was filled (`filled`), as info().filled
/// does. Both become Hugging Face's form first. The source stays where it lacks nothing. Throws NotSupported where the
/// two are no models of one family and of the same sizes, or where one has codes and the other has none.
void fill_source(std::unique_ptr<Source>& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
