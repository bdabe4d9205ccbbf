#pragma once
/// Makes what Megatron-Core's loader wants beside the tensors of a checkpoint that no Megatron saved.

#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// The text of metadata.json, by which Megatron takes a directory for a distributed checkpoint.
inline constexpr std::string_view kTorchDistMetadata =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";

/// The bytes of common.pt: checkpoint_version 3.0 (an absent one makes old rows of qkv be reordered), iteration 0, and
/// a content_metadata by which any GPTModel asks for keys with a layer number, whatever its --moe-layer-freq, or, where
/// layers are `stacked`, for keys that all layers share. `args` is the text of megatron_args.txt: of a HybridModel's,
/// the state says the pattern of layers and the sizes, too.
std::string print_common_state(const std::string& args, bool stacked);

/// Returns whether all layers of the main stack share their tensors, as "decoder.layers.mlp.router.weight".
bool stacks_layers(const std::vector<OutputTensor>& tensors);

/// The `_extra_state` entries that modules of TransformerEngine ask for, of a checkpoint with these tensors: one for
/// each linear layer, norm and attention, and one for each expert. Each holds None, which they take for "no FP8
/// history".
std::vector<NamedObject> extra_states(const std::vector<OutputTensor>& tensors);

}  // namespace glu_ckpt
