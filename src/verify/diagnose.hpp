#pragma once
/// Says what a difference looks like: it tries the mistakes that converters make, one by one, on one layer.

#include <string>
#include <vector>

#include "exec/items.hpp"
#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {

/// A sentence such as "B holds A's up rows as gate and A's gate rows as up", or empty where no known
/// mistake explains item `y` of B against `x` of A. Reads the experts of one layer.
std::string diagnose(const Model& a, const Item& x, const Model& b, const Item& y, const Backend& backend);

/// The expert's weights, read in layouts that are not theirs, the likeliest mistake first. An interleaved FC1 is taken
/// for a contiguous one, a contiguous one for an interleaved one, in blocks of 32 rows or as many as F allows; and gate
/// and up are exchanged. Without a gate, rows of up, or of down where up has one row, are shifted by one. Each reads
/// the same bytes.
std::vector<ExpertWeights> wrong_layouts(const ExpertWeights& expert);

}  // namespace glu_ckpt
