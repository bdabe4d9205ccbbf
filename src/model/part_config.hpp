#pragma once
/// The configuration of a model of some layers of another one.

#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Layers of the main stack that are left, and what is left beside them.
struct LayerPart {
  i64 first = 0;
  i64 count = 0;
  /// Layers that there were.
  i64 of = 0;
  bool drops_mtp = false;
};

/// The text of a config.json that says so: how many layers there are, and the fields and lists that have an entry for
/// each, or count them from the first. All other bytes stay.
std::string part_config(std::string_view config, const LayerPart& part);

}  // namespace glu_ckpt
