#pragma once
/// The routed experts that are left of each layer, as --keep-experts says: a list of numbers, or a file of JSON.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"

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

}  // namespace glu_ckpt
