#include "glu_ckpt/explain_layout.hpp"

#include <fmt/format.h>

namespace glu_ckpt {

std::string explain_layout(const LayoutAnswers& layout) {
  if (layout.naming == "adapter") return fmt::format("adapter (LoRA), {} experts", layout.experts);
  const auto order = [](const Glu& glu) -> std::string {
    switch (glu.kind) {
      case Glu::Kind::Split: return "gate and up are two tensors";
      case Glu::Kind::Contiguous: return "all gate rows, then all up rows";
      case Glu::Kind::Interleaved:
        return fmt::format("{0} gate row{1}, then {0} up row{1}, and so on", glu.block_rows,
                           glu.block_rows == 1 ? "" : "s");
      case Glu::Kind::Unknown: return "gate and up are one tensor, in an order that no file says";
      case Glu::Kind::None: return "there is no gate";
    }
    return {};
  };
  const std::string experts = layout.is_dense()             ? "a dense model"
                              : layout.experts == "indexed" ? "indexed (a tensor for each expert)"
                              : layout.experts == "grouped"
                                  ? "grouped (one tensor for all experts)"
                                  : "mixed (indexed experts in some layers, grouped in others)";
  std::string text = fmt::format("{}, {}, {} ({})", layout.naming, experts, to_string(layout.glu), order(layout.glu));
  if (layout.shared_glu) text += fmt::format(", shared expert {}", to_string(*layout.shared_glu));
  if (layout.optimizer_glu) text += fmt::format(", optimizer {}", to_string(*layout.optimizer_glu));
  return text;
}

}  // namespace glu_ckpt
