#pragma once
/// The fields of a config.json that the program does not know, those that say another thing than the family does, and
/// those that say what others say, too.

#include <string_view>

#include "families/arg_rows.hpp"

namespace glu_ckpt {

/// Warns of what config.json says of the language model and nothing here reads. `args` has written all other arguments,
/// so that it has asked for the fields that it knows.
void warn_of_unread_fields(ArgsWriter& args);

/// Warns of null where no class of transformers takes it: programs stop, or compute with it.
void warn_of_nulls(ArgsWriter& args);

/// Warns of whole numbers where the classes of transformers take a float alone, and stop.
void warn_of_whole_numbers(ArgsWriter& args);

/// Returns whether a field of that name is about files, programs, tokens or training, or says what the tensors say.
bool has_no_say(std::string_view name);

/// Warns where two fields contradict each other of which only one counts, in transformers as here: another program may
/// read the other one.
void warn_of_fields_said_twice(ArgsWriter& args);

}  // namespace glu_ckpt
