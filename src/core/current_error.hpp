#pragma once

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {

/// The exception that is being handled, as an Error: one of the library's as it is, a failed allocation as NoMemory,
/// any other as Io. Only inside a catch.
Error current_error();

}  // namespace glu_ckpt
