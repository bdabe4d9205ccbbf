#pragma once
/// Names in the order people count: experts.2 before experts.10.

#include <string>
#include <string_view>

namespace glu_ckpt {

/// Keys compared byte by byte order their names as people count: runs of decimal digits are numbers. Names that differ
/// only in leading zeros have equal keys. A key is made once for each name, so that sorting does not read the digits
/// again in every comparison.
std::string natural_key(std::string_view name);

}  // namespace glu_ckpt
