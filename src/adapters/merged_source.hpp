#pragma once
/// A model, seen with an adapter merged into it.

#include <memory>
#include <string>
#include <vector>

#include "adapters/find_factors.hpp"
#include "core/simd.hpp"

namespace glu_ckpt {

enum class MergePath {
  /// Adds products by vector instructions.
  Fast,
  /// Adds them one element after the other: for the side that is to prove the other one.
  Plain,
};

/// Replaces a source by one whose weights have the adapter's products added when they are read; where it throws, the
/// source stays. Factors are read when they are needed, and at most kFactorBytes of them are kept. The files of the
/// adapter are checked like the model's, the record says `merged`, `merged_as` and `merged_into`, and digests in it are
/// dropped. The warnings are told with the source's.
void merge_source(std::unique_ptr<Source>& source, std::unique_ptr<Source> adapter, std::vector<MergedMatrix> matrices,
                  const std::string& program, MergePath path, SimdLevel level = simd_levels().front(),
                  std::vector<std::string> warnings = {});

/// Factors that a source keeps in memory, or those of one matrix.
constexpr i64 kFactorBytes = i64{64} << 20;

}  // namespace glu_ckpt
