#pragma once
/// The values that fields of config.json have where the file leaves them out.

#include <string_view>

namespace glu_ckpt {

/// Returns the JSON object of the fields that the configuration class of that model_type fills in by itself; "{}" where
/// no such class is known. Widths and numbers of layers and experts are not among them: they belong to one model.
std::string_view config_defaults(std::string_view model_type);

}  // namespace glu_ckpt
