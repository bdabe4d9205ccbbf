#pragma once
/// Names in the order people count: experts.2 before experts.10.

#include <string_view>

namespace glu_ckpt {

/// Compares byte by byte, but runs of decimal digits as numbers. A strict weak order.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace glu_ckpt
