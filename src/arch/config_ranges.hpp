#pragma once
/// The type and the range of each field of config.json that any rule reads.

#include <string>

namespace glu_ckpt {

/// Refuses (ConfigJson) a field whose value no configuration can mean: of another type, or out of its range. Null is
/// absence, and an integer is a number. `config` is the text of a config.json; what is no JSON object has no fields,
/// and of a model_type that no rule knows none is looked at.
void check_config_ranges(const std::string& config);

}  // namespace glu_ckpt
