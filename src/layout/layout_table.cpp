#include "layout/layout_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "layout/key_pattern.hpp"

namespace glu_ckpt {
namespace {

std::string native_glu_text(const Naming& naming) {
  std::vector<std::string> forms;
  if (naming.native_indexed_split || naming.native_grouped_split) forms.emplace_back("split");
  if (naming.native_grouped_fused || naming.native_indexed_fused)
    forms.push_back(naming.fused_glu == Glu::Kind::Unknown ? "contiguous or interleaved:K"
                                                           : to_string(fixed_glu(naming)));
  return fmt::format("{}", fmt::join(forms, ", "));
}

}  // namespace

std::string print_stack(const StackPrefix& prefix, std::string_view layer, std::string_view outer) {
  if (prefix.nested) return fmt::format("{}{}{}{}.", prefix.before, outer, prefix.after, layer);
  return fmt::format("{}{}{}", prefix.before, layer, prefix.after);
}

Glu fixed_glu(const Naming& naming) { return {naming.fused_glu, naming.fused_block_rows}; }

const PartNames& part_names(const Naming& naming, ExpertSet set, Experts experts) {
  if (set == ExpertSet::Shared) return naming.shared;
  return experts == Experts::Indexed ? naming.indexed : naming.grouped;
}

std::string_view part_template(const PartNames& names, Role role) {
  switch (role) {
    case Role::Gate: return names.gate;
    case Role::Up: return names.up;
    case Role::Down: return names.down;
    case Role::GateUp: return names.gate_up;
  }
  return {};
}

bool is_native(const Naming& naming, ExpertSet set, Experts experts, bool fused) {
  if (set == ExpertSet::Shared) return fused == naming.native_shared_fused;
  if (experts == Experts::Indexed) return fused ? naming.native_indexed_fused : naming.native_indexed_split;
  return fused ? naming.native_grouped_fused : naming.native_grouped_split;
}

bool lists_type(const Naming& naming, std::string_view model_type) {
  const std::vector<std::string_view> types = types_spelled_as(naming);
  return std::ranges::find(types, model_type) != types.end();
}

const Naming* find_expert_naming(std::string_view name) {
  for (const Naming& naming : namings())
    if (naming.name == name) return &naming;
  constexpr std::string_view kHf = "hf:";
  if (!name.starts_with(kHf)) return nullptr;
  const std::string_view model_type = name.substr(kHf.size());
  for (const Naming& naming : namings())
    if (lists_type(naming, model_type)) return &naming;
  return nullptr;
}

const Naming* find_naming(std::string_view name) {
  const Naming* const found = find_expert_naming(name);
  return found != nullptr ? found : find_dense_naming(name);
}

namespace {

/// A key of FC1 in the form that the family's software writes first of all.
std::string example_key(const Naming& naming) {
  const StackPrefix& stack = naming.stacks.front();
  if (naming.stacks_layers) {
    const std::string part = print_part(naming.grouped.gate_up, TensorKind::Weight, "");
    return fmt::format("{}{} or {}{}", stack.before, part, print_stack(stack, "{L}", ""), part);
  }
  const bool indexed = naming.native_indexed_split || naming.native_indexed_fused;
  const PartNames& names = indexed ? naming.indexed : naming.grouped;
  const bool split = indexed ? !naming.native_indexed_fused : naming.native_grouped_split;
  return print_stack(stack, "{L}", "") + print_part(split ? names.up : names.gate_up, TensorKind::Weight, "{E}");
}

/// The programs that read these keys, if the checkpoint is whole and in a native form.
std::string loaded_by(std::string_view name) {
  if (name == "megatron-dist") return "Megatron-Core, from torch_dist (convert --to megatron)";
  if (name == "megatron-sequential") return "Megatron-Core with SequentialMLP";
  if (name.starts_with("megatron")) return "nothing: keys within one process; Megatron-Core loads megatron-dist";
  if (name == "torchtitan") return "torchtitan 0.3.0 (convert --to torchtitan)";
  if (name.starts_with("torchtitan")) return "torchtitan before 0.3.0";
  if (name == "vllm") return "nothing from files: vLLM's FusedMoE modules, in memory";
  return "transformers, vLLM, SGLang that know the family (convert --to hf)";
}

}  // namespace

std::vector<std::string> native_forms(const Naming& naming) {
  const std::string fused =
      naming.fused_glu == Glu::Kind::Unknown ? "contiguous or interleaved:K" : to_string(fixed_glu(naming));
  std::vector<std::string> forms;
  if (naming.native_indexed_split) forms.emplace_back("indexed split");
  if (naming.native_indexed_fused) forms.push_back("indexed " + fused);
  if (naming.native_grouped_split) forms.emplace_back("grouped split");
  if (naming.native_grouped_fused) forms.push_back("grouped " + fused);
  return forms;
}

std::vector<NamingSummary> naming_summaries() {
  std::vector<NamingSummary> rows;
  for (const Naming& naming : namings()) {
    const bool indexed = naming.native_indexed_split || naming.native_indexed_fused;
    const bool grouped = naming.native_grouped_split || naming.native_grouped_fused;
    const std::vector<std::string_view> types = types_spelled_as(naming);
    rows.push_back({std::string(naming.name),
                    {types.begin(), types.end()},
                    naming.axes == Axes::OutIn ? "[out, in]" : "[in, out]",
                    indexed && grouped ? "indexed, grouped"
                    : indexed          ? "indexed"
                                       : "grouped",
                    native_glu_text(naming),
                    example_key(naming),
                    native_forms(naming),
                    loaded_by(naming.name)});
  }
  return rows;
}

}  // namespace glu_ckpt
