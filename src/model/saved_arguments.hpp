#pragma once
/// What is to be said of the arguments that a trainer saved in a checkpoint.

#include <string>
#include <vector>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// A sentence about each argument that is not read, with the class or function that it names; one alone where none of
/// them could be read.
std::vector<std::string> unread_argument_texts(const Source& source, const ModelHints& hints);

/// The end of a sentence that says why no config.json can be made from arguments of which some are not read; empty
/// where all of them are.
std::string why_arguments_do_not_do(const ModelHints& hints);

}  // namespace glu_ckpt
