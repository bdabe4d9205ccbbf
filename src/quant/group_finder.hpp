#pragma once
/// Looks up which group of compressed-tensors' quantization_config a weight belongs to.

#include <optional>
#include <string_view>
#include <vector>

#include "quant/match_target.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {

/// Reads the targets of all groups once. The configuration has to outlive it.
class GroupFinder {
 public:
  explicit GroupFinder(const QuantConfig& config);

  /// Returns the group of a weight as compressed-tensors 0.20 looks its module up: by its name, by the first pattern of
  /// it in the order of letters, or as one of all linear layers. Null where no target means it, and where a pattern
  /// that may come first cannot be read here. The weight may have been moved since the targets were written. Fused and
  /// grouped weights of experts are asked for as the modules that they were made of: gate_proj and up_proj of each
  /// expert. Null where those are not known, or are not all in one group. `experts` is the first of three or more axes,
  /// or else 0.
  const QuantConfig* of_weight(std::string_view name, i64 experts) const;

 private:
  struct Entry {
    int rank = 0;
    ModuleTarget target;
    const QuantConfig* group = nullptr;
  };
  struct Answer {
    const QuantConfig* group = nullptr;
    bool by_class = false;
    bool is_read = true;
  };

  Answer ask(std::string_view module) const;

  /// In the order in which they are tried.
  std::vector<Entry> entries_;
};

}  // namespace glu_ckpt
