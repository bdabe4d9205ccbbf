#pragma once
/// Tells which tensors that no template explains may still belong to experts.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Names the first tensor behind `prefix`, if there is one, that looks like experts though no naming has its name: by a
/// word in it, or by a leading axis of as many as there are experts. Empty where none does.
inline std::string foreign_experts_text(const Inventory& inventory, i64 num_experts, std::string_view prefix = {}) {
  for (const TensorRef& tensor : inventory.tensors) {
    if (!tensor.name.starts_with(prefix)) continue;
    const bool is_mlx = tensor.name.find(".switch_mlp.") != std::string::npos;
    const bool is_stack = num_experts > 1 && tensor.shape.size() == 3 && tensor.shape[0] == num_experts;
    if (is_mlx || is_stack || tensor.name.find("experts.") != std::string::npos)
      return fmt::format(". '{}' {} is there, and no naming that is known here has that name for experts{}",
                         tensor.name, shape_text(tensor.shape), is_mlx ? ": MLX (mlx-lm) has it" : "");
  }
  return {};
}

/// Names that may be parts of experts without being one of their matrices: scales, zero points, packed
/// forms. They stand under `experts`, or beside a known matrix.
class ExpertLikeNames {
 public:
  /// `name` is a matrix: `x.weight` has its companions in `x.`, a packed `x` in `x_...`.
  void add_matrix(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    const std::string_view last = name.substr(dot + 1);
    const bool suffixed = last.starts_with("weight") || last.starts_with("bias");
    const std::string_view beside = suffixed ? name.substr(0, dot) : name;
    // The experts of a layer follow each other, and often have one such name.
    if (beside == last_) return;
    beside_.insert(beside);
    last_ = beside;
  }

  bool contains(std::string_view name) const {
    static constexpr std::string_view kExempt[] = {"e_score_correction_bias", "expert_bias", "gate_weight"};
    const auto has = [&](std::string_view word) { return name.find(word) != std::string_view::npos; };
    const std::string_view last = name.substr(name.rfind('.') + 1);
    // The last two are torchtitan's gate of the whole shared expert, one row, and JetMoE's experts of the attention,
    // which have no FC1 and no FC2.
    if (has("._extra_state") || has(".router.") || has(".moe.shared_experts.gate.") || has(".self_attention.experts."))
      return false;
    if (std::ranges::find(kExempt, last) != std::end(kExempt)) return false;
    // An optimizer's keys may end in the name of the state.
    const std::string_view owner = name.substr(0, name.size() - std::min(name.size(), last.size() + 1));
    if (is_optimizer_tensor(name) &&
        std::ranges::any_of(kExempt, [&](std::string_view word) { return owner.ends_with(word); }))
      return false;
    if (has(".experts.") || has(".shared_experts.") || has(".shared_expert.")) return true;
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return false;
    if (beside_.contains(name.substr(0, dot))) return true;
    for (std::size_t cut = name.find('_', dot); cut != std::string_view::npos; cut = name.find('_', cut + 1))
      if (beside_.contains(name.substr(0, cut))) return true;
    return false;
  }

 private:
  std::unordered_set<std::string_view> beside_;
  std::string_view last_;
};

}  // namespace glu_ckpt
