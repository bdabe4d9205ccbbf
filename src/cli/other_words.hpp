#pragma once

#include <string>
#include <string_view>

namespace glu_ckpt::cli {

/// Returns "; DST is the second argument" for the command "glu-ckpt convert" and the word "--output" of other programs;
/// empty where no other program says it so.
std::string said_otherwise(std::string_view command, std::string_view word);

}  // namespace glu_ckpt::cli
