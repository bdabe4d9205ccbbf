#pragma once
/// Lists in which ways a checkpoint is not the whole model that its configuration promises: find_flaws.cpp the language
/// model, missing_beside.cpp what a multimodal model has beside it.

#include <map>
#include <tuple>

#include "arch/dense_table.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// A layer, or the whole model where the stack is empty.
struct LayerId {
  std::string_view stack;
  i64 layer = 0;
  auto operator<=>(const LayerId&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct PartId {
  DenseRole role;
  TensorKind kind;
  auto operator<=>(const PartId&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// Returns whether the layer can have a tensor of the row.
bool is_in(const DenseRow& row, const LayerId& id, const Architecture& architecture);

/// The number of a layer that stands for all of its stack.
inline constexpr i64 kAllLayers = -1;

/// Tensors that lie where a part of the model should and are not read as it: codes, or shapes that are not its own.
using StandIns = std::map<std::pair<LayerId, PartId>, std::size_t>;

/// Compares what was recognized, experts included, with what every model of the family has, in the order in which a
/// conversion looks at it.
std::vector<ModelFlaw> find_flaws(const Inventory& inventory, const Recognition& model, const StandIns& stand_ins);

/// Adds flaws to the model where tensors of what sees, hears or talks are not there and most of the others of the part
/// are, or where some have other shapes than config.json says. A part that is named otherwise has none, nor a model
/// from which all are left out.
void find_missing_beside(const Inventory& named, const ModelHints& hints, Recognition& model);

}  // namespace glu_ckpt
