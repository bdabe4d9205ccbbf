#pragma once
/// Counts the bytes that a checkpoint consists of.

#include <string>
#include <utility>
#include <vector>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// A name and how many bytes, the most first.
using ByteCounts = std::vector<std::pair<std::string, i64>>;

/// Counts the bytes of the stored tensors.
ByteCounts bytes_by_dtype(const Inspection& inspection);
/// "routed experts", "attention", "optimizer state", ... What is no logical matrix is "other tensors"; all together are
/// the bytes of the tensors.
ByteCounts bytes_by_kind(const Inspection& inspection);

/// A table with bars, of A and, where it is there, of B.
std::string byte_table(const std::string& caption, const std::string& what, const ByteCounts& a, const ByteCounts* b);

}  // namespace glu_ckpt
