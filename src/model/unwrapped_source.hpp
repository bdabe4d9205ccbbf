#pragma once
/// A checkpoint whose keys have words of wrappers in them, seen under the keys of the model itself.

#include <memory>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Returns the source itself where no key has such words. Else its info() has a warning that names one, and
/// `respelled`. Throws RedundantKeys where two keys become one.
std::unique_ptr<Source> take_off_wrapper_words(std::unique_ptr<Source> source);

}  // namespace glu_ckpt
