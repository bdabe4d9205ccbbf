#pragma once
/// Makes moves from two placements of one matrix.

#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Appends the moves that take a matrix of [rows, cols] elements from one place to another. One move where
/// the block sizes nest, otherwise one for each piece of a common period.
void append_matrix_moves(const Matrix& from, const Matrix& to, std::vector<Move>& moves);
std::vector<Move> matrix_moves(const Matrix& from, const Matrix& to);

}  // namespace glu_ckpt
