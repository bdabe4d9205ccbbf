#pragma once
/// Settles in which order a dense model's FC1 holds gate and up.

#include "families/dense_rows.hpp"

namespace glu_ckpt {

/// Returns whether the program's MLPs of dense layers have gate and up in one tensor.
bool fuses_dense(const DenseNaming& naming);

/// Writes the order of the model into its layout, and who says it. The model is dense and its spelling known. Throws
/// GluConflict, RecordContradicts or NotDivisible where an answer is not possible.
void settle_dense_order(const ModelHints& hints, const Record& record, const SourceAnswers& answers,
                        Recognition& model);

/// Rows of gate and up that follow each other in FC1, of `width` each: those of a block, else all. Throws NotDivisible.
i64 dense_block_rows(const Glu& glu, i64 width, const std::string& name);

}  // namespace glu_ckpt
