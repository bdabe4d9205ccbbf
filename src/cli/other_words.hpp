#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace glu_ckpt::cli {

/// Returns "; DST is the second argument" for the command "glu-ckpt convert" and the word "--output" of other programs;
/// empty where no other program says it so.
std::string said_otherwise(std::string_view command, std::string_view word);

/// Returns the words for which said_otherwise() has an answer.
std::vector<std::string> words_said_otherwise(std::string_view command);

}  // namespace glu_ckpt::cli
