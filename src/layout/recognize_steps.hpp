#pragma once
/// The steps of recognize().

#include <optional>
#include <string>
#include <vector>

#include "layout/key_groups.hpp"

namespace glu_ckpt {

struct CollectedBlocks {
  /// The weights' first.
  std::vector<BlockShape> shapes;
  std::size_t num_weight_blocks = 0;
  std::vector<BoundTensor> bound;
  /// An optimizer's tensors of shapes that are not the weights'.
  std::vector<std::size_t> misfits;
};

/// `num_hidden_layers` and what the hints know of experts are as config.json says. Throws the expert errors.
CollectedBlocks collect_blocks(const KeyGroups& keys, const Naming& naming, const ModelHints& hints,
                               std::optional<i64> num_hidden_layers, i64 scale_rows);

struct ChosenNaming {
  /// It is null where no key belongs to an expert.
  const Naming* naming = nullptr;
  /// The name as reported and recorded, e.g. "hf:olmoe" for a model_type that the row lists.
  std::string name;
  /// Says whether the family is settled, so that what it fixes may be believed.
  bool family_known = false;
};

/// Asks --from-naming, the record, config.json and the keys, in this order. Throws AmbiguousNaming,
/// UnexplainedKey, RecordContradicts, RecordInvalid, GluConflict, UnknownNaming.
ChosenNaming choose_naming(const KeyGroups& keys, const ModelHints& hints, const Record& record,
                           const SourceAnswers& answers, std::optional<i64> num_hidden_layers);

}  // namespace glu_ckpt
