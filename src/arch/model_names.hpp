#pragma once
/// The names of tensors in the model itself: what stands around them in a checkpoint, and which of them are no weights.

#include <optional>
#include <string>
#include <string_view>

#include "families/family.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Returns whether programs make the tensor themselves: a module's `_extra_state`, a table of rotary frequencies.
bool is_made_anew(std::string_view name);

/// Returns whether the name is that of a router's bias of experts, in any program's spelling.
bool is_router_bias(std::string_view name);

/// The name of the tensor in the model itself.
const std::string& model_name(const Inventory& inventory, const Recognition& recognition, std::size_t tensor);

/// The name of a tensor that no map knows, in naming `to` of a model that comes from naming `from`. In the naming that
/// it is from it has its own name; in others that stands behind kUnknownPrefix and, where it is a trainer's tensor,
/// the trainer's word.
std::string travelling_name(std::string_view name, std::string_view from, std::string_view to);
/// The tensor's own name, wherever it travelled to.
std::string_view own_name(std::string_view name);

/// The part of a multimodal model of the family, beside its language model, that holds the tensor of that own name;
/// null where none does.
const BesidePart* beside_part(const Family& family, std::string_view own_name);

}  // namespace glu_ckpt
