#pragma once
/// The configuration of a model of some layers, and some experts, of another one; which experts --keep-experts keeps
/// (kept_experts.cpp).

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "families/family.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The experts of each layer by its label ("3", "mtp.0"), in the order in which they are counted anew from 0.
using KeptExperts = std::map<std::string, std::vector<i64>>;

/// Reads `text`: "0-7", "0-3,9", or else the path of a file. Its JSON is a list of numbers for all layers; a list with
/// a list for each layer, or for each layer that has experts; or an object with a list for each layer, whose key is the
/// layer's number or has it ("3", "model.layers.3.mlp", "layer_3"; "mtp.0"). Any of these may be in an object under the
/// key "retained_experts", or another of kKeptWords. `blocks` are the routed experts of the weights; `layers` counts
/// those of the main stack. The layers of `left_out`, by label, need no list, and the one that they have is not looked
/// at: a pruner lists all layers of a model. Throws Usage for a file of another kind, and for an expert that is twice
/// in a list; ExpertMissing for one that there is not; LayerMissing where a layer has no list; NotSupported where lists
/// are differently long.
KeptExperts read_kept_experts(const std::string& text, const std::vector<const ExpertBlock*>& blocks, i64 layers,
                              const std::set<std::string>& left_out);

/// "0-3,9": the numbers as they can be typed again.
std::string expert_list_text(const std::vector<i64>& experts);

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
