#pragma once
/// A model in other dtypes: bf16 with routers in f32, as some programs save it.

#include <memory>
#include <string>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Replaces a source by one whose tensors have the dtypes that SourceAnswers::dtypes says, by their roles or names;
/// where it throws, the source stays. Codes, their scales, integers and an optimizer's states stay as they are. Wider
/// dtypes are exact. Narrower ones round to nearest, ties to even; how many elements that changes is counted, in the
/// record too (`dtypes`, `rounded`), and NaN and infinity are warned of. Where decode_plainly says so, elements are
/// rounded by a search among all values of the dtype, and not counted. Throws Usage for what is no rule and for a rule
/// that is about nothing, and NotExact for a narrower dtype without allow_narrowing.
void cast_tensors(std::unique_ptr<Source>& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
