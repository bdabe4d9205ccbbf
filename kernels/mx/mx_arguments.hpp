#pragma once
/// The launchers of the device functions of glu_ckpt/ops/mxfp8.hpp share these checks. Their oracles are the functions
/// for the host.

#include <initializer_list>
#include <optional>

#include "glu_ckpt/ops/mxfp8.hpp"

namespace glu_ckpt {

/// A pointer that a launcher was given, by the name of its argument.
struct MxPointer {
  const char* name;
  const void* data;
  /// The address must be a multiple of so many bytes.
  i64 alignment;
};

/// Checks the arguments of one call, for a matrix with elements. Throws Usage. `values` is the dtype of values, empty
/// for calls that take none.
void check_mx_call(const char* call, const MxFormat& format, std::optional<Dtype> values, bool with_f16, i64 scale_step,
                   std::initializer_list<MxPointer> pointers);

}  // namespace glu_ckpt
