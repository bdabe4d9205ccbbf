#pragma once
/// Decides what an output keeps of a checkpoint's structure.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Objects that were made, each a torch zip, rather than read; they count from 0.
std::shared_ptr<const ObjectStore> store_of(std::vector<std::string> zips);

/// Says whether an object or tensor of this name is left out.
using IsDropped = std::function<bool(std::string_view name)>;

/// The structure as an output of format `target` holds it: without the objects for which `is_dropped` (which may be
/// empty) holds, as the tensors of the plan went; for torch-dist the objects of torch files are entries of their own.
Structure structure_for(Structure structure, Format target, const IsDropped& is_dropped);

}  // namespace glu_ckpt
