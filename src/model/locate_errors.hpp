#pragma once
/// Errors that say where in the files of a checkpoint their cause is.

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Throws `error` again: with the file of the source that it is about and, where the source is broken and holds the
/// tensor at fault, the byte at which that begins. An error that names a file stays as it is. Where weights are
/// quantized and not being decoded, it names --decode.
[[noreturn]] void fail_located(const Error& error, const Source& source, bool decoding = false);

/// Returns what `work` returns, which knows a source's names, shapes and records alone. `decoding`: it is what --decode
/// asked for.
template <typename Work>
auto locate_errors(const Source& source, const Work& work, bool decoding = false) {
  try {
    return work();
  } catch (const Error& error) {
    fail_located(error, source, decoding);
  }
}

}  // namespace glu_ckpt
