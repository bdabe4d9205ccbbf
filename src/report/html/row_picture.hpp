#pragma once
/// Draws the rows of an FC1 to scale.

#include <string>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// A figure about one of the block's experts. `title` and `id` are HTML already; the latter is unique on the page.
std::string row_picture(const ExpertBlock& block, const std::string& title, const std::string& id);

/// "contiguous: all 768 gate rows, then all 768 up rows".
std::string order_sentence(const ExpertBlock& block);

}  // namespace glu_ckpt
