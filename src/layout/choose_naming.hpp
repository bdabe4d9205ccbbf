#pragma once
/// Finds the row of the table of namings that explains the keys.

#include <optional>
#include <string>

#include "layout/key_groups.hpp"

namespace glu_ckpt {

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
