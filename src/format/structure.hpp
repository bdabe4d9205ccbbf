#pragma once
/// Decides what an output keeps of a checkpoint's structure.

#include <functional>
#include <string_view>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Says whether an object or tensor of this name is left out.
using IsDropped = std::function<bool(std::string_view name)>;

/// The structure as an output of format `target` holds it: without the objects for which `is_dropped` (which may be
/// empty) holds, as the tensors of the plan went; for torch-dist the objects of torch files are entries of their own.
Structure structure_for(Structure structure, Format target, const IsDropped& is_dropped);

}  // namespace glu_ckpt
