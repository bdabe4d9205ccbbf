#pragma once
/// A checkpoint together with what was recognized in it: how every other call sees one.

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// A source and what was recognized in it, owned by somebody else.
struct Model {
  const Source* source = nullptr;
  const Recognition* recognition = nullptr;
};

}  // namespace glu_ckpt
