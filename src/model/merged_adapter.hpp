#pragma once
/// Opens an adapter of PEFT and merges it into a model.

#include <memory>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Replaces a source by one with the products of SourceAnswers::merge added to its weights, as `merge_and_unload()` of
/// PEFT adds them on a CPU. Throws what opening and recognizing throw, and the errors of read_adapter_config() and
/// find_factors().
void merge_adapter(std::unique_ptr<Source>& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
