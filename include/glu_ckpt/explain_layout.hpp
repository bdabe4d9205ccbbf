#pragma once
/// A layout in words, for people.

#include <string>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// The layout with the meaning of each word, for those who see them for the first time.
std::string explain_layout(const LayoutAnswers& layout);

}  // namespace glu_ckpt
