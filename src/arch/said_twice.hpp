#pragma once
/// Fields of a config.json that say of the model what others say, too.

#include "families/arg_rows.hpp"

namespace glu_ckpt {

/// Warns where two fields contradict each other of which only one counts, in transformers as here: another program may
/// read the other one.
void warn_of_fields_said_twice(ArgsWriter& args);

}  // namespace glu_ckpt
