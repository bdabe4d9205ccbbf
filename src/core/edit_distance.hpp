#pragma once
/// How far a mistyped word is from a known one.

#include <string_view>

namespace glu_ckpt {

/// The least number of letters to change, put in, take out or exchange with their neighbour.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace glu_ckpt
