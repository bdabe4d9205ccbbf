#pragma once
/// Says what a difference looks like: it tries the mistakes that converters make, one by one, on one layer.

#include <string>

#include "verify/items.hpp"

namespace glu_ckpt {

/// A sentence such as "B holds A's up rows as gate and A's gate rows as up", or empty where no known
/// mistake explains item `y` of B against `x` of A. Reads the experts of one layer.
std::string diagnose(const Model& a, const Item& x, const Model& b, const Item& y, const Backend& backend);

}  // namespace glu_ckpt
