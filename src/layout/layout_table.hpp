#pragma once
/// Reading the rows that spell the keys of experts (src/families).

#include <string>
#include <string_view>

#include "families/expert_keys.hpp"

namespace glu_ckpt {

/// The keys' text from the stack to the expert part. `outer` counts for nested stacks only.
std::string print_stack(const StackPrefix& prefix, std::string_view layer, std::string_view outer);

/// Returns whether the experts of models of that type, which is not the one that the row is named after, are spelled
/// so.
bool lists_type(const Naming& naming, std::string_view model_type);

/// The glu arrangement that the row's own software stores in a native fused tensor.
Glu fixed_glu(const Naming& naming);

/// The forms of routed experts that the family's own software stores: "indexed split", "grouped contiguous".
std::vector<std::string> native_forms(const Naming& naming);

/// The templates of one kind of expert.
const PartNames& part_names(const Naming& naming, ExpertSet set, Experts experts);
std::string_view part_template(const PartNames& names, Role role);

/// Returns whether the family's own software reads and writes this form.
bool is_native(const Naming& naming, ExpertSet set, Experts experts, bool fused);

}  // namespace glu_ckpt
