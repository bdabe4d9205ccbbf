#pragma once
/// The configuration of a model of some layers, and some experts, of another one.

#include <string>
#include <string_view>

#include "families/family.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Layers of the main stack and routed experts of each that are left, and what is left beside them.
struct LayerPart {
  i64 first = 0;
  i64 count = 0;
  /// Layers that there were.
  i64 of = 0;
  bool drops_mtp = false;
  /// Experts that are left, and that there were.
  i64 experts = 0;
  i64 experts_of = 0;
  /// The new width of experts, under the name that config.json has for it; 0: as it is.
  i64 expert_width = 0;
  std::string expert_width_field = {};
  /// It says how its config.json spells fields.
  const Family* family = nullptr;
};

/// The text of a config.json that says so: how many layers and experts there are, and the fields and lists that have an
/// entry for each, or count them from the first. All other bytes stay.
std::string part_config(std::string_view config, const LayerPart& part);

/// The configuration of the language model inside a multimodal one, as that of a model by itself: its own object, with
/// what the whole model says of dtypes, of the head and of quantized modules, whose names begin with `root` in place of
/// `from`. The text itself where there is no such object.
std::string language_config(std::string_view config, const Family& family, const std::string& model_type,
                            std::string_view from);

}  // namespace glu_ckpt
