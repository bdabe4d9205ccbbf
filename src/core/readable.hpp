#pragma once
/// Names and numbers as people read them.

#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// `text` with control characters written as \xNN and cut at a length that a terminal can bear: names in
/// a file are not to be trusted.
std::string printable(std::string_view text);

/// "1.31 TB", decimal units as disks are sold.
std::string size_text(i64 bytes);

}  // namespace glu_ckpt
